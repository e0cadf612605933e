"""Who runs next: requests -> SchedulerOutput, and ModelRunnerOutput -> EngineCoreOutputs.

One rule: each step moves every request's `num_computed_tokens` towards `num_tokens` within one
token budget. Chunked prefill, prefix hits, preemption and resumption are that rule.

 1. Running requests, in order: first those that need one token (decode), then prefills.
 2. If a block is missing, the last running request (fcfs) or the one with the worst priority is
    preempted: its blocks are freed, it waits in front of requests that never ran, and computes
    again what the prefix cache does not hold.
 3. If nobody was preempted: waiting requests, while tokens, sequences and blocks allow. A request
    is admitted only if all its tokens fit beside what the running prefills will still ask for.

Progress: the first running request (best priority) is preempted by nobody else, can take every
other block, and fits alone (`max_request_tokens`), so it ends; hence everyone gets there.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from vllm.exceptions import VLLMValidationError
from vllm.v1.core.kv_cache_manager import KVCacheManager, PrefixHit
from vllm.v1.core.limits import Limits
from vllm.v1.core.request_queue import RequestQueue, priority_key
from vllm.v1.messages import (
    CachedRequestData,
    EngineCoreEventType,
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    KVCacheConfig,
    ModelRunnerOutput,
    NewRequestData,
    PrefixCacheStats,
    SchedulerOutput,
    SchedulerStats,
)
from vllm.v1.request import Request, RequestStatus

if TYPE_CHECKING:
    from vllm.config import VllmConfig


@dataclass(slots=True)
class _Step:
    """The step under construction."""

    budget: int
    num_scheduled: dict[str, int] = field(default_factory=dict)
    new_blocks: dict[str, list[list[int]]] = field(default_factory=dict)
    new_reqs: list[NewRequestData] = field(default_factory=list)
    cached_reqs: list[CachedRequestData] = field(default_factory=list)
    has_preempted: bool = False


class Scheduler:
    """Owns the requests from `add_request` until they finish.

    `max_request_tokens`: prompt and output tokens of the longest request that can be served.
    """

    def __init__(self, vllm_config: "VllmConfig", kv_cache_config: KVCacheConfig) -> None:
        cache, policy = vllm_config.cache_config, vllm_config.scheduler_config.scheduling_policy
        self.limits = Limits.from_config(vllm_config, kv_cache_config)
        self.max_request_tokens = self.limits.request_tokens
        self.kv = KVCacheManager(
            kv_cache_config,
            self.limits.step_tokens,
            cache.enable_prefix_caching,
            cache.prefix_caching_hash_algo,
        )
        self.requests: dict[str, Request] = {}
        self.waiting = RequestQueue(policy)
        self.running: list[Request] = []
        self._by_priority = policy == "priority"
        self._finished_req_ids: list[str] = []
        self._sequence = count()
        self._stats = SchedulerStats()

    # ---- requests in and out -----------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Queue a request; one that can never run is refused."""
        if request.request_id in self.requests:
            raise VLLMValidationError(f"request id {request.request_id!r} is in use.", "request_id")
        limit = self.max_request_tokens + request.only_scores_prompt
        request.max_num_tokens = min(request.max_num_tokens, limit)
        if request.num_prompt_tokens < 1:
            raise VLLMValidationError("the prompt is empty; it needs at least one token.", "prompt")
        if request.num_tokens >= request.max_num_tokens:
            raise VLLMValidationError(
                f"the request has {request.num_tokens} tokens and may have at most "
                f"{request.max_num_tokens} with its output; shorten the prompt or raise "
                "max_model_len, the KV cache size or max_tokens.",
                "prompt",
            )
        request.sequence = next(self._sequence)
        request.record_event(EngineCoreEventType.QUEUED, time.monotonic())
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def finish_requests(
        self,
        request_ids: Iterable[str],
        reason: FinishReason = FinishReason.ABORT,
        error: str | None = None,
    ) -> list[EngineCoreOutput]:
        """End requests from outside, at any time; ids that are unknown or ended are ignored."""
        outputs = []
        for request_id in dict.fromkeys(request_ids):
            request = self.requests.get(request_id)
            if request is not None:
                if request.status is not RequestStatus.RUNNING:
                    self.waiting.remove(request)
                outputs.append(self._finish(request, [], reason, error=error))
        self._drop_finished()
        return outputs

    def has_unfinished_requests(self) -> bool:
        """True while a request waits or runs."""
        return bool(self.requests)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached blocks. Refused (False) while requests run, unless they are preempted."""
        if reset_running_requests:
            for request in self.running:
                self._preempt(request)
            self._drop_finished()
        return self.kv.reset()

    # ---- one step ----------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decide the next step; its tokens count as computed from here on."""
        step = _Step(self.limits.step_tokens)
        self.kv.begin_step()
        self._schedule_running(step)
        self._commit_running(step)
        if not step.has_preempted:
            self._schedule_waiting(step)
        finished, self._finished_req_ids = self._finished_req_ids, []
        self._stats.num_scheduled_tokens += (total := self.limits.step_tokens - step.budget)
        return SchedulerOutput(
            new_reqs=step.new_reqs,
            cached_reqs=step.cached_reqs,
            num_scheduled_tokens=step.num_scheduled,
            total_num_scheduled_tokens=total,
            finished_req_ids=finished,
        )

    def update_from_output(
        self, scheduler_output: SchedulerOutput, runner_output: ModelRunnerOutput
    ) -> EngineCoreOutputs:
        """Append the sampled tokens, end what is complete, and say what happened."""
        outputs = []
        sampled, errors = runner_output.sampled_token_ids, runner_output.errors
        num_running = len(self.requests)
        for request_id, num_scheduled in scheduler_output.num_scheduled_tokens.items():
            request = self.requests.get(request_id)
            if request is None or request.status is not RequestStatus.RUNNING:
                continue  # aborted or preempted while the step ran
            error = errors.get(request_id) if errors else None
            if error is not None:
                self.kv.forget_blocks(request, request.num_computed_tokens - num_scheduled)
                outputs.append(self._finish(request, [], FinishReason.ERROR, error=error))
                continue
            output = self._advance(request, num_scheduled, sampled.get(request_id), runner_output)
            if output is not None:
                outputs.append(output)
        if len(self.requests) != num_running:
            self._drop_finished()
        return self._outputs(outputs)

    def fail_step(self, scheduler_output: SchedulerOutput, message: str) -> EngineCoreOutputs:
        """The step was not computed: its requests end with an error, its blocks are forgotten."""
        self.kv.forget_step()
        ids = scheduler_output.num_scheduled_tokens
        return self._outputs(self.finish_requests(ids, FinishReason.ERROR, message))

    def make_stats(self) -> SchedulerStats:
        """State now, and what was counted since the last call."""
        stats, self._stats = self._stats, SchedulerStats()
        stats.num_running_reqs = len(self.running)
        stats.num_waiting_reqs = len(self.waiting)
        stats.kv_cache_usage = self.kv.usage
        return stats

    # ---- step 1 and 2: running ---------------------------------------------------------------

    def _schedule_running(self, step: _Step) -> None:
        prefills = []
        for request in tuple(self.running):
            missing = request.num_tokens - request.num_computed_tokens
            if missing > 1:
                prefills.append(request)
            elif missing and request.status is RequestStatus.RUNNING and step.budget:
                self._schedule_one(request, 1, step)
        for request in prefills:
            if request.status is RequestStatus.RUNNING and step.budget:
                missing = request.num_tokens - request.num_computed_tokens
                self._schedule_one(request, self._chunk(missing, step.budget), step)
        if step.has_preempted:
            self._drop_finished()

    def _schedule_one(self, request: Request, num_tokens: int, step: _Step) -> None:
        num_missing = self.kv.num_missing_blocks(request, num_tokens)
        if num_missing:
            self.kv.release_outside_window(request)
            while num_missing > self.kv.pool.num_free:
                victim = self._choose_victim()
                self._preempt(victim)
                step.has_preempted = True
                step.budget += step.num_scheduled.pop(victim.request_id, 0)
                if victim is request:
                    return
            step.new_blocks[request.request_id] = self.kv.allocate(request, num_missing)
        step.num_scheduled[request.request_id] = num_tokens
        step.budget -= num_tokens

    def _chunk(self, num_tokens: int, budget: int) -> int:
        """How many of `num_tokens` run now. The threshold matters only if others may want turns."""
        if not self.limits.is_chunked:
            return num_tokens
        if self.limits.long_prefill_tokens and len(self.requests) > 1:
            num_tokens = min(num_tokens, self.limits.long_prefill_tokens)
        return min(num_tokens, budget)

    def _choose_victim(self) -> Request:
        running = (r for r in reversed(self.running) if r.status is RequestStatus.RUNNING)
        return max(running, key=priority_key) if self._by_priority else next(running)

    def _preempt(self, request: Request) -> None:
        self.kv.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.record_event(EngineCoreEventType.PREEMPTED, time.monotonic())
        self._finished_req_ids.append(request.request_id)
        self._stats.num_preemptions += 1
        self.waiting.add(request)

    def _commit_running(self, step: _Step) -> None:
        """Nothing scheduled so far can be undone any more: count it and register its blocks."""
        for request_id, num_tokens in step.num_scheduled.items():
            request = self.requests[request_id]
            start = request.num_computed_tokens
            step.cached_reqs.append(
                CachedRequestData(request_id, step.new_blocks.get(request_id), start)
            )
            self._count_computed(request, num_tokens)

    def _count_computed(self, request: Request, num_tokens: int) -> None:
        start = request.num_computed_tokens
        if start < request.num_prompt_tokens or num_tokens > 1:
            self._stats.num_prefill_tokens += num_tokens
        request.num_computed_tokens = start + num_tokens
        self.kv.register_blocks(request, start + num_tokens)

    # ---- step 3: waiting ---------------------------------------------------------------------

    def _schedule_waiting(self, step: _Step) -> None:
        if not self.waiting:
            return
        reserved = sum(
            self.kv.num_blocks_outstanding(request)
            for request in self.running
            if request.num_tokens > request.num_computed_tokens
        )
        while self.waiting and step.budget and len(self.running) < self.limits.running_requests:
            request = self.waiting.peek()
            hit = self.kv.find_prefix(request)
            num_tokens = self._chunk(request.num_tokens - hit.num_tokens, step.budget)
            if num_tokens > step.budget or not self._has_room(request, hit, reserved):
                break
            self.waiting.pop()
            self._admit(request, hit, num_tokens, step)
            reserved += self.kv.num_blocks_outstanding(request)

    def _has_room(self, request: Request, hit: PrefixHit, reserved: int) -> bool:
        """Alone it always fits. Beside others headroom is kept: a block for each, which it will
        ask for within `block_size` steps (without it 64 requests in half the blocks that they
        need computed 39 % of their tokens again, with it 24 %), and the watermark.
        """
        needed = self.kv.num_blocks_to_admit(request, hit)
        if self.running:
            needed += reserved + max(len(self.running), self.limits.watermark_blocks)
        return needed <= self.kv.pool.num_free

    def _admit(self, request: Request, hit: PrefixHit, num_tokens: int, step: _Step) -> None:
        self._count_hit(request, hit)
        self.kv.admit(request, hit)
        self.kv.allocate(request, self.kv.num_missing_blocks(request, num_tokens))
        request.status = RequestStatus.RUNNING
        request.record_event(EngineCoreEventType.SCHEDULED, time.monotonic())
        self.running.append(request)
        step.new_reqs.append(request.to_new_request_data(self.kv.table(request).groups))
        step.num_scheduled[request.request_id] = num_tokens
        step.budget -= num_tokens
        self._count_computed(request, num_tokens)

    def _count_hit(self, request: Request, hit: PrefixHit) -> None:
        """Hits count at the first scheduling only: a request finds its own blocks again."""
        if request.has_run:
            return
        request.num_cached_tokens = hit.num_tokens
        if self.kv.enable_caching and request.reads_prefix_cache:
            stats: PrefixCacheStats = self._stats.prefix_cache
            stats.requests += 1
            stats.queries += request.num_tokens
            stats.hits += hit.num_tokens

    # ---- the end of a step -------------------------------------------------------------------

    def _advance(
        self,
        request: Request,
        num_scheduled: int,
        token_ids: list[int] | None,
        runner_output: ModelRunnerOutput,
    ) -> EngineCoreOutput | None:
        request_id = request.request_id
        prompt_logprobs = runner_output.prompt_logprobs.get(request_id)
        if prompt_logprobs is not None:
            prompt_logprobs = request.take_prompt_logprobs(
                prompt_logprobs, request.num_computed_tokens - num_scheduled
            )
        if not token_ids:
            if request.num_computed_tokens >= request.num_tokens:
                error = "the model runner gave no token for a request that was due one"
                return self._finish(request, [], FinishReason.ERROR, error=error)
            if prompt_logprobs is None:
                return None
            return EngineCoreOutput(request_id, [], new_prompt_logprobs=prompt_logprobs)
        reason = request.append_tokens(token_ids)
        if reason is None:
            output = EngineCoreOutput(
                request_id,
                token_ids,
                events=request.take_events(),
                num_cached_tokens=request.num_cached_tokens,
            )
        else:
            output = self._finish(request, token_ids, reason)
        output.new_prompt_logprobs = prompt_logprobs
        logprobs = runner_output.logprobs.get(request_id)
        if logprobs is not None:
            output.new_logprobs = logprobs[: len(token_ids)]
        return output

    def _finish(
        self,
        request: Request,
        token_ids: list[int],
        reason: FinishReason,
        error: str | None = None,
    ) -> EngineCoreOutput:
        """The only place where a request ends; `_drop_finished` then takes it out of running."""
        if request.status is RequestStatus.RUNNING:
            self.kv.free(request)
            self._finished_req_ids.append(request.request_id)
        request.status = RequestStatus.FINISHED
        del self.requests[request.request_id]
        return EngineCoreOutput(
            request.request_id,
            token_ids,
            finish_reason=reason,
            stop_reason=request.stop_token() if reason is FinishReason.STOP else None,
            events=request.take_events(),
            num_cached_tokens=request.num_cached_tokens,
            error=error,
        )

    def _drop_finished(self) -> None:
        self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]

    def _outputs(self, outputs: list[EngineCoreOutput]) -> EngineCoreOutputs:
        return EngineCoreOutputs(outputs, self.make_stats(), None, time.monotonic())

    def check_integrity(self) -> None:
        """Raise RuntimeError unless requests, queues, tables and pool agree."""
        self.kv.check_integrity()
        running = {request.request_id for request in self.running}
        waiting = {request.request_id for request in self.waiting}
        if running & waiting or running | waiting != self.requests.keys():
            raise RuntimeError("a request is not in exactly one of running and waiting")
        for request in self.requests.values():
            is_running = request.status is RequestStatus.RUNNING
            if is_running != (request.request_id in running):
                raise RuntimeError(f"status of {request.request_id} is wrong")
            if is_running:
                table = self.kv.table(request)
                if table.num_blocks * self.kv.block_size < request.num_computed_tokens:
                    raise RuntimeError(f"{request.request_id} has tokens without a block")
            elif request.num_computed_tokens:
                raise RuntimeError(f"{request.request_id} waits but has computed tokens")
