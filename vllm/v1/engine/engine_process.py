"""The engine core's process as its front end sees it: start, first word, frames, end.

Started by exec (never by fork: the parent may have threads, and a script needs no main guard). The
control socket pair is both the sentinel and the leash: it becomes readable when the process ends,
and the process ends when it closes. One object per process: a restart makes a new one.
"""

import contextlib
import os
import socket
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING

import msgspec
import zmq

from vllm import envs
from vllm.exceptions import ConfigError, EngineDeadError, ModelFileError
from vllm.logger import init_logger
from vllm.utils.network import make_private_dir, receive_message, remove_dir, send_message
from vllm.v1.engine.core_process import INPUT_SOCKET, OUTPUT_SOCKET
from vllm.v1.messages import EngineCoreOutputs
from vllm.v1.serial import (
    EngineCoreMessage,
    EngineReady,
    decode_first_word,
    decode_outputs,
    encode_message,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger(__name__)

_START_ERRORS: dict[str, type[ConfigError]] = {
    "ConfigError": ConfigError,
    "ModelFileError": ModelFileError,
}


class EngineProcess:
    """One engine process. `start` returns while it still loads; `wait_ready` waits for it."""

    def __init__(self, vllm_config: "VllmConfig") -> None:
        self.ready: EngineReady | None = None
        self._grace_s = [0.0]
        self.directory = make_private_dir(envs.VLLM_RPC_BASE_PATH or None)
        self.control, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _boot(), str(theirs.fileno()), self.directory],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._context = zmq.Context()
        self._finalizer = weakref.finalize(
            self, _stop, self.process, self.control, self._context, self.directory, self._grace_s
        )
        self.output = self._socket(zmq.PULL)
        self.output.bind(f"ipc://{self.directory}/{OUTPUT_SOCKET}")
        os.chmod(f"{self.directory}/{OUTPUT_SOCKET}", 0o600)
        self._input = self._socket(zmq.PUSH)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send_message(self.control, vllm_config.to_json())

    def wait_ready(self, timeout_s: float | None = None) -> EngineReady:
        """Wait for the first word. Raises the start's own error, or EngineDeadError."""
        if self.ready is not None:
            return self.ready
        limit = envs.VLLM_ENGINE_READY_TIMEOUT_S if timeout_s is None else timeout_s
        try:
            frame = receive_message(self.control, limit)
        except TimeoutError:
            self.stop()
            raise EngineDeadError(
                f"The engine process was not ready within {limit} s and was stopped; "
                "VLLM_ENGINE_READY_TIMEOUT_S allows it more time."
            )
        if frame is None:
            raise EngineDeadError(f"The engine process ended while it started{self._status()}.")
        word = decode_first_word(frame)
        if not isinstance(word, EngineReady):
            self.stop()
            error = _START_ERRORS.get(word.kind)
            if error is not None:
                raise error(word.message)
            raise EngineDeadError(f"The engine could not start: {word.kind}: {word.message}")
        self.control.settimeout(None)
        self._input.connect(f"ipc://{self.directory}/{INPUT_SOCKET}")
        self.ready = word
        self._grace_s[0] = float(envs.VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS)
        return word

    def send(self, message: EngineCoreMessage) -> None:
        """Queue one message. Raises EngineDeadError if the process is not ready."""
        try:
            self._input.send(encode_message(message), zmq.NOBLOCK)
        except zmq.Again:
            raise EngineDeadError("The engine process is not ready.")

    def receive(self) -> EngineCoreOutputs | None:
        """One frame that has arrived, or None. What is no frame of the engine is dropped."""
        while True:
            try:
                return decode_outputs(self.output.recv(zmq.NOBLOCK))
            except zmq.Again:
                return None
            except msgspec.MsgspecError as error:
                logger.error("A frame was dropped: %s", error)

    def wait_readable(self, timeout_s: float | None) -> bool:
        """Wait for a frame; False if the process has ended or the time is up."""
        if not self._finalizer.alive:
            return False
        poller = zmq.Poller()
        poller.register(self.output, zmq.POLLIN)
        poller.register(self.control.fileno(), zmq.POLLIN)
        events = dict(poller.poll(None if timeout_s is None else int(timeout_s * 1000)))
        return self.output in events

    @property
    def is_alive(self) -> bool:
        """False once the process has ended."""
        return self._finalizer.alive and self.process.poll() is None

    def death_message(self) -> str:
        """One line on how it ended."""
        return f"The engine process ended{self._status()}."

    def stop(self) -> None:
        """End the process, kill it if it does not obey, remove its sockets. Idempotent."""
        self._finalizer()

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        sock = self._context.socket(kind)
        sock.set_hwm(0)
        sock.linger = 0
        return sock

    def _status(self) -> str:
        try:
            code = self.process.wait(1.0)  # its sockets close a moment before it can be waited for
        except subprocess.TimeoutExpired:
            return ""
        return f" with exit status {code}" if code >= 0 else f" by signal {-code}"


def _boot() -> str:
    """The child finds modules exactly where this process does: never in the working directory."""
    return (
        f"import sys; sys.path[:] = {sys.path!r}; "
        "from vllm.v1.engine.core_process import main; main()"
    )


def _stop(
    process: "subprocess.Popen[bytes]",
    control: socket.socket,
    context: "zmq.Context[zmq.Socket[bytes]]",
    directory: str,
    grace_s: list[float],
) -> None:
    """`grace_s` holds how long it may take to end by itself: nothing while it still loads."""
    with contextlib.suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)  # wakes a thread that still waits for the first word
    control.close()
    try:
        process.wait(grace_s[0])
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    context.destroy(linger=0)
    remove_dir(directory)
