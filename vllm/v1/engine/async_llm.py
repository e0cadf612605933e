"""AsyncLLM: the engine for an event loop, as the HTTP server uses it.

`generate` is an async generator per request; closing it aborts the request. One task takes the
engine's frames, in slices so that a large batch never holds up the loop. If the engine dies, it is
started again and every running request continues where it was; after too many deaths, or if it can
not start, every request ends with EngineDeadError and `errored` stays true.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm import envs
from vllm.exceptions import EngineDeadError, VLLMError
from vllm.inputs import PromptType
from vllm.logger import init_logger
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.core_client import AsyncProcessClient, AsyncThreadClient
from vllm.v1.engine.front_end import FrontEnd, new_queue
from vllm.v1.engine.output_processor import Processed
from vllm.v1.engine.output_queue import OutputQueue
from vllm.v1.engine.unsupported import refuse, unsupported
from vllm.v1.messages import EngineCoreOutputs, UtilityCall, UtilityResult
from vllm.v1.metrics.loggers import StatLogger
from vllm.v1.serial import EngineCoreMessage, EngineReady

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.transformers_utils.tokenizer import Tokenizer

logger = init_logger(__name__)

LONG_PROMPT = 4096
"""A prompt of more characters or token ids is handled in a thread: the loop must go on."""


class AsyncLLM:
    """One engine. The constructor starts it and returns; `wait_ready` waits for the model."""

    def __init__(
        self,
        vllm_config: "VllmConfig",
        *,
        stat_loggers: Sequence[StatLogger] = (),
        enable_log_requests: bool = False,
    ) -> None:
        in_process = not envs.VLLM_ENABLE_V1_MULTIPROCESSING
        self._client = (AsyncThreadClient if in_process else AsyncProcessClient)(vllm_config)
        self.vllm_config = vllm_config
        try:
            self.front_end = FrontEnd(vllm_config, stat_loggers)
        except VLLMError:
            self._client.shutdown()
            raise
        self.ready: EngineReady | None = None
        self._starting: asyncio.Future[EngineReady] | None = None
        self._log_requests = enable_log_requests
        self._dead_error: VLLMError | None = None
        self._output_task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._is_restarting = False
        self._idle = asyncio.Event()
        self._call_ids = itertools.count()
        self._calls: dict[int, asyncio.Future[UtilityResult]] = {}

    @classmethod
    def from_vllm_config(
        cls,
        vllm_config: "VllmConfig",
        *,
        stat_loggers: Sequence[StatLogger] = (),
        enable_log_requests: bool = False,
    ) -> "AsyncLLM":
        """Start an engine with this configuration."""
        return cls(vllm_config, stat_loggers=stat_loggers, enable_log_requests=enable_log_requests)

    @classmethod
    def from_engine_args(
        cls, engine_args: "AsyncEngineArgs", *, stat_loggers: Sequence[StatLogger] = ()
    ) -> "AsyncLLM":
        """Start an engine with these arguments."""
        return cls(
            engine_args.create_engine_config(),
            stat_loggers=stat_loggers,
            enable_log_requests=engine_args.enable_log_requests,
        )

    # ---- requests ----------------------------------------------------------------------------

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        lora_request: object | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: dict[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request as they come; the last has `finished`.

        Raises RequestError if it is refused, EngineGenerateError if it fails, EngineDeadError if
        the engine is lost.
        """
        if data_parallel_rank:
            refuse("data_parallel_rank", "there is one engine, rank 0.")
        queue = await self.add_request(
            request_id,
            prompt,
            sampling_params,
            lora_request=lora_request,
            tokenization_kwargs=tokenization_kwargs,
            trace_headers=trace_headers,
            priority=priority,
        )
        is_finished = False
        try:
            while not is_finished:
                output = queue.get_nowait() or await queue.get()
                is_finished = output.finished
                yield output
        finally:
            if not is_finished:
                self._drop(request_id, queue)

    async def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        *,
        arrival_time: float | None = None,
        lora_request: object | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: dict[str, str] | None = None,
        priority: int = 0,
    ) -> OutputQueue:
        """Check and start a request; its outputs come through the queue."""
        if lora_request is not None:
            refuse("lora_request", "this engine serves no adapters.")
        self._check_alive()
        arrival_time = time.time() if arrival_time is None else arrival_time
        await self.wait_ready()
        arguments: dict[str, Any] = {
            "arrival_time": arrival_time,
            "priority": priority,
            "tokenization_kwargs": tokenization_kwargs,
            "trace_headers": trace_headers,
        }
        if _is_long(prompt):
            text, request = await asyncio.to_thread(
                self.front_end.make_request, request_id, prompt, params, **arguments
            )
        else:
            text, request = self.front_end.make_request(request_id, prompt, params, **arguments)
        self._check_alive()
        queue = new_queue(params)
        children = self.front_end.register(request, text, queue)
        try:
            for child in children:
                self._submit(child)
        except Exception:  # it can't be sent: nobody would ever end it
            self._drop(request_id, queue)
            raise
        if self._log_requests:
            logger.info("Request %s: %s", request_id, request.sampling_params)
        return queue

    async def abort(self, request_id: str | Sequence[str]) -> None:
        """End requests early; their generators give a last output with finish_reason abort."""
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        self._finish_slice(self.front_end.outputs.abort(ids))
        if self._log_requests:
            logger.info("Aborted requests: %s", ", ".join(ids))

    # ---- state -------------------------------------------------------------------------------

    async def wait_ready(self) -> EngineReady:
        """Wait until the model is loaded. Raises ConfigError or EngineDeadError if it can't be."""
        if self.ready is not None:
            return self.ready
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        return await asyncio.shield(self._starting)

    async def check_health(self) -> None:
        """Raise EngineDeadError if nothing can be generated any more."""
        if self._dead_error is not None:
            raise self._dead_error

    @property
    def errored(self) -> bool:
        """True once the engine is lost for good."""
        return self._dead_error is not None

    @property
    def dead_error(self) -> VLLMError:
        """Why it is lost."""
        return self._dead_error or EngineDeadError("The engine is alive.")

    @property
    def is_running(self) -> bool:
        """True while it takes requests."""
        return not self._is_stopped and not self.errored

    @property
    def is_stopped(self) -> bool:
        """True after `shutdown`, or when the engine is lost."""
        return not self.is_running

    @property
    def num_unfinished_requests(self) -> int:
        """Requests of users that run or wait."""
        return len(self.front_end.outputs.parents)

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300.0) -> None:
        """Wait until no request runs. Raises TimeoutError."""
        deadline = time.monotonic() + drain_timeout
        while self.num_unfinished_requests:
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), deadline - time.monotonic())
            except asyncio.TimeoutError:
                raise TimeoutError(f"{self.num_unfinished_requests} requests are still running.")

    def get_tokenizer(self) -> "Tokenizer | None":
        """The model's tokenizer; None with --skip-tokenizer-init."""
        return self.front_end.get_tokenizer()

    def get_default_sampling_params(self) -> dict[str, Any]:
        """The model's own sampling defaults (generation_config.json), as SamplingParams fields."""
        return self.front_end.default_sampling_params()

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What the model can do."""
        return ("generate",)

    async def is_tracing_enabled(self) -> bool:
        """Traces are not collected."""
        return False

    async def do_log_stats(self) -> None:
        """An interval is over: every stat logger writes its line."""
        for stat_logger in self.front_end.stat_loggers:
            stat_logger.log()

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prompt blocks; False if running requests hold some."""
        return bool(await self._call("reset_prefix_cache", reset_running_requests))

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine process and every request that still runs. Idempotent."""
        if self._is_stopped:
            return
        self._is_stopped = True
        for task in (self._starting, self._output_task):
            if task is not None:
                task.cancel()
        self._client.shutdown()
        self._fail_everything(EngineDeadError("The engine was shut down."))

    # ---- the engine's side -------------------------------------------------------------------

    async def _start(self) -> EngineReady:
        tokenizer = asyncio.to_thread(self.front_end.get_tokenizer)
        try:
            ready, _ = await asyncio.gather(self._client.wait_ready(), tokenizer)
        except VLLMError as error:
            self._dead_error = error
            raise
        self.front_end.inputs.limit_context(ready.max_request_tokens)
        for message in self.front_end.greeting():
            self._submit(message)
        self.ready = ready
        self._output_task = asyncio.create_task(self._run())
        return ready

    async def _run(self) -> None:
        """Take frames until shutdown; start the engine again when it ends."""
        try:
            while not self.errored:
                try:
                    await self._take(await self._client.get_output())
                    await asyncio.sleep(0)  # consumers run even if the next frame is there already
                except EngineDeadError as error:
                    await self._recover(error)
        except Exception as error:
            logger.exception("Handling the engine's output failed")
            self._lose_engine(EngineDeadError(f"Handling the engine's output failed: {error!r}"))

    async def _take(self, frame: EngineCoreOutputs) -> None:
        if frame.utility is not None:
            call = self._calls.pop(frame.utility.call_id, None)
            if call is not None and not call.done():
                call.set_result(frame.utility)
        size = envs.VLLM_V1_OUTPUT_PROC_CHUNK_SIZE
        for start in range(0, len(frame.outputs), size):
            if start:
                await asyncio.sleep(0)
            part = frame.outputs[start : start + size]
            self._finish_slice(self.front_end.outputs.process(part, frame.timestamp))
        if frame.stats is not None:
            self.front_end.record(frame.stats, None)

    def _finish_slice(self, processed: Processed) -> None:
        self.front_end.record(None, processed)
        if processed.to_abort:
            self._submit(processed.to_abort)
        if not self.front_end.outputs.parents:
            self._idle.set()

    async def _recover(self, error: EngineDeadError) -> None:
        """Start the engine again. What comes in meanwhile is registered, and sent with the rest."""
        if not self._client.can_restart or not self.front_end.may_restart():
            self._lose_engine(error)
            return
        logger.error("%s Starting it again.", error)
        self._is_restarting = True
        try:
            await self._client.restart()
        except VLLMError as failure:
            self._lose_engine(failure)
            return
        finally:
            self._is_restarting = False
        self._fail_calls(error)
        requests, processed = self.front_end.outputs.resume()
        self._finish_slice(processed)
        for message in (*self.front_end.greeting(), *requests):
            self._submit(message)
        logger.info("The engine is back; %d requests continue.", len(requests))

    def _lose_engine(self, error: VLLMError) -> None:
        logger.error("The engine is lost: %s", error)
        self._dead_error = error
        self._fail_everything(EngineDeadError(str(error)))

    def _fail_everything(self, error: EngineDeadError) -> None:
        self.front_end.record(None, self.front_end.outputs.fail_all(error))
        self._fail_calls(error)
        self._idle.set()

    def _fail_calls(self, error: EngineDeadError) -> None:
        for call in self._calls.values():
            if not call.done():
                call.set_exception(error)
        self._calls.clear()

    def _drop(self, request_id: str, queue: OutputQueue) -> None:
        processed = Processed()
        self.front_end.outputs.drop_queue(request_id, queue, processed)
        self._finish_slice(processed)

    def _submit(self, message: EngineCoreMessage) -> None:
        """An engine that has died is noticed by `_run`, which sends what is registered again."""
        if not self._is_restarting:
            with contextlib.suppress(EngineDeadError):
                self._client.submit(message)

    async def _call(self, method: str, *args: object) -> object:
        await self.wait_ready()
        self._check_alive()
        call_id = next(self._call_ids)
        answer: asyncio.Future[UtilityResult] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = answer
        self._submit(UtilityCall(call_id, method, list(args)))
        result = await answer
        if result.error is not None:
            raise VLLMError(result.error)
        return result.result

    def _check_alive(self) -> None:
        if self._dead_error is not None:
            raise EngineDeadError(str(self._dead_error))
        if self._is_stopped:
            raise EngineDeadError("The engine was shut down.")


    encode = unsupported("encode", "this engine serves no pooling models.")
    sleep = wake_up = unsupported("sleep", "weights and KV cache stay loaded.")
    pause_generation = resume_generation = unsupported("pause_generation", "it always runs.")
    add_lora = remove_lora = list_loras = pin_lora = unsupported("lora", "no adapters are served.")
    start_profile = stop_profile = unsupported("profile", "there is no profiler.")
    collective_rpc = unsupported("collective_rpc", "the worker takes no foreign calls.")
    reset_mm_cache = reset_encoder_cache = unsupported("reset_mm_cache", "there are no media.")
    scale_elastic_ep = unsupported("scale_elastic_ep", "there is one rank.")


AsyncLLMEngine = AsyncLLM
"""The name that older programs import."""


def _is_long(prompt: PromptType) -> bool:
    parts = prompt.values() if isinstance(prompt, Mapping) else (prompt,)
    return any(isinstance(part, (str, list)) and len(part) > LONG_PROMPT for part in parts)
