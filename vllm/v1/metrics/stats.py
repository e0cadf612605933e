"""Numbers of one engine step and of one request, made by the front end from engine outputs.

Clocks: `arrival_time` is the front end's wall clock, everything else the engine's monotonic one,
which processes of a machine share. Invariant: `finish` is called once per request, whatever ended
it, so finished requests add up to received ones and token counters to per-request histograms.
"""

import time
from dataclasses import dataclass, field

from vllm.outputs import RequestStateStats
from vllm.v1.messages import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, FinishReason


@dataclass(slots=True)
class FinishedRequestStats:
    """One request that ended. A time is None if the request never got that far."""

    finish_reason: FinishReason
    num_prompt_tokens: int
    num_generation_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    max_tokens_param: int | None
    e2e_latency_s: float
    queued_time_s: float | None = None
    prefill_time_s: float | None = None
    decode_time_s: float | None = None
    inference_time_s: float | None = None
    time_per_output_token_s: float | None = None


@dataclass(slots=True)
class IterationStats:
    """What one frame of engine outputs brought; `engine_ts` is the frame's timestamp."""

    engine_ts: float
    wall_ts: float = field(default_factory=time.time)
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    time_to_first_tokens_s: list[float] = field(default_factory=list)
    inter_token_latencies_s: list[float] = field(default_factory=list)
    finished: list[FinishedRequestStats] = field(default_factory=list)
    params_n: list[int] = field(default_factory=list)
    max_generation_tokens: list[int] = field(default_factory=list)

    def record(
        self, output: EngineCoreOutput, request: RequestStateStats, num_prompt_tokens: int
    ) -> None:
        """Account one output of a request in the step and in the request's own numbers."""
        if output.events:
            _apply_events(output.events, request)
        num_new = len(output.new_token_ids)
        if not num_new:
            return
        if request.num_generation_tokens:
            self.inter_token_latencies_s.append(self.engine_ts - request.last_token_ts)
        else:
            request.first_token_ts = self.engine_ts
            request.first_token_latency = max(0.0, self.wall_ts - request.arrival_time)
            self.time_to_first_tokens_s.append(request.first_token_latency)
            self.num_prompt_tokens += num_prompt_tokens
            self.num_cached_tokens += output.num_cached_tokens
            self.num_computed_prompt_tokens += num_prompt_tokens - output.num_cached_tokens
        request.last_token_ts = self.engine_ts
        request.num_generation_tokens += num_new
        self.num_generation_tokens += num_new

    def finish(
        self,
        request: RequestStateStats,
        reason: FinishReason,
        num_prompt_tokens: int,
        num_cached_tokens: int = 0,
        max_tokens: int | None = None,
    ) -> FinishedRequestStats:
        """Account the end of a request, for any reason, by the engine or by the front end."""
        stats = FinishedRequestStats(
            finish_reason=reason,
            num_prompt_tokens=num_prompt_tokens,
            num_generation_tokens=request.num_generation_tokens,
            num_cached_tokens=num_cached_tokens,
            num_preemptions=request.num_preemptions,
            max_tokens_param=max_tokens,
            e2e_latency_s=max(0.0, self.wall_ts - request.arrival_time),
        )
        if request.scheduled_ts:
            stats.queued_time_s = request.scheduled_ts - request.queued_ts
        if request.num_generation_tokens:
            _set_token_times(stats, request)
        else:  # its prompt has not been counted by a first token
            self.num_prompt_tokens += num_prompt_tokens
        self.finished.append(stats)
        return stats

    def finish_group(self, n: int, max_generation_tokens: int) -> None:
        """Account the end of a user's request: all its `n` sequences have finished."""
        self.params_n.append(n)
        self.max_generation_tokens.append(max_generation_tokens)


def _apply_events(events: list[EngineCoreEvent], request: RequestStateStats) -> None:
    """A preemption resets neither the time of queueing nor that of the first scheduling."""
    for event in events:
        if event.type == EngineCoreEventType.QUEUED:
            request.queued_ts = request.queued_ts or event.timestamp
        elif event.type == EngineCoreEventType.SCHEDULED:
            request.scheduled_ts = request.scheduled_ts or event.timestamp
        else:
            request.num_preemptions += 1


def _set_token_times(stats: FinishedRequestStats, request: RequestStateStats) -> None:
    stats.decode_time_s = request.last_token_ts - request.first_token_ts
    if request.scheduled_ts:
        stats.prefill_time_s = request.first_token_ts - request.scheduled_ts
        stats.inference_time_s = request.last_token_ts - request.scheduled_ts
    if request.num_generation_tokens > 1:
        num_intervals = request.num_generation_tokens - 1
        stats.time_per_output_token_s = stats.decode_time_s / num_intervals
