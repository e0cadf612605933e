"""How a front end reaches an engine core: by calls, by a thread, or by a process.

All clients take the same messages. `get_output` gives one frame at a time, in order; after the
engine has ended it raises EngineDeadError, and `restart` (where there is a process) begins anew.
"""

import asyncio
import queue
import threading
from collections import deque
from typing import TYPE_CHECKING

from vllm.exceptions import EngineDeadError
from vllm.logger import init_logger
from vllm.v1.messages import EngineCoreOutputs
from vllm.v1.serial import EngineCoreMessage, EngineReady

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.engine.engine_process import EngineProcess


logger = init_logger(__name__)


class InprocClient:
    """The engine core in this process, advanced by `get_output`: for offline use and tests."""

    can_restart = False

    def __init__(self, vllm_config: "VllmConfig") -> None:
        from vllm.v1.engine.core import EngineCore, EngineLoop

        self.core = EngineCore(vllm_config)
        self._outputs: deque[EngineCoreOutputs] = deque()
        self._loop = EngineLoop(self.core, self)

    def wait_ready(self) -> EngineReady:
        """It is."""
        return self.core.ready_message()

    def submit(self, message: EngineCoreMessage) -> None:
        """Handle one message now."""
        self._loop.handle(message)

    def get_output(self) -> EngineCoreOutputs:
        """The next frame: one that waits, else that of a step."""
        return self._outputs.popleft() if self._outputs else self.core.step()

    def restart(self) -> EngineReady:
        """An error in this process is the caller's to see: there is no restart."""
        raise EngineDeadError("An engine in this process can't be started again.")

    def shutdown(self) -> None:
        """Release the model."""
        self.core.shutdown()

    def receive(self, block: bool) -> list[EngineCoreMessage] | None:
        """Nothing arrives by itself: `submit` handles each message at once."""
        return []

    def send(self, outputs: EngineCoreOutputs) -> None:
        """One frame for the front end, delivered before the next step."""
        self._outputs.append(outputs)


class ProcessClient:
    """The engine core in its own process, for callers that block."""

    can_restart = True

    def __init__(self, vllm_config: "VllmConfig") -> None:
        self._vllm_config = vllm_config
        self.process = _start_process(vllm_config)

    def wait_ready(self) -> EngineReady:
        """Wait until the model is loaded."""
        return self.process.wait_ready()

    def submit(self, message: EngineCoreMessage) -> None:
        """Queue one message."""
        self.process.send(message)

    def get_output(self) -> EngineCoreOutputs:
        """Wait for the next frame."""
        while True:
            outputs = self.process.receive()
            if outputs is not None:
                return outputs
            if not self.process.wait_readable(None):
                raise EngineDeadError(self.process.death_message())

    def restart(self) -> EngineReady:
        """A new process in place of one that has ended; it knows no requests."""
        self.process.stop()
        self.process = _start_process(self._vllm_config)
        return self.process.wait_ready()

    def shutdown(self) -> None:
        """End the process."""
        self.process.stop()


class AsyncProcessClient:
    """The engine core in its own process, for an event loop."""

    can_restart = True

    def __init__(self, vllm_config: "VllmConfig") -> None:
        self._vllm_config = vllm_config
        self.process = _start_process(vllm_config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._readable = asyncio.Event()
        self._ended = False

    async def wait_ready(self) -> EngineReady:
        """Wait until the model is loaded, then listen in the running loop."""
        ready = await asyncio.to_thread(self.process.wait_ready)
        if self._loop is None:
            self._listen(asyncio.get_running_loop())
        return ready

    def submit(self, message: EngineCoreMessage) -> None:
        """Queue one message."""
        self.process.send(message)

    async def get_output(self) -> EngineCoreOutputs:
        """Wait for the next frame."""
        while True:
            self._readable.clear()
            outputs = self.process.receive()
            if outputs is not None:
                return outputs
            if self._ended:
                raise EngineDeadError(self.process.death_message())
            await self._readable.wait()

    async def restart(self) -> EngineReady:
        """A new process in place of one that has ended; it knows no requests."""
        self._unlisten()
        await asyncio.to_thread(self.process.stop)
        self.process = await asyncio.to_thread(_start_process, self._vllm_config)
        self._ended = False
        return await self.wait_ready()

    def shutdown(self) -> None:
        """End the process."""
        self._unlisten()
        self.process.stop()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        loop.add_reader(self.process.output.fileno(), self._readable.set)
        loop.add_reader(self.process.control.fileno(), self._on_end)

    def _unlisten(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self.process.output.fileno())
            self._loop.remove_reader(self.process.control.fileno())
        self._loop = None

    def _on_end(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self.process.control.fileno())
        self._ended = True
        self._readable.set()


class AsyncThreadClient:
    """The engine core in a thread of this process, for an event loop (debugging, tests).

    `receive` and `send` are the loop's side: this object is its channel.
    """

    can_restart = False

    def __init__(self, vllm_config: "VllmConfig") -> None:
        self.core: EngineCore | None = None
        self._vllm_config = vllm_config
        self._inbox: queue.SimpleQueue[EngineCoreMessage | None] = queue.SimpleQueue()
        self._outputs: deque[EngineCoreOutputs] = deque()
        self._arrived = asyncio.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def wait_ready(self) -> EngineReady:
        """Load the model in the thread pool, then start the loop's thread."""
        if self.core is None:
            self._loop = asyncio.get_running_loop()
            self.core = await asyncio.to_thread(_load_core, self._vllm_config)
            self._thread = threading.Thread(
                target=self._run, args=(self.core,), name="EngineCore", daemon=True
            )
            self._thread.start()
        return self.core.ready_message()

    def submit(self, message: EngineCoreMessage) -> None:
        """Queue one message."""
        self._inbox.put(message)

    async def get_output(self) -> EngineCoreOutputs:
        """Wait for the next frame."""
        while True:
            self._arrived.clear()
            if self._outputs:
                return self._outputs.popleft()
            if self._error is not None:
                raise EngineDeadError(f"The engine's thread ended: {self._error!r}")
            await self._arrived.wait()

    async def restart(self) -> EngineReady:
        """A thread that failed may have left anything behind: there is no restart."""
        raise EngineDeadError("An engine in this process can't be started again.")

    def shutdown(self) -> None:
        """Stop the loop between two steps and release the model."""
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self.core is not None:
            self.core.shutdown()
            self.core = None

    def receive(self, block: bool) -> list[EngineCoreMessage] | None:
        """What arrived; None means stop."""
        messages: list[EngineCoreMessage] = []
        try:
            while True:
                message = self._inbox.get(block=block and not messages)
                if message is None:
                    return None
                messages.append(message)
        except queue.Empty:
            return messages

    def send(self, outputs: EngineCoreOutputs) -> None:
        """One frame for the front end."""
        self._outputs.append(outputs)
        self._wake()

    def _run(self, core: "EngineCore") -> None:
        from vllm.v1.engine.core import EngineLoop

        try:
            EngineLoop(core, self).run()
        except Exception as error:
            logger.exception("The engine failed")
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrived.set)


def _load_core(vllm_config: "VllmConfig") -> "EngineCore":
    from vllm.v1.engine.core import EngineCore

    return EngineCore(vllm_config)


def _start_process(vllm_config: "VllmConfig") -> "EngineProcess":
    from vllm.v1.engine.engine_process import EngineProcess

    return EngineProcess(vllm_config)
