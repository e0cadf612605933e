"""The waiting requests in the order in which they are admitted.

fcfs: requests that ran before (preempted, resumed), then the others; each in order of arrival
at the scheduler. priority: lower value first, then earlier arrival, then id.
Removing is lazy: an entry of the heap whose request left the queue is skipped.
"""

import heapq
from collections.abc import Callable, Iterator

from vllm.exceptions import ConfigError
from vllm.v1.request import Request

Key = tuple[int, float, str]


def fcfs_key(request: Request) -> Key:
    """Order of first come, first served."""
    return (0 if request.has_run else 1, request.sequence, "")


def priority_key(request: Request) -> Key:
    """Order of the priority policy; the largest key among running requests is preempted."""
    return (request.priority, request.arrival_time, request.request_id)


POLICIES: dict[str, Callable[[Request], Key]] = {"fcfs": fcfs_key, "priority": priority_key}


class RequestQueue:
    """A priority queue with removal. A request is in it at most once."""

    def __init__(self, policy: str) -> None:
        if policy not in POLICIES:
            raise ConfigError(
                f"scheduling_policy is {policy!r}; it must be one of {', '.join(POLICIES)}."
            )
        self._key = POLICIES[policy]
        self._heap: list[tuple[Key, int, Request]] = []
        self._tickets: dict[str, int] = {}
        self._next_ticket = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Request]:
        """The requests, in no particular order."""
        return (request for _, ticket, request in self._heap if self._is_live(ticket, request))

    def add(self, request: Request) -> None:
        """Put the request where its key says."""
        if request.request_id in self._tickets:
            raise ValueError(f"request {request.request_id!r} is already in the queue")
        self._next_ticket += 1
        self._tickets[request.request_id] = self._next_ticket
        heapq.heappush(self._heap, (self._key(request), self._next_ticket, request))

    def peek(self) -> Request:
        """The next request."""
        while not self._is_live(*self._heap[0][1:]):
            heapq.heappop(self._heap)
        return self._heap[0][2]

    def pop(self) -> Request:
        """Take the next request out."""
        request = self.peek()
        heapq.heappop(self._heap)
        del self._tickets[request.request_id]
        return request

    def remove(self, request: Request) -> None:
        """Take this request out."""
        del self._tickets[request.request_id]
        if len(self._heap) > 2 * len(self._tickets) + 64:
            self._heap = [entry for entry in self._heap if self._is_live(*entry[1:])]
            heapq.heapify(self._heap)

    def _is_live(self, ticket: int, request: Request) -> bool:
        return self._tickets.get(request.request_id) == ticket
