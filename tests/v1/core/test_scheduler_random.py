"""Random traffic: whatever happens, every request gets the tokens of a solo run, once."""

from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tests.v1.core.scheduler_harness import Simulation, kv_config
from vllm.exceptions import VLLMValidationError
from vllm.v1.messages import FinishReason

LAYOUTS = [(None,), (None, None), (6,), (None, 6), (None, 5, 9), (3, 11)]

configs = st.fixed_dictionaries(
    {
        "max_num_batched_tokens": st.integers(4, 40),
        "max_num_seqs": st.integers(1, 4),
        "max_num_active_seqs": st.sampled_from([None, None, 2]),
        "enable_chunked_prefill": st.sampled_from([True, True, True, False]),
        "long_prefill_token_threshold": st.sampled_from([0, 0, 3, 7]),
        "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
        "watermark": st.sampled_from([0.0, 0.0, 0.1, 0.9]),
        "enable_prefix_caching": st.sampled_from([True, True, False]),
        "max_model_len": st.sampled_from([30, 1000]),
    }
)

# Few prefixes, so that requests share blocks.
prompts = st.builds(
    lambda base, length, tail: [1 + (base * 7 + i) % 3 for i in range(length)] + tail,
    st.integers(0, 2),
    st.integers(0, 40),
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
)

requests = st.fixed_dictionaries(
    {
        "prompt": prompts,
        "max_tokens": st.sampled_from([1, 2, 10, 30, None]),
        "ignore_eos": st.booleans(),
        "stop_token_ids": st.sampled_from([[], [3], [0, 7, 9]]),
        "seed": st.integers(0, 3),
        "priority": st.integers(-1, 1),
        "cache_salt": st.sampled_from([None, None, "a", "b"]),
        "skip_reading_prefix_cache": st.sampled_from([None, True]),
    }
)

actions = st.lists(
    st.one_of(
        *[st.tuples(st.just("add"), requests)] * 3,
        *[st.tuples(st.just("step"), st.none())] * 4,
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("abort in flight"), st.integers(0, 30)),
        st.tuples(st.just("error"), st.integers(0, 30)),
        st.tuples(st.just("fail"), st.none()),
        st.tuples(st.just("reset"), st.booleans()),
    ),
    min_size=10,
    max_size=60,
)


class RandomTraffic(Simulation):
    """A simulation that carries out generated actions."""

    def act(self, action: str, argument) -> None:
        """One action of `actions`."""
        getattr(self, "_" + action.replace(" ", "_"))(argument)
        self.scheduler.check_integrity()

    def _add(self, fields: dict) -> None:
        fields = dict(fields)
        with suppress(VLLMValidationError):  # longer than the pool or max_model_len allows
            self.add(f"r{len(self.messages)}", fields.pop("prompt"), **fields)

    def _step(self, _) -> None:
        self.step()

    def _abort(self, number: int) -> None:
        ids = [f"r{number}", f"r{number + 3}", "unknown"]
        self.collect(self.scheduler.finish_requests(ids))

    def _abort_in_flight(self, number: int) -> None:
        scheduled = self.scheduler.schedule()
        self._abort(number)
        self.scheduler.check_integrity()
        result = self.worker.execute(scheduled)
        self.collect(self.scheduler.update_from_output(scheduled, result))

    def _error(self, number: int) -> None:
        scheduled = self.scheduler.schedule()
        result = self.worker.execute(scheduled)
        victims = list(scheduled.num_scheduled_tokens)[number % 4 : number % 4 + 1]
        result.errors = dict.fromkeys(victims, "fault")
        self.collect(self.scheduler.update_from_output(scheduled, result))
        assert all(self.finished[v].finish_reason is FinishReason.ERROR for v in victims)

    def _fail(self, _) -> None:
        scheduled = self.scheduler.schedule()
        self.worker.update(scheduled)
        self.collect(self.scheduler.fail_step(scheduled, "out of memory"))

    def _reset(self, preempt: bool) -> None:
        idle = not self.scheduler.running
        assert self.scheduler.reset_prefix_cache(preempt) == (idle or preempt)


@pytest.mark.parametrize("windows", LAYOUTS, ids=str)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(config=configs, num_blocks=st.integers(9, 40), todo=actions)
def test_any_traffic_gives_the_tokens_of_solo_runs(windows, config, num_blocks, todo):
    traffic = RandomTraffic(kv_config(num_blocks, 4, windows), **config)
    for action, argument in todo:
        traffic.act(action, argument)
    traffic.run()
    traffic.check_outputs()
    pool = traffic.scheduler.kv.pool
    assert pool.num_used == 0 and pool.num_free == pool.num_blocks - 1
    assert traffic.finished.keys() == traffic.messages.keys()
