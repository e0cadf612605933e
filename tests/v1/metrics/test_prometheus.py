"""The text of /metrics, read back by prometheus_client's own parser."""

import subprocess
import sys
import time
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from vllm.exceptions import ConfigError
from vllm.outputs import RequestStateStats
from vllm.v1.messages import (
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreOutput,
    FinishReason,
    PrefixCacheStats,
    SchedulerStats,
)
from vllm.v1.metrics.buckets import bucket_families
from vllm.v1.metrics.loggers import LoggingStatLogger
from vllm.v1.metrics.prometheus import PrometheusStatLogger
from vllm.v1.metrics.reader import Counter, Gauge, Histogram, read_metrics
from vllm.v1.metrics.stats import IterationStats

ENGINE = {"model_name": 'a "model"\n', "engine": "0"}


@dataclass(frozen=True)
class CacheConfig:
    block_size: int = 32
    num_gpu_blocks: int = 77
    kv_cache_memory_bytes: int | None = None


def stat_logger(custom=None, max_model_len=1000) -> PrometheusStatLogger:
    return PrometheusStatLogger(
        SimpleNamespace(
            model_config=SimpleNamespace(
                served_model_name=[ENGINE["model_name"], "alias"], max_model_len=max_model_len
            ),
            cache_config=CacheConfig(),
            observability_config=SimpleNamespace(custom_histogram_buckets=custom),
        )
    )


def scrape(logger: PrometheusStatLogger) -> dict:
    """(sample name, labels besides the engine's) -> value."""
    samples = {}
    for family in text_string_to_metric_families(logger.render().decode()):
        for sample in family.samples:
            if not sample.name.startswith("vllm:"):
                continue
            labels = dict(sample.labels)
            assert labels.pop("model_name") == ENGINE["model_name"]
            if not sample.name.startswith("vllm:admission_rejections"):
                assert labels.pop("engine") == "0"
            key = (sample.name, tuple(sorted(labels.items())))
            assert key not in samples, "a series appears twice"
            samples[key] = sample.value
    return samples


def finished_request(step: IterationStats, reason=FinishReason.STOP) -> None:
    """10 prompt tokens, 4 of them cached; queued 0.4 s, prefill 0.2 s, one token."""
    request = RequestStateStats(arrival_time=step.wall_ts - 0.7)
    events = [
        EngineCoreEvent(EngineCoreEventType.QUEUED, step.engine_ts - 0.6),
        EngineCoreEvent(EngineCoreEventType.SCHEDULED, step.engine_ts - 0.2),
    ]
    step.record(EngineCoreOutput("r", [7], events=events, num_cached_tokens=4), request, 10)
    step.finish(request, reason, 10, 4, max_tokens=16)
    step.finish_group(1, 1)


# Every series of the metrics specification that this engine has, and the older names.
GAUGES = {
    "vllm:num_requests_running": 3,
    "vllm:num_requests_waiting": 2,
    "vllm:num_requests_swapped": 0,
    "vllm:kv_cache_usage_perc": 0.25,
    "vllm:gpu_cache_usage_perc": 0.25,
    "vllm:cpu_cache_usage_perc": 0,
    "vllm:prefix_cache_hit_rate": 0.4,
    "vllm:gpu_prefix_cache_hit_rate": 0.4,
}
COUNTERS = {
    "vllm:prefix_cache_queries": 10,
    "vllm:prefix_cache_hits": 4,
    "vllm:gpu_prefix_cache_queries": 10,
    "vllm:gpu_prefix_cache_hits": 4,
    "vllm:num_preemptions": 5,
    "vllm:prompt_tokens": 10,
    "vllm:generation_tokens": 1,
    "vllm:tokens": 11,
    "vllm:prompt_tokens_cached": 4,
}
# name -> (observations, their sum)
HISTOGRAMS = {
    "vllm:request_prompt_tokens": (1, 10),
    "vllm:request_generation_tokens": (1, 1),
    "vllm:request_max_num_generation_tokens": (1, 1),
    "vllm:request_params_max_tokens": (1, 16),
    "vllm:request_prefill_kv_computed_tokens": (1, 6),
    "vllm:iteration_tokens_total": (1, 9),
    "vllm:request_params_n": (1, 1),
    "vllm:request_num_preemptions": (1, 0),
    "vllm:time_to_first_token_seconds": (1, 0.7),
    "vllm:inter_token_latency_seconds": (0, 0),
    "vllm:time_per_output_token_seconds": (0, 0),
    "vllm:request_time_per_output_token_seconds": (0, 0),
    "vllm:e2e_request_latency_seconds": (1, 0.7),
    "vllm:request_queue_time_seconds": (1, 0.4),
    "vllm:request_inference_time_seconds": (1, 0.2),
    "vllm:request_prefill_time_seconds": (1, 0.2),
    "vllm:request_decode_time_seconds": (1, 0.0),
}


@pytest.fixture
def scraped():
    logger, step = stat_logger(), IterationStats(100.0)
    finished_request(step)
    scheduler = SchedulerStats(3, 2, 0.25, 5, 9, 6, PrefixCacheStats(1, 10, 4))
    logger.record(scheduler, step)
    return scrape(logger)


def test_gauges_and_counters(scraped):
    for name, value in GAUGES.items():
        assert scraped[name, ()] == value, name
    for name, value in COUNTERS.items():
        assert scraped[f"{name}_total", ()] == value, name
        assert scraped[f"{name}_created", ()] == pytest.approx(time.time(), abs=60)


def test_histograms(scraped):
    for name, (count, total) in HISTOGRAMS.items():
        assert scraped[f"{name}_count", ()] == count, name
        assert scraped[f"{name}_sum", ()] == pytest.approx(total, abs=1e-6), name
        assert scraped[f"{name}_bucket", (("le", "+Inf"),)] == count, name
    assert scraped["vllm:time_to_first_token_seconds_bucket", (("le", "0.5"),)] == 0
    assert scraped["vllm:time_to_first_token_seconds_bucket", (("le", "0.75"),)] == 1
    assert scraped["vllm:request_prompt_tokens_bucket", (("le", "5.0"),)] == 0
    assert scraped["vllm:request_prompt_tokens_bucket", (("le", "10.0"),)] == 1, "le is at most"


def test_series_with_a_label(scraped):
    by_reason = {
        labels[0][1]: value
        for (name, labels), value in scraped.items()
        if name == "vllm:request_success_total"
    }
    assert by_reason == {"stop": 1, "length": 0, "abort": 0, "error": 0, "repetition": 0}
    source = "vllm:prompt_tokens_by_source_total"
    assert scraped[source, (("source", "local_compute"),)] == 6
    assert scraped[source, (("source", "local_cache_hit"),)] == 4
    waiting = "vllm:num_requests_waiting_by_reason"
    assert scraped[waiting, (("reason", "capacity"),)] == 2
    assert scraped[waiting, (("reason", "deferred"),)] == 0
    info = [labels for name, labels in scraped if name == "vllm:cache_config_info"]
    assert info == [
        (("block_size", "32"), ("kv_cache_memory_bytes", "None"), ("num_gpu_blocks", "77"))
    ]


def test_nothing_else_is_exported(scraped):
    expected = {*GAUGES, "vllm:num_requests_waiting_by_reason", "vllm:cache_config_info"}
    counters = {*COUNTERS, "vllm:prompt_tokens_by_source", "vllm:request_success"}
    counters.add("vllm:admission_rejections")
    expected |= {f"{name}_{part}" for name in counters for part in ("total", "created")}
    expected |= {f"{name}_{p}" for name in HISTOGRAMS for p in ("bucket", "count", "sum")}
    assert {name for name, _ in scraped} == expected


def test_metrics_of_the_process_come_along():
    text = stat_logger().render().decode()
    assert "process_resident_memory_bytes" in text and "python_info" in text


def test_buckets_are_those_of_the_specification():
    families = bucket_families(max_model_len=2048)
    assert families["request_tokens"] == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    assert families["iteration_tokens"] == (
        1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384,
    )  # fmt: skip
    assert families["request_params_n"] == (1, 2, 5, 10, 20)
    assert families["request_num_preemptions"] == (1, 2, 3, 4, 5, 10, 20)
    assert families["request_latency"][:3] == (0.3, 0.5, 0.8)
    assert families["request_latency"][-3:] == (960, 1920, 7680)
    assert len(families["request_latency"]) == 21
    assert families["time_to_first_token"][0] == 0.001
    assert families["time_to_first_token"][-1] == 2560
    assert len(families["time_to_first_token"]) == 22
    assert families["inter_token_latency"][0] == 0.01
    assert families["inter_token_latency"][-1] == 80
    assert len(families["inter_token_latency"]) == 19


def test_custom_buckets():
    logger = stat_logger({"time_to_first_token": [0.5, 1]})
    step = IterationStats(100.0)
    finished_request(step)
    logger.record(None, step)
    buckets = {
        labels[0][1]: value
        for (name, labels), value in scrape(logger).items()
        if name == "vllm:time_to_first_token_seconds_bucket"
    }
    assert buckets == {"0.5": 0, "1.0": 1, "+Inf": 1}


@pytest.mark.parametrize(
    ("custom", "message"),
    [
        ({"ttft": [1.0]}, "names 'ttft'; families are request_latency, time_to_first_token"),
        ({"request_latency": []}, "one or more rising numbers"),
        ({"request_latency": [2, 1]}, "one or more rising numbers"),
        ({"request_latency": [1, 1]}, "one or more rising numbers"),
        ({"request_latency": ["fast"]}, "one or more rising numbers"),
        ({"request_latency": 5}, "one or more rising numbers"),
        ({"request_latency": [float("nan")]}, "one or more rising numbers"),
    ],
)
def test_bad_custom_buckets_are_refused(custom, message):
    with pytest.raises(ConfigError, match=message):
        stat_logger(custom)


def test_context_length_must_be_known():
    with pytest.raises(ConfigError, match="max_model_len is auto"):
        stat_logger(max_model_len="auto")


def test_rejections():
    logger = stat_logger()
    logger.record_rejection("max_num_queued_reqs")
    with pytest.raises(ValueError, match="queue_full"):
        logger.record_rejection("queue_full")
    samples = scrape(logger)
    rejections = "vllm:admission_rejections_total"
    assert samples[rejections, (("reason", "max_num_queued_reqs"),)] == 1
    assert samples[rejections, (("reason", "max_num_queued_tokens"),)] == 0


def test_every_way_to_end_is_counted_and_the_number_of_series_is_constant():
    logger = stat_logger()
    before = len(scrape(logger))
    for i, reason in enumerate([*FinishReason] * 3):
        step = IterationStats(100.0 + i)
        finished_request(step, reason)
        logger.record(SchedulerStats(), step)
    samples = scrape(logger)
    assert len(samples) == before
    finished = {n: v for n, v in samples.items() if n[0] == "vllm:request_success_total"}
    assert set(finished.values()) == {3.0} and len(finished) == 5
    assert samples["vllm:request_prompt_tokens_count", ()] == 15
    assert samples["vllm:request_prompt_tokens_sum", ()] == samples["vllm:prompt_tokens_total", ()]


def test_snapshot_for_programs():
    logger, step = stat_logger(), IterationStats(100.0)
    finished_request(step)
    logger.record(SchedulerStats(3), step)
    metrics = read_metrics(logger)
    assert Gauge("vllm:num_requests_running", ENGINE, 3.0) in metrics
    assert Counter("vllm:generation_tokens", ENGINE, 1) in metrics
    assert Counter("vllm:request_success", {**ENGINE, "finished_reason": "stop"}, 1) in metrics
    [n] = [m for m in metrics if m.name == "vllm:request_params_n"]
    assert n == Histogram(
        n.name, ENGINE, 1, 1.0, {"1.0": 1, "2.0": 1, "5.0": 1, "10.0": 1, "20.0": 1, "+Inf": 1}
    )
    assert not [m for m in metrics if m.name.endswith("_created")]
    assert read_metrics(LoggingStatLogger()) == []


def test_prometheus_client_is_not_needed_to_record():
    code = (
        "import sys; from vllm.v1.metrics import prometheus, loggers, stats;"
        "sys.exit('prometheus_client' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_recording_costs_a_few_microseconds_per_output():
    logger = stat_logger()
    requests = [RequestStateStats(arrival_time=time.time()) for _ in range(256)]
    outputs = [EngineCoreOutput(str(i), [7]) for i in range(256)]
    best = float("inf")
    for number in range(30):
        start = time.thread_time()
        step = IterationStats(float(number))
        for output, request in zip(outputs, requests, strict=True):
            step.record(output, request, 10)
        logger.record(SchedulerStats(), step)
        best = min(best, time.thread_time() - start)
    assert best / 256 < 5e-6
