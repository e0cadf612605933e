"""Entry of the engine process; its arguments are the control socket's fd and a directory.

It is started by exec and imports only what it needs, so that it loads the weights while its parent
still imports the web server. The control socket carries the configuration in, one word out
(EngineReady or EngineFailed), and from then on only its end: either side closing it means that
side is gone. The process ends within one step of that, and removes the directory of its sockets.
"""

import os
import socket
import sys
import time
from typing import TYPE_CHECKING

from vllm import envs
from vllm.utils.network import receive_message, remove_dir, send_message
from vllm.utils.process import set_process_title, stay_until_parent_dies
from vllm.v1.messages import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.serial import (
    EngineCoreMessage,
    EngineFailed,
    decode_message,
    encode_first_word,
    encode_outputs,
    request_id_in,
)

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCore

INPUT_SOCKET = "in.sock"
OUTPUT_SOCKET = "out.sock"


def main() -> None:
    """Serve until the parent closes the control socket or dies."""
    control, directory = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    stay_until_parent_dies(lambda: _end(directory, 1))
    set_process_title(f"{envs.VLLM_PROCESS_NAME_PREFIX}::EngineCore")
    config = receive_message(control)
    if config is None:
        _end(directory, 1)
    else:
        _end(directory, serve(config, control, directory))


def serve(config: bytes, control: socket.socket, directory: str) -> int:
    """Load the model, say so, run the loop; returns the exit status."""
    from vllm.logger import init_logger, set_process_name

    set_process_name("EngineCore")
    logger = init_logger("vllm.v1.engine.core")
    try:
        core = _load(config)
    except Exception as error:
        known = type(error).__name__ in ("ConfigError", "ModelFileError")
        if not known:
            logger.exception("The engine could not start")
        send_message(control, encode_first_word(EngineFailed(type(error).__name__, str(error))))
        return 1
    try:
        channel = ZmqChannel(control, directory)
        send_message(control, encode_first_word(core.ready_message()))
        _run(core, channel)
    except BrokenPipeError:
        return 1
    except Exception:
        logger.exception("The engine failed; its front end will start it again")
        return 1
    core.shutdown()
    return 0


class ZmqChannel:
    """Messages from a PULL socket, outputs to a PUSH socket, the control socket beside them."""

    def __init__(self, control: socket.socket, directory: str) -> None:
        import zmq

        from vllm.logger import init_logger

        self._logger = init_logger("vllm.v1.engine.core")
        self._zmq = zmq
        context = zmq.Context()
        self._input = context.socket(zmq.PULL)
        self._output = context.socket(zmq.PUSH)
        for sock in (self._input, self._output):
            sock.set_hwm(0)
            sock.linger = 0
        self._input.bind(f"ipc://{directory}/{INPUT_SOCKET}")
        os.chmod(f"{directory}/{INPUT_SOCKET}", 0o600)
        self._output.connect(f"ipc://{directory}/{OUTPUT_SOCKET}")
        self._poller = zmq.Poller()
        self._poller.register(self._input, zmq.POLLIN)
        self._poller.register(control.fileno(), zmq.POLLIN)
        self._control_fd = control.fileno()

    def receive(self, block: bool) -> list[EngineCoreMessage] | None:
        """Everything that has arrived; None when the parent closed the control socket."""
        events = dict(self._poller.poll(None if block else 0))
        if self._control_fd in events:
            return None
        messages: list[EngineCoreMessage] = []
        if self._input in events:
            try:
                while True:
                    message = self._decode(self._input.recv(self._zmq.NOBLOCK))
                    if message is not None:
                        messages.append(message)
            except self._zmq.Again:
                pass
        return messages

    def send(self, outputs: EngineCoreOutputs) -> None:
        """Queue one frame for the parent."""
        self._output.send(encode_outputs(outputs))

    def _decode(self, frame: bytes) -> EngineCoreMessage | None:
        """One message; a frame that is none ends at most the request that it names."""
        try:
            return decode_message(frame)
        except ValueError as error:
            message = f"The engine can't read the request: {error}"
        self._logger.error("A frame was dropped. %s", message)
        request_id = request_id_in(frame)
        if request_id is not None:
            reason = FinishReason.ERROR
            refused = EngineCoreOutput(request_id, [], finish_reason=reason, error=message)
            self.send(EngineCoreOutputs([refused], timestamp=time.monotonic()))
        return None


def _load(config: bytes) -> "EngineCore":
    start = time.monotonic()
    from vllm.config import VllmConfig
    from vllm.plugins import load_general_plugins
    from vllm.v1.engine.core import EngineCore

    load_general_plugins()
    vllm_config = VllmConfig.from_json(config)
    imported = time.monotonic() - start
    core = EngineCore(vllm_config)
    core.phases = {"import the engine": imported, **core.phases}
    return core


def _run(core: "EngineCore", channel: ZmqChannel) -> None:
    import gc

    from vllm.v1.engine.core import EngineLoop

    gc.collect()
    gc.freeze()  # what start-up made lives as long as the process: never scan it again
    EngineLoop(core, channel).run()


def _end(directory: str, status: int) -> None:
    """Leave at once: nothing in this process is worth the interpreter's tear-down."""
    remove_dir(directory)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

