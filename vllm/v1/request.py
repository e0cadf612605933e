"""The scheduler's view of a request: plain numbers and lists, no tensors.

Invariant: `num_computed_tokens` tokens have, or will have after the step in flight, keys and
values in the cache; the request is finished exactly once.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from vllm.sampling_params import SamplingParams
from vllm.v1.messages import (
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreRequest,
    FinishReason,
    NewRequestData,
    TokenLogprobs,
)


class RequestStatus(IntEnum):
    """Where a request is: WAITING and PREEMPTED are queued, RUNNING holds blocks."""

    WAITING = 0
    PREEMPTED = 1
    RUNNING = 2
    FINISHED = 3


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. `all_token_ids` is the prompt followed by what was generated."""

    request_id: str
    all_token_ids: list[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    eos_token_ids: list[int]
    stop_token_ids: frozenset[int]
    min_num_tokens: int
    max_num_tokens: int
    arrival_time: float
    seed: int = 0
    priority: int = 0
    cache_salt: str | None = None
    sequence: int = 0
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_prompt_logprobs: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    events: list[EngineCoreEvent] = field(default_factory=list)

    @classmethod
    def from_message(cls, message: EngineCoreRequest, max_total_tokens: int) -> "Request":
        """A waiting request that may grow to `max_total_tokens` tokens, prompt included.

        `min_num_tokens` and `max_num_tokens` are totals, so that the stop check of a token is
        two comparisons. Tokens generated before (resumption) count as output.
        """
        params = message.sampling_params
        num_prompt = len(message.prompt_token_ids)
        limit = max_total_tokens
        if params.max_tokens is not None:
            limit = min(limit, num_prompt + params.max_tokens)
        stop_ids = set(params.stop_token_ids or ())
        if not params.ignore_eos:
            stop_ids.update(message.eos_token_ids)
        return cls(
            request_id=message.request_id,
            all_token_ids=[*message.prompt_token_ids, *message.output_token_ids],
            num_prompt_tokens=num_prompt,
            sampling_params=params,
            eos_token_ids=message.eos_token_ids,
            stop_token_ids=frozenset(stop_ids),
            min_num_tokens=num_prompt + params.min_tokens,
            max_num_tokens=limit,
            arrival_time=message.arrival_time,
            seed=message.seed,
            priority=message.priority,
            cache_salt=message.cache_salt,
        )

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self.all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens, those before a resumption included."""
        return len(self.all_token_ids) - self.num_prompt_tokens

    @property
    def has_run(self) -> bool:
        """True if it was preempted or resumed: it queues before requests that never ran."""
        return self.num_preemptions > 0 or len(self.all_token_ids) > self.num_prompt_tokens

    @property
    def only_scores_prompt(self) -> bool:
        """True if its one output token may lie beyond the context: nothing follows it."""
        params = self.sampling_params
        return params.prompt_logprobs is not None and params.max_tokens == 1

    @property
    def reads_prefix_cache(self) -> bool:
        """False while every prompt position must be computed, or if the user said so."""
        if self.sampling_params.skip_reading_prefix_cache:
            return False
        return self.num_missing_prompt_logprobs == 0

    @property
    def num_missing_prompt_logprobs(self) -> int:
        """Positions of which the user still waits for the prompt logprobs; the first has none."""
        if self.sampling_params.prompt_logprobs is None:
            return 0
        return self.num_prompt_tokens - 1 - self.num_prompt_logprobs

    def append_tokens(self, token_ids: list[int]) -> FinishReason | None:
        """Append sampled tokens up to the first that ends the request; why it ended, or None.

        Tokens after the end are dropped from `token_ids` as well.
        """
        for position, token_id in enumerate(token_ids):
            self.all_token_ids.append(token_id)
            reason = self._stop_reason(token_id)
            if reason is not None:
                del token_ids[position + 1 :]
                return reason
        return None

    def stop_token(self) -> int | None:
        """The stop token id that ended it, None if that was the end-of-sequence token."""
        last = self.all_token_ids[-1]
        is_eos = not self.sampling_params.ignore_eos and last in self.eos_token_ids
        return None if is_eos else last

    def take_prompt_logprobs(
        self, entries: list[TokenLogprobs], num_computed_before: int
    ) -> list[TokenLogprobs] | None:
        """Those of `entries` that were not delivered yet; None if there are none.

        `entries[i]` belongs to prompt position `num_computed_before + 1 + i`. After a preemption
        the same positions are computed again.
        """
        num_known = max(0, self.num_prompt_logprobs - num_computed_before)
        entries = entries[num_known:] if num_known else entries
        self.num_prompt_logprobs += len(entries)
        return entries or None

    def record_event(self, kind: EngineCoreEventType, timestamp: float) -> None:
        """Note a point of its life for the latency metrics."""
        self.events.append(EngineCoreEvent(kind, timestamp))

    def take_events(self) -> list[EngineCoreEvent] | None:
        """Events since the last call; None if there are none."""
        if not self.events:
            return None
        events, self.events = self.events, []
        return events

    def to_new_request_data(self, block_ids: list[list[int]]) -> NewRequestData:
        """What the worker needs to start it; `block_ids` has one list per KV group."""
        return NewRequestData(
            request_id=self.request_id,
            token_ids=self.all_token_ids.copy(),
            num_prompt_tokens=self.num_prompt_tokens,
            sampling_params=self.sampling_params,
            seed=self.seed,
            eos_token_ids=self.eos_token_ids,
            block_ids=[table.copy() for table in block_ids],
            num_computed_tokens=self.num_computed_tokens,
        )

    def _stop_reason(self, token_id: int) -> FinishReason | None:
        num_tokens = len(self.all_token_ids)
        if token_id in self.stop_token_ids and num_tokens >= self.min_num_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_tokens >= self.max_num_tokens else None
