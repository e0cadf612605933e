"""Numbers of steps and requests, computed here by hand from invented clocks."""

import random

import pytest

from vllm.outputs import RequestStateStats
from vllm.v1.messages import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, FinishReason
from vllm.v1.metrics.stats import IterationStats

QUEUED, SCHEDULED, PREEMPTED = (
    EngineCoreEventType.QUEUED,
    EngineCoreEventType.SCHEDULED,
    EngineCoreEventType.PREEMPTED,
)


def output(num_tokens=1, events=(), cached=0) -> EngineCoreOutput:
    made = [EngineCoreEvent(kind, timestamp) for kind, timestamp in events]
    return EngineCoreOutput("r", [7] * num_tokens, events=made or None, num_cached_tokens=cached)


def test_times_of_a_request_that_was_preempted():
    request = RequestStateStats(arrival_time=1000.0)
    first = IterationStats(engine_ts=20.0, wall_ts=1003.0)
    first.record(output(1, [(QUEUED, 11.0), (SCHEDULED, 15.0)], cached=4), request, 10)
    assert first.time_to_first_tokens_s == [3.0]
    assert first.inter_token_latencies_s == []
    assert (first.num_prompt_tokens, first.num_cached_tokens) == (10, 4)
    assert (first.num_computed_prompt_tokens, first.num_generation_tokens) == (6, 1)

    second = IterationStats(engine_ts=26.0, wall_ts=1009.0)
    second.record(output(2, [(PREEMPTED, 21.0), (SCHEDULED, 24.0)], cached=4), request, 10)
    assert second.time_to_first_tokens_s == []
    assert second.inter_token_latencies_s == [6.0]
    assert (second.num_prompt_tokens, second.num_generation_tokens) == (0, 2)

    end = second.finish(request, FinishReason.LENGTH, 10, 4, max_tokens=3)
    assert second.finished == [end]
    assert (end.finish_reason, end.max_tokens_param) == (FinishReason.LENGTH, 3)
    assert (end.num_prompt_tokens, end.num_generation_tokens, end.num_cached_tokens) == (10, 3, 4)
    assert end.num_preemptions == 1
    assert end.e2e_latency_s == 9.0
    assert end.queued_time_s == 15.0 - 11.0
    assert end.prefill_time_s == 20.0 - 15.0
    assert end.decode_time_s == 26.0 - 20.0
    assert end.inference_time_s == 26.0 - 15.0
    assert end.time_per_output_token_s == 6.0 / 2


def test_a_request_that_was_aborted_in_the_queue():
    request, step = RequestStateStats(arrival_time=50.0), IterationStats(5.0, wall_ts=52.0)
    end = step.finish(request, FinishReason.ABORT, 100)
    assert end.e2e_latency_s == 2.0
    assert end.queued_time_s is end.prefill_time_s is end.decode_time_s is None
    assert end.inference_time_s is end.time_per_output_token_s is None
    assert step.num_prompt_tokens == 100, "prompt tokens count once per request"
    assert step.num_computed_prompt_tokens == 0


def test_one_token_has_no_time_per_output_token():
    request, step = RequestStateStats(), IterationStats(5.0)
    step.record(output(1, [(QUEUED, 1.0), (SCHEDULED, 2.0)]), request, 3)
    assert step.finish(request, FinishReason.STOP, 3).time_per_output_token_s is None


def test_a_wall_clock_that_was_set_back_gives_no_negative_latency():
    request, step = RequestStateStats(arrival_time=1e12), IterationStats(5.0, wall_ts=10.0)
    step.record(output(), request, 3)
    assert step.time_to_first_tokens_s == [0.0]
    assert step.finish(request, FinishReason.STOP, 3).e2e_latency_s == 0.0


def test_prompt_logprobs_alone_are_no_token():
    request, step = RequestStateStats(), IterationStats(5.0)
    step.record(output(0), request, 3)
    assert step.time_to_first_tokens_s == step.inter_token_latencies_s == []
    assert step.num_prompt_tokens == 0


@pytest.mark.parametrize("seed", range(5))
def test_sums_over_finished_requests_equal_the_token_counters(seed):
    rng, requests = random.Random(seed), {}
    prompt_total = generation_total = finished_prompt = finished_generation = num_finished = 0
    for i in range(300):
        requests[i] = RequestStateStats(arrival_time=float(i)), rng.randint(1, 50)
        step = IterationStats(float(i))
        for key in rng.sample(sorted(requests), min(4, len(requests))):
            request, prompt = requests[key]
            step.record(output(rng.randint(0, 2)), request, prompt)
            if rng.random() < 0.4 or i == 299:
                step.finish(request, rng.choice(list(FinishReason)), prompt)
                del requests[key]
        if i == 299:
            for request, prompt in requests.values():
                step.finish(request, FinishReason.ABORT, prompt)
        prompt_total += step.num_prompt_tokens
        generation_total += step.num_generation_tokens
        num_finished += len(step.finished)
        finished_prompt += sum(end.num_prompt_tokens for end in step.finished)
        finished_generation += sum(end.num_generation_tokens for end in step.finished)
    assert num_finished == 300
    assert (finished_prompt, finished_generation) == (prompt_total, generation_total)
