"""The line of the stats log, letter by letter, and its level."""

import logging

import pytest

from vllm.v1.messages import PrefixCacheStats, SchedulerStats
from vllm.v1.metrics.loggers import LoggingStatLogger, RecentHitRate
from vllm.v1.metrics.stats import IterationStats


def scheduler_stats(**fields) -> SchedulerStats:
    hits = fields.pop("hits", (0, 0, 0))
    return SchedulerStats(**fields, prefix_cache=PrefixCacheStats(*hits))


def test_line_of_an_idle_engine():
    assert LoggingStatLogger().line(10.0) == (
        "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, "
        "Running: 0 reqs, Waiting: 0 reqs, CPU KV cache usage: 0.0%"
    )


def test_line_of_a_busy_engine():
    stat_logger = LoggingStatLogger(engine_idx=12)
    stat_logger.record(
        scheduler_stats(num_prefill_tokens=50, num_preemptions=1, hits=(1, 90, 30)), None
    )
    generated = IterationStats(1.0, num_generation_tokens=25)
    stat_logger.record(
        scheduler_stats(
            num_running_reqs=3,
            num_waiting_reqs=2,
            kv_cache_usage=0.1234,
            num_prefill_tokens=51,
            num_preemptions=2,
            hits=(1, 10, 10),
        ),
        generated,
    )
    stat_logger.record(None, generated)
    assert stat_logger.line(10.0) == (
        "Engine 012: Avg prompt throughput: 10.1 tokens/s, Avg generation throughput: 5.0 "
        "tokens/s, Running: 3 reqs, Waiting: 2 reqs, Preemptions: 3, CPU KV cache usage: 12.3%, "
        "Prefix cache hit rate: 40.0%"
    )


@pytest.fixture
def records(monkeypatch):
    """Records of the module's logger; the package's root does not propagate."""
    found: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = found.append
    target = logging.getLogger("vllm.v1.metrics.loggers")
    monkeypatch.setattr(target, "level", logging.DEBUG)
    target.addHandler(handler)
    yield found
    target.removeHandler(handler)


def test_level_is_debug_after_two_intervals_without_traffic(records):
    stat_logger = LoggingStatLogger()
    busy = IterationStats(1.0, num_generation_tokens=1)
    for traffic in (False, True, False, False, True):
        if traffic:
            stat_logger.record(scheduler_stats(num_prefill_tokens=5), busy)
        stat_logger.log()
    assert [record.levelname for record in records] == ["DEBUG", "INFO", "INFO", "DEBUG", "INFO"]
    assert records[0].getMessage().startswith("Engine 000: Avg prompt throughput: 0.0 tokens/s")


def test_an_interval_starts_from_nothing(records):
    stat_logger = LoggingStatLogger()
    stat_logger.record(
        scheduler_stats(num_prefill_tokens=5, num_preemptions=1, num_running_reqs=2), None
    )
    stat_logger.log()
    assert "Preemptions: 1" in records[0].getMessage()
    assert stat_logger.line(1.0) == (
        "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, "
        "Running: 2 reqs, Waiting: 0 reqs, CPU KV cache usage: 0.0%"
    )


def test_hit_rate_covers_recent_requests():
    rate = RecentHitRate(num_requests=3)
    assert rate.rate == 0.0
    rate.add(PrefixCacheStats(2, 100, 0))
    rate.add(PrefixCacheStats(0, 0, 0))
    assert rate.rate == 0.0
    rate.add(PrefixCacheStats(2, 100, 100))
    assert rate.rate == 0.5, "dropping the first frame would leave two requests"
    rate.add(PrefixCacheStats(1, 100, 50))
    assert rate.rate == 0.75
    rate.add(PrefixCacheStats(5, 10, 1))
    assert (rate.num_queries, rate.num_hits) == (10, 1)
