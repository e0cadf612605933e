"""LLMEngine, for callers that block: `add_request`, then `step` until nothing is left."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from vllm import envs
from vllm.exceptions import EngineDeadError, VLLMError
from vllm.inputs import PromptType
from vllm.logger import init_logger
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.core_client import InprocClient, ProcessClient
from vllm.v1.engine.front_end import NO_ANSWER, FrontEnd
from vllm.v1.engine.input_processor import SeedSource
from vllm.v1.engine.output_processor import Processed
from vllm.v1.engine.unsupported import refuse, unsupported_sync
from vllm.v1.messages import EngineCoreOutputs, UtilityCall, UtilityResult
from vllm.v1.metrics.loggers import StatLogger
from vllm.v1.serial import EngineReady

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.transformers_utils.tokenizer import Tokenizer

logger = init_logger(__name__)


class LLMEngine:
    """One engine, in its own process or (VLLM_ENABLE_V1_MULTIPROCESSING=0) in this one."""

    def __init__(
        self,
        vllm_config: "VllmConfig",
        *,
        stat_loggers: Sequence[StatLogger] = (),
        next_seed: SeedSource | None = None,
    ) -> None:
        in_process = not envs.VLLM_ENABLE_V1_MULTIPROCESSING
        self._client = (InprocClient if in_process else ProcessClient)(vllm_config)
        self.vllm_config = vllm_config
        self._call_ids = itertools.count()
        self._undelivered: list[RequestOutput] = []
        self._results: dict[int, UtilityResult] = {}
        try:
            self.front_end = FrontEnd(vllm_config, stat_loggers, next_seed)
            self.front_end.get_tokenizer()  # while the engine process loads the weights
            self.ready: EngineReady = self._client.wait_ready()
        except VLLMError:
            self._client.shutdown()
            raise
        self.front_end.inputs.limit_context(self.ready.max_request_tokens)
        for message in self.front_end.greeting():
            self._client.submit(message)

    @classmethod
    def from_engine_args(
        cls,
        engine_args: "EngineArgs",
        *,
        stat_loggers: Sequence[StatLogger] = (),
        next_seed: SeedSource | None = None,
    ) -> "LLMEngine":
        """Start an engine with these arguments."""
        config = engine_args.create_engine_config()
        return cls(config, stat_loggers=stat_loggers, next_seed=next_seed)

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        arrival_time: float | None = None,
        lora_request: object | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: dict[str, str] | None = None,
        priority: int = 0,
    ) -> None:
        """Check and queue a request. Raises RequestError if it is refused."""
        if lora_request is not None:
            refuse("lora_request", "this engine serves no adapters.")
        text, request = self.front_end.make_request(
            request_id,
            prompt,
            params,
            arrival_time=arrival_time,
            priority=priority,
            tokenization_kwargs=tokenization_kwargs,
            trace_headers=trace_headers,
        )
        children = self.front_end.register(request, text, None)
        try:
            for child in children:
                self._client.submit(child)
        except Exception:  # it can't be sent: nobody would ever end it
            self._finish(self.front_end.outputs.abort([request_id]))
            raise

    def step(self) -> list[RequestOutput]:
        """Wait for the engine's next frame; returns what it brought to the requests."""
        outputs, self._undelivered = self._undelivered, []
        if outputs or not self.has_unfinished_requests():
            return outputs
        try:
            self._take(self._client.get_output())
        except EngineDeadError as error:
            self._recover(error)
        outputs, self._undelivered = self._undelivered, []
        return outputs

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests early; the next step returns their last outputs."""
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        self._finish(self.front_end.outputs.abort(ids))

    def has_unfinished_requests(self) -> bool:
        """True while a request runs, waits or has an output that `step` will return."""
        return bool(self.front_end.outputs.parents or self._undelivered)

    def get_num_unfinished_requests(self) -> int:
        """Requests that run or wait."""
        return len(self.front_end.outputs.parents)

    def get_tokenizer(self) -> "Tokenizer | None":
        """The model's tokenizer; None with skip_tokenizer_init."""
        return self.front_end.get_tokenizer()

    def get_default_sampling_params(self) -> dict[str, Any]:
        """The model's own sampling defaults, as SamplingParams fields."""
        return self.front_end.default_sampling_params()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prompt blocks; False if running requests hold some."""
        return bool(self._call("reset_prefix_cache", reset_running_requests))

    def do_log_stats(self) -> None:
        """An interval is over: every stat logger writes its line."""
        for stat_logger in self.front_end.stat_loggers:
            stat_logger.log()

    def is_sleeping(self) -> bool:
        """It can't sleep."""
        return False

    def shutdown(self) -> None:
        """End the engine. Idempotent."""
        self._client.shutdown()

    def _take(self, frame: EngineCoreOutputs) -> None:
        if frame.utility is not None and frame.utility.call_id != NO_ANSWER:
            self._results[frame.utility.call_id] = frame.utility
        processed = None
        if frame.outputs:
            processed = self.front_end.outputs.process(frame.outputs, frame.timestamp)
        self.front_end.record(frame.stats, None)
        if processed is not None:
            self._finish(processed)

    def _finish(self, processed: Processed) -> None:
        self._undelivered += processed.outputs
        self.front_end.record(None, processed)
        if processed.to_abort:
            self._client.submit(processed.to_abort)

    def _recover(self, error: EngineDeadError) -> None:
        """Start the engine again; running requests continue. Raises if it can't be."""
        if not self._client.can_restart or not self.front_end.may_restart():
            self._lose_requests(error)
        logger.error("%s Starting it again.", error)
        try:
            self._client.restart()
        except VLLMError as failure:
            self._lose_requests(failure)
        requests, processed = self.front_end.outputs.resume()
        self._finish(processed)
        for message in (*self.front_end.greeting(), *requests):
            self._client.submit(message)

    def _lose_requests(self, error: VLLMError) -> NoReturn:
        self.front_end.record(None, self.front_end.outputs.fail_all(error))
        raise error

    def _call(self, method: str, *args: object) -> object:
        call_id = next(self._call_ids)
        self._client.submit(UtilityCall(call_id, method, list(args)))
        while call_id not in self._results:
            self._take(self._client.get_output())
        result = self._results.pop(call_id)
        if result.error is not None:
            raise VLLMError(result.error)
        return result.result

    sleep = wake_up = unsupported_sync("sleep", "weights and KV cache stay loaded.")
    add_lora = remove_lora = list_loras = pin_lora = unsupported_sync(
        "lora", "no adapters are served."
    )
    start_profile = stop_profile = unsupported_sync("profile", "there is no profiler.")
    collective_rpc = unsupported_sync("collective_rpc", "the worker takes no foreign calls.")
