"""The waiting queue against sorting."""

import random

import pytest

from tests.v1.core.scheduler_harness import message
from vllm.exceptions import ConfigError
from vllm.v1.core.request_queue import RequestQueue
from vllm.v1.request import Request


def make(number: int, **changes) -> Request:
    request = Request.from_message(message(f"r{number:04}", [1], **changes), 100)
    request.sequence = number
    return request


def drain(queue: RequestQueue) -> list[str]:
    return [queue.pop().request_id for _ in range(len(queue))]


def test_fcfs_is_order_of_arrival_with_those_that_ran_in_front():
    queue = RequestQueue("fcfs")
    requests = [make(i, arrival_time=-i) for i in range(6)]
    requests[4].num_preemptions = 1
    requests[2].all_token_ids.append(7)  # resumed: it has output
    for i in (3, 0, 5, 4, 1, 2):
        queue.add(requests[i])
    assert drain(queue) == ["r0002", "r0004", "r0000", "r0001", "r0003", "r0005"]


def test_priority_is_value_then_arrival_then_id():
    queue = RequestQueue("priority")
    for number, (priority, arrival) in enumerate(
        [(1, 0.0), (0, 2.0), (0, 1.0), (-5, 9.0), (0, 1.0)]
    ):
        queue.add(make(number, priority=priority, arrival_time=arrival))
    assert drain(queue) == ["r0003", "r0002", "r0004", "r0001", "r0000"]


def test_random_adds_and_removals():
    rng, queue, model = random.Random(3), RequestQueue("priority"), {}
    for number in range(3000):
        if model and rng.random() < 0.45:
            request = model.pop(rng.choice(list(model)))
            queue.remove(request)
        elif model and rng.random() < 0.2:
            first = min(model.values(), key=lambda r: (r.priority, r.arrival_time, r.request_id))
            assert queue.peek() is queue.pop() is model.pop(first.request_id)
        else:
            request = make(number, priority=rng.randint(0, 9), arrival_time=rng.random())
            queue.add(request)
            model[request.request_id] = request
        assert len(queue) == len(model)
        assert len(queue._heap) <= 2 * len(model) + 65
    assert {request.request_id for request in queue} == model.keys()


def test_a_request_can_come_back():
    queue, request = RequestQueue("fcfs"), make(1)
    for _ in range(3):
        queue.add(request)
        queue.remove(request)
    queue.add(request)
    assert drain(queue) == ["r0001"]
    queue.add(request)
    with pytest.raises(ValueError, match="already in the queue"):
        queue.add(request)


def test_unknown_policy():
    with pytest.raises(ConfigError, match="'lifo'; it must be one of fcfs, priority"):
        RequestQueue("lifo")
