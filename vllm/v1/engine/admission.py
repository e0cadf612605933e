"""How many requests may wait: beyond the limits a new one is refused, so that none waits for ever.

The front end does not see the scheduler's queue; it knows what is in flight and what the last step
reported. A request waits if more are in flight than may run at once, or, while the last step left
some waiting, if it came after them.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from vllm.config.resolved import resolved
from vllm.exceptions import MaxQueuedTokensError, QueueOverflowError
from vllm.v1.engine.request_state import RequestState

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class AdmissionControl:
    """The two limits; costs nothing while neither is set."""

    def __init__(self, vllm_config: "VllmConfig") -> None:
        scheduler = vllm_config.scheduler_config
        self._max_requests = scheduler.max_num_queued_reqs
        self._max_tokens = scheduler.max_num_queued_tokens
        max_num_seqs = resolved("max_num_seqs", scheduler.max_num_seqs)
        self._max_running = min(max_num_seqs, scheduler.max_num_active_seqs or max_num_seqs)
        self._num_waiting = 0
        self._num_since_step = 0

    def admit(
        self, in_flight: Collection[RequestState], num_new: int, num_prompt_tokens: int
    ) -> None:
        """Let in `num_new` requests with one prompt, or raise QueueOverflowError."""
        if self._max_requests is None and self._max_tokens is None:
            return
        num_queued = self._num_queued(len(in_flight), num_new)
        if self._max_requests is not None and num_queued > self._max_requests:
            raise QueueOverflowError(
                f"{num_queued} requests would be waiting and {self._max_requests} may "
                "(--max-num-queued-reqs); try again later.",
                code="max_num_queued_reqs",
            )
        if self._max_tokens is not None and num_queued:
            waiting = [
                len(state.request.prompt_token_ids) for state in in_flight if not state.has_run
            ]
            num_tokens = sum([*waiting, *[num_prompt_tokens] * num_new][-num_queued:])
            if num_tokens > self._max_tokens:
                raise MaxQueuedTokensError(
                    f"{num_tokens} prompt tokens would be waiting and {self._max_tokens} may "
                    "(--max-num-queued-tokens); try again later.",
                    code="max_num_queued_tokens",
                )
        self._num_since_step += num_new

    def on_step(self, num_waiting: int) -> None:
        """The scheduler's own count after a step."""
        self._num_waiting = num_waiting
        self._num_since_step = 0

    def _num_queued(self, num_in_flight: int, num_new: int) -> int:
        beyond = max(0, num_in_flight + num_new - self._max_running)
        if not self._num_waiting:
            return beyond
        return max(beyond, self._num_waiting + self._num_since_step + num_new)
