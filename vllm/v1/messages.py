"""Every message that crosses a layer or a process. Plain data, encoded as msgpack.

Arrays of tokens are lists here; numpy and tensors stay below the worker. Structs that are made
once per token and request have gc=False: they form no cycles, and tracking them made up half of
the front end's time per token.
"""

from enum import IntEnum

import msgspec

from vllm.sampling_params import SamplingParams


class FinishReason(IntEnum):
    """Why a request ended; `str()` gives the word that users see."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4

    def __str__(self) -> str:
        return self.name.lower()


class EngineCoreEventType(IntEnum):
    """A point in the life of a request, for latency metrics."""

    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3


class EngineCoreEvent(msgspec.Struct, array_like=True, gc=False):
    """`type` happened at `timestamp` (monotonic seconds of the engine process)."""

    type: EngineCoreEventType
    timestamp: float


# ---- front end -> engine core ----------------------------------------------------------------


class EngineCoreRequest(msgspec.Struct, array_like=True):
    """One sequence to generate. `output_token_ids` are tokens made earlier (resumption)."""

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    arrival_time: float
    eos_token_ids: list[int] = []
    seed: int = 0
    priority: int = 0
    cache_salt: str | None = None
    output_token_ids: list[int] = []
    trace_headers: dict[str, str] | None = None


class UtilityCall(msgspec.Struct, array_like=True):
    """A control call (reset_prefix_cache, profile ...); answered by a UtilityResult."""

    call_id: int
    method: str
    args: list[object] = []


# ---- engine core -> front end ----------------------------------------------------------------


class TokenLogprobs(msgspec.Struct, array_like=True, gc=False):
    """Candidates of one position: the chosen token first, then the top ones, best first."""

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]


class EngineCoreOutput(msgspec.Struct, array_like=True, gc=False):
    """What one step added to one request."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: list[TokenLogprobs] | None = None
    new_prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    events: list[EngineCoreEvent] | None = None
    num_cached_tokens: int = 0
    error: str | None = None


class PrefixCacheStats(msgspec.Struct, array_like=True):
    """Counts of one step: requests looked up, tokens asked for, tokens found."""

    requests: int = 0
    queries: int = 0
    hits: int = 0


class SchedulerStats(msgspec.Struct, array_like=True):
    """State of the scheduler after a step; rates and sums are made by the front end."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    num_preemptions: int = 0
    num_scheduled_tokens: int = 0
    num_prefill_tokens: int = 0
    prefix_cache: PrefixCacheStats = msgspec.field(default_factory=PrefixCacheStats)


class UtilityResult(msgspec.Struct, array_like=True):
    """Answer to a UtilityCall; `error` is set if it failed."""

    call_id: int
    result: object = None
    error: str | None = None


class EngineCoreOutputs(msgspec.Struct, array_like=True):
    """Everything one step tells the front end, in one frame."""

    outputs: list[EngineCoreOutput] = []
    stats: SchedulerStats | None = None
    utility: UtilityResult | None = None
    timestamp: float = 0.0


# ---- scheduler -> worker ---------------------------------------------------------------------


class NewRequestData(msgspec.Struct):
    """A request that the worker sees for the first time, or again after a preemption.

    `block_ids` has one list per KV group. `token_ids` are prompt + tokens generated so far.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    seed: int
    eos_token_ids: list[int]
    block_ids: list[list[int]]
    num_computed_tokens: int


class CachedRequestData(msgspec.Struct, gc=False):
    """What changed for a request that the worker knows: blocks to append per KV group.

    `num_computed_tokens` is the count before the step. Blocks that left a sliding window may
    belong to others by now; the worker's table keeps their ids but no kernel may read them.
    """

    request_id: str
    new_block_ids: list[list[int]] | None
    num_computed_tokens: int


class SchedulerOutput(msgspec.Struct):
    """One step: who runs, how many tokens each, with which blocks.

    The order of `num_scheduled_tokens` is the order of the batch. Requests in
    `finished_req_ids` (ended, aborted or preempted) leave the worker before the step.
    A request may share blocks that another request of the same step fills: in every layer the
    keys and values of the whole step are written before anything attends.
    """

    new_reqs: list[NewRequestData]
    cached_reqs: list[CachedRequestData]
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    finished_req_ids: list[str]


# ---- worker -> scheduler ---------------------------------------------------------------------


class ModelRunnerOutput(msgspec.Struct):
    """Result of one step, by request id; a request still in prefill has no tokens.

    `prompt_logprobs` are those of the positions that this step computed, so a chunk that starts
    at position c gives those of prompt tokens c + 1, c + 2, ... (the first token has none).
    `errors` holds requests whose own data made the step fail (a custom logits processor that
    raised, NaN logits): they end, the others go on.
    """

    sampled_token_ids: dict[str, list[int]]
    logprobs: dict[str, list[TokenLogprobs]] = {}
    prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
    errors: dict[str, str] = {}


# ---- KV cache layout -------------------------------------------------------------------------


class KVLayerSpec(msgspec.Struct, frozen=True):
    """What one attention layer stores per token; `window` is None for full attention."""

    num_kv_heads: int
    head_dim: int
    window: int | None = None


class KVCacheGroup(msgspec.Struct, frozen=True):
    """Layers that share one block table. `layers[i]` lives in KV tensor i."""

    layers: tuple[int, ...]
    window: int | None


class KVCacheConfig(msgspec.Struct, frozen=True):
    """The pool: `num_blocks` pages of `block_size` tokens, shared by all groups.

    A page holds one block of each of `num_tensors` layers; block 0 is reserved.
    """

    num_blocks: int
    block_size: int
    num_tensors: int
    groups: tuple[KVCacheGroup, ...]
