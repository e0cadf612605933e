"""The engine core: requests in, tokens out. `step` is the main loop's body.

Invariant: every request that `add_request` took ends exactly once, by an output that carries a
finish reason or by `abort_requests`. The worker reports errors of single requests; a step that
fails as a whole ends its requests; an error anywhere else leaves `step` and ends the engine, whose
front end starts it again.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from vllm.config.resolved import resolved
from vllm.exceptions import RequestError
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_groups import make_kv_cache_config
from vllm.v1.core.scheduler import Scheduler
from vllm.v1.executor.base import get_executor_class
from vllm.v1.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    SchedulerOutput,
    UtilityCall,
    UtilityResult,
)
from vllm.v1.request import Request
from vllm.v1.serial import EngineCoreMessage, EngineReady

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger(__name__)

MAX_FAILED_STEPS = 3
"""So many steps in a row that raise are not the requests' fault: the engine must start anew."""


class EngineCore:
    """Scheduler and executor of one model."""

    def __init__(self, vllm_config: "VllmConfig") -> None:
        self.phases: dict[str, float] = {}
        self.executor = get_executor_class(vllm_config)(vllm_config)
        with timed(self.phases, "load weights"):
            kv_layers = self.executor.load_model()
        cache = vllm_config.cache_config
        self.num_gpu_blocks = cache.num_gpu_blocks
        kv_cache_config = make_kv_cache_config(
            kv_layers,
            cache.num_gpu_blocks,
            cache.block_size,
            resolved("max_model_len", vllm_config.model_config.max_model_len),
        )
        with timed(self.phases, "allocate KV cache, warm up"):
            self.executor.initialize_cache(kv_cache_config)
        self.scheduler = Scheduler(vllm_config, kv_cache_config)
        self._utilities: dict[str, Callable[..., object]] = {
            "reset_prefix_cache": self.scheduler.reset_prefix_cache,
            "call_worker": self.executor.call,
        }
        self._num_failed_steps = 0

    def step(self) -> EngineCoreOutputs:
        """Advance every request that the scheduler picks by one step."""
        scheduled = self.scheduler.schedule()
        try:
            result = self.executor.execute_model(scheduled)
        except Exception as error:
            return self._fail_step(scheduled, error)
        self._num_failed_steps = 0
        return self.scheduler.update_from_output(scheduled, result)

    def has_work(self) -> bool:
        """True while a step would do something."""
        return self.scheduler.has_unfinished_requests()

    def add_request(self, message: EngineCoreRequest) -> EngineCoreOutput | None:
        """Queue one request. What the scheduler refuses comes back as its finished output."""
        try:
            self.scheduler.add_request(
                Request.from_message(message, self.scheduler.max_request_tokens + 1)
            )
        except RequestError as error:
            return EngineCoreOutput(
                message.request_id, [], finish_reason=FinishReason.ERROR, error=error.message
            )
        return None

    def abort_requests(self, request_ids: Iterable[str]) -> EngineCoreOutputs:
        """Drop requests and free their blocks; unknown ids have ended already."""
        outputs = self.scheduler.finish_requests(request_ids)
        return EngineCoreOutputs(outputs, self.scheduler.make_stats(), None, time.monotonic())

    def call_utility(self, call: UtilityCall) -> UtilityResult:
        """Answer a control call; its errors go to the caller."""
        method = self._utilities.get(call.method)
        if method is None:
            return UtilityResult(call.call_id, error=f"There is no control call {call.method}.")
        try:
            return UtilityResult(call.call_id, method(*call.args))
        except Exception as error:
            logger.exception("The control call %s failed", call.method)
            return UtilityResult(call.call_id, error=str(error))

    def ready_message(self) -> EngineReady:
        """What the front end and the start-up log need to know."""
        return EngineReady(
            num_gpu_blocks=self.num_gpu_blocks,
            max_request_tokens=self.scheduler.max_request_tokens,
            phases=self.phases,
            kernels=str(self.executor.call("describe")),
        )

    def shutdown(self) -> None:
        """Release the model and its threads."""
        self.executor.shutdown()

    def _fail_step(self, scheduled: SchedulerOutput, error: Exception) -> EngineCoreOutputs:
        """End the requests of a step that could not run; give up if that happens in a row."""
        self._num_failed_steps += 1
        if self._num_failed_steps >= MAX_FAILED_STEPS:
            raise error
        ids = ", ".join(scheduled.num_scheduled_tokens)
        logger.error("A step failed; it ends the requests %s", ids, exc_info=error)
        return self.scheduler.fail_step(scheduled, f"The engine failed: {type(error).__name__}.")


class Channel(Protocol):
    """Where an engine loop's messages come from and its outputs go."""

    def receive(self, block: bool) -> list[EngineCoreMessage] | None:
        """What arrived; waits for something if `block`. None: the front end is gone."""

    def send(self, outputs: EngineCoreOutputs) -> None:
        """Hand over one frame; never waits for the front end."""


class EngineLoop:
    """Takes what arrived, steps, sends. Parks, without using the CPU, when there is no work."""

    def __init__(self, core: EngineCore, channel: Channel) -> None:
        self.core = core
        self.channel = channel

    def run(self) -> None:
        """Serve until the front end is gone."""
        core, channel = self.core, self.channel
        while (messages := channel.receive(block=not core.has_work())) is not None:
            for message in messages:
                self.handle(message)
            if core.has_work():
                outputs = core.step()
                if outputs.outputs or outputs.stats is not None:
                    channel.send(outputs)

    def handle(self, message: EngineCoreMessage) -> None:
        """Take one message of the front end."""
        if isinstance(message, EngineCoreRequest):
            refused = self.core.add_request(message)
            if refused is not None:
                self.channel.send(EngineCoreOutputs([refused], timestamp=time.monotonic()))
        elif isinstance(message, UtilityCall):
            result = self.core.call_utility(message)
            self.channel.send(EngineCoreOutputs(utility=result, timestamp=time.monotonic()))
        else:
            self.channel.send(self.core.abort_requests(message))


@contextmanager
def timed(phases: dict[str, float], name: str) -> Iterator[None]:
    """Note in `phases` how many seconds the block took."""
    start = time.monotonic()
    yield
    phases[name] = time.monotonic() - start
