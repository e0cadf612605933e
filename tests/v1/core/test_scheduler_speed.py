"""The time budget of a step: 0.3 ms for one running request, 2 ms for 256."""

import statistics
import time

import pytest

from tests.v1.core.scheduler_harness import add, kv_config, vllm_config
from vllm.v1.core.scheduler import Scheduler
from vllm.v1.messages import ModelRunnerOutput


@pytest.mark.parametrize("windows", [(None,), (None, 512, 512, 512)], ids=["full", "hybrid"])
@pytest.mark.parametrize(("num_requests", "limit_s"), [(1, 0.3e-3), (256, 2e-3)])
def test_a_decode_step_is_cheap(windows, num_requests, limit_s):
    config = vllm_config(max_num_batched_tokens=8192, max_num_seqs=256, max_model_len=10**5)
    scheduler = Scheduler(config, kv_config(30_000, 32, windows))
    for i in range(num_requests):
        add(scheduler, f"r{i}", [i, *range(20)], max_tokens=1000, ignore_eos=True)
    times = []
    for _ in range(100):
        start = time.thread_time()
        scheduled = scheduler.schedule()
        middle = time.thread_time()
        result = ModelRunnerOutput(
            {request_id: [7] for request_id in scheduled.num_scheduled_tokens}
        )
        resume = time.thread_time()
        scheduler.update_from_output(scheduled, result)
        times.append(middle - start + time.thread_time() - resume)
    assert len(scheduled.num_scheduled_tokens) == num_requests
    assert statistics.median(times) < limit_s
