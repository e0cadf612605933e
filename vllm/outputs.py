"""What a user gets back."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Logprob:
    """One candidate token: natural-log probability, 1-based rank, text of the token."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


SampleLogprobs = list[dict[int, Logprob]]
"""One dict per output token: token id -> Logprob; the sampled token is always in it."""

PromptLogprobs = list[dict[int, Logprob] | None]
"""One entry per prompt token; the first is None because nothing precedes it."""


@dataclass(slots=True)
class RequestStateStats:
    """Times of one request in seconds; `arrival_time` is wall clock, the rest monotonic."""

    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0
    num_generation_tokens: int = 0
    num_preemptions: int = 0


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence of a request."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: SampleLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: object | None = None

    def finished(self) -> bool:
        """True once `finish_reason` is set."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """State of one request: cumulative, the delta, or final, as `output_kind` asks."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: PromptLogprobs | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestStateStats | None = None
    lora_request: object | None = None
    encoder_prompt: str | None = None
    encoder_prompt_token_ids: list[int] | None = None
    num_cached_tokens: int = 0
    kv_transfer_params: dict[str, object] | None = None


@dataclass(slots=True)
class BeamSearchSequence:
    """One beam: tokens include the prompt; `cum_logprob` is over generated tokens."""

    tokens: list[int]
    logprobs: SampleLogprobs
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The beams of one prompt, best first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)
