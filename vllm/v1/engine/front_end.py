"""What the synchronous and the asynchronous front end share: everything but waiting.

Owns the tokenizer, the checks, the running requests and the numbers. It gives messages for the
engine and takes its frames; which client carries them is its owner's affair.
"""

import itertools
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from vllm import envs
from vllm.exceptions import VLLMValidationError
from vllm.inputs import PromptType
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.admission import AdmissionControl
from vllm.v1.engine.generation_config import GenerationConfig
from vllm.v1.engine.input_processor import InputProcessor, SeedSource
from vllm.v1.engine.output_processor import OutputProcessor, Processed
from vllm.v1.engine.output_queue import OutputQueue
from vllm.v1.engine.parallel_sampling import fan_out
from vllm.v1.messages import EngineCoreRequest, SchedulerStats, UtilityCall
from vllm.v1.metrics.loggers import StatLogger
from vllm.v1.serial import EngineCoreMessage

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.transformers_utils.tokenizer import Tokenizer

MAX_RESTARTS = 3
"""An engine that dies more often than this within RESTART_WINDOW_S stays dead."""

RESTART_WINDOW_S = 600.0

NO_ANSWER = -1
"""Id of a control call whose answer nobody waits for."""


class FrontEnd:
    """Requests in, engine messages out; engine frames in, outputs out."""

    def __init__(
        self,
        vllm_config: "VllmConfig",
        stat_loggers: Sequence[StatLogger] = (),
        next_seed: SeedSource | None = None,
    ) -> None:
        self.vllm_config = vllm_config
        self.stat_loggers = list(stat_loggers)
        self.generation_config = GenerationConfig(vllm_config)
        self.inputs = InputProcessor(
            vllm_config,
            self.get_tokenizer,
            next_seed or (lambda: secrets.randbits(63)),
            self.generation_config.eos_token_ids,
        )
        self.outputs = OutputProcessor(
            self.get_tokenizer, vllm_config.scheduler_config.stream_interval
        )
        self.admission = AdmissionControl(vllm_config)
        self._next_number = itertools.count()
        self._tokenizer_lock = threading.Lock()
        self._restart_times: list[float] = []

    def get_tokenizer(self) -> "Tokenizer | None":
        """The model's tokenizer; None with --skip-tokenizer-init. Any thread may ask first."""
        with self._tokenizer_lock:
            return self._tokenizer

    @cached_property
    def _tokenizer(self) -> "Tokenizer | None":
        model = self.vllm_config.model_config
        if model.skip_tokenizer_init:
            return None
        from vllm.transformers_utils.tokenizer import get_tokenizer

        return get_tokenizer(model.tokenizer_path, model.tokenizer_mode)

    def greeting(self) -> list[EngineCoreMessage]:
        """What a new engine must be told before its first request."""
        tokenizer = self.get_tokenizer()
        if tokenizer is None:
            return []
        call = UtilityCall(NO_ANSWER, "call_worker", ["limit_tokens", tokenizer.vocab_size])
        return [call]

    def make_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        *,
        arrival_time: float | None = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: dict[str, str] | None = None,
    ) -> tuple[str | None, EngineCoreRequest]:
        """Check and tokenize; may take long for a long text, and touches no shared state."""
        if not isinstance(params, SamplingParams):
            raise VLLMValidationError(
                f"sampling_params is a {type(params).__name__}; it must be SamplingParams.",
                param="sampling_params",
            )
        return self.inputs.process(
            request_id,
            prompt,
            params,
            arrival_time=arrival_time,
            priority=priority,
            tokenization_kwargs=tokenization_kwargs,
            trace_headers=trace_headers,
        )

    def register(
        self, request: EngineCoreRequest, prompt: str | None, queue: OutputQueue | None
    ) -> list[EngineCoreRequest]:
        """Admit a checked request; returns what to send to the engine."""
        request_id, n = request.request_id, request.sampling_params.n
        children = fan_out(request, self._engine_ids(request_id, n))
        self.admission.admit(self.outputs.states.values(), n, len(request.prompt_token_ids))
        self.outputs.add_request(request, children, prompt, queue)
        return children

    def record(self, scheduler_stats: SchedulerStats | None, processed: Processed | None) -> None:
        """Pass numbers on to the stat loggers."""
        if scheduler_stats is not None:
            self.admission.on_step(scheduler_stats.num_waiting_reqs)
        iteration = None if processed is None else processed.stats
        for stat_logger in self.stat_loggers:
            stat_logger.record(scheduler_stats, iteration)

    def may_restart(self) -> bool:
        """Count one death of the engine; False if there have been too many."""
        now = time.monotonic()
        self._restart_times = [t for t in self._restart_times if now - t < RESTART_WINDOW_S]
        self._restart_times.append(now)
        return len(self._restart_times) <= MAX_RESTARTS

    def default_sampling_params(self) -> dict[str, Any]:
        """The model's own sampling defaults, as SamplingParams fields."""
        return self.generation_config.sampling_defaults()

    def _engine_ids(self, request_id: str, n: int) -> list[str]:
        """Ids of the engine requests. They are never the caller's, who could choose a used one."""
        if not envs.VLLM_DISABLE_REQUEST_ID_RANDOMIZATION:
            request_id = f"{request_id}-{next(self._next_number):x}"
        return [request_id] if n == 1 else [f"{index}_{request_id}" for index in range(n)]


def new_queue(params: SamplingParams) -> OutputQueue:
    """A queue that merges as the request's output kind needs."""
    return OutputQueue(params.output_kind is RequestOutputKind.DELTA)
