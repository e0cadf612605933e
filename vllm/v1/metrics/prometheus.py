"""The series of `GET /metrics`: one row each, names and meanings as dashboards for vLLM know them.

Recording adds to plain Python numbers; prometheus_client is imported by the first scrape, which
turns them into text. Invariant: every label value comes from a fixed set (an enum, the served
model name, the engine index), so the number of series never depends on what clients send.
"""

import dataclasses
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm.exceptions import ConfigError
from vllm.v1.messages import FinishReason, SchedulerStats
from vllm.v1.metrics.buckets import bucket_families
from vllm.v1.metrics.loggers import StatLogger
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from vllm.config import VllmConfig

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

REJECTION_REASONS = ("max_num_queued_reqs", "max_num_queued_tokens")


class Histogram:
    """Counts per bucket, and the sum of what was observed."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count `value` in the first bucket whose bound is not below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, int]]:
        """(le, observations of at most that) per bucket, "+Inf" last."""
        total, pairs = 0, []
        for bound, count in zip((*map(repr, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            pairs.append((bound, total))
        return pairs


@dataclass(slots=True)
class EngineSeries:
    """Everything that is exported about one engine."""

    histograms: dict[str, Histogram]
    scheduler: SchedulerStats = field(default_factory=SchedulerStats)
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prompt_tokens_computed: int = 0
    generation_tokens: int = 0
    finished: dict[str, float] = field(
        default_factory=lambda: {str(reason): 0.0 for reason in FinishReason}
    )

    @property
    def hit_rate(self) -> float:
        """Prefix cache hits per query since the start."""
        return self.prefix_cache_hits / (self.prefix_cache_queries or 1)


Reader = Callable[[EngineSeries], "float | Mapping[str, float]"]


@dataclass(frozen=True, slots=True)
class Row:
    """One series; with a `label`, `read` gives a value per value of it."""

    name: str
    documentation: str
    read: Reader
    label: str | None = None


GAUGES = (
    Row("vllm:num_requests_running", "Requests in the batch.",
        lambda s: s.scheduler.num_running_reqs),
    Row("vllm:num_requests_waiting", "Requests in the queue.",
        lambda s: s.scheduler.num_waiting_reqs),
    Row("vllm:num_requests_waiting_by_reason", "Requests in the queue, by what they wait for.",
        lambda s: {"capacity": s.scheduler.num_waiting_reqs, "deferred": 0}, "reason"),
    Row("vllm:num_requests_swapped", "Always 0: preempted requests are recomputed.", lambda s: 0),
    Row("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.",
        lambda s: s.scheduler.kv_cache_usage),
    Row("vllm:gpu_cache_usage_perc", "Older name of vllm:kv_cache_usage_perc.",
        lambda s: s.scheduler.kv_cache_usage),
    Row("vllm:cpu_cache_usage_perc", "Always 0: there is no swap space.", lambda s: 0),
    Row("vllm:prefix_cache_hit_rate", "Prefix cache hits per query, 0 to 1.",
        lambda s: s.hit_rate),
    Row("vllm:gpu_prefix_cache_hit_rate", "Older name of vllm:prefix_cache_hit_rate.",
        lambda s: s.hit_rate),
)  # fmt: skip

COUNTERS = (
    Row("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.",
        lambda s: s.prefix_cache_queries),
    Row("vllm:prefix_cache_hits", "Tokens found in the prefix cache.",
        lambda s: s.prefix_cache_hits),
    Row("vllm:gpu_prefix_cache_queries", "Older name of vllm:prefix_cache_queries.",
        lambda s: s.prefix_cache_queries),
    Row("vllm:gpu_prefix_cache_hits", "Older name of vllm:prefix_cache_hits.",
        lambda s: s.prefix_cache_hits),
    Row("vllm:num_preemptions", "Preemptions.", lambda s: s.num_preemptions),
    Row("vllm:prompt_tokens", "Prompt tokens, once per request, cached ones included.",
        lambda s: s.prompt_tokens),
    Row("vllm:generation_tokens", "Generated tokens.", lambda s: s.generation_tokens),
    Row("vllm:tokens", "Prompt and generated tokens.",
        lambda s: s.prompt_tokens + s.generation_tokens),
    Row("vllm:prompt_tokens_by_source", "Prompt tokens, by where their keys and values came from.",
        lambda s: {"local_compute": s.prompt_tokens_computed,
                   "local_cache_hit": s.prompt_tokens_cached,
                   "external_kv_transfer": 0}, "source"),
    Row("vllm:prompt_tokens_cached", "Prompt tokens found in the prefix cache.",
        lambda s: s.prompt_tokens_cached),
    Row("vllm:request_success", "Finished requests, by reason.",
        lambda s: s.finished, "finished_reason"),
)  # fmt: skip

# name -> (bucket family, documentation)
HISTOGRAMS = {
    "vllm:request_prompt_tokens": ("request_tokens", "Prompt tokens of a request."),
    "vllm:request_generation_tokens": ("request_tokens", "Generated tokens of a request."),
    "vllm:request_max_num_generation_tokens": (
        "request_tokens", "Most generated tokens of a request's n sequences."),
    "vllm:request_params_max_tokens": ("request_tokens", "max_tokens of a request."),
    "vllm:request_prefill_kv_computed_tokens": (
        "request_tokens", "Prompt tokens computed, cached ones not counted."),
    "vllm:iteration_tokens_total": ("iteration_tokens", "Tokens computed by one step."),
    "vllm:request_params_n": ("request_params_n", "n of a request."),
    "vllm:request_num_preemptions": ("request_num_preemptions", "Preemptions of a request."),
    "vllm:time_to_first_token_seconds": ("time_to_first_token", "Arrival to first token."),
    "vllm:inter_token_latency_seconds": ("inter_token_latency", "Time between two outputs."),
    "vllm:request_time_per_output_token_seconds": (
        "inter_token_latency", "Mean time per token of a request after its first."),
    "vllm:e2e_request_latency_seconds": ("request_latency", "Arrival to last token."),
    "vllm:request_queue_time_seconds": ("request_latency", "Queued to first scheduled."),
    "vllm:request_inference_time_seconds": ("request_latency", "Scheduled to last token."),
    "vllm:request_prefill_time_seconds": ("request_latency", "Scheduled to first token."),
    "vllm:request_decode_time_seconds": ("request_latency", "First to last token."),
}  # fmt: skip

HISTOGRAM_ALIASES = {
    "vllm:time_per_output_token_seconds": "vllm:inter_token_latency_seconds",
}


class PrometheusStatLogger(StatLogger):
    """Collects one engine's numbers; `render` is the body of /metrics."""

    def __init__(self, vllm_config: "VllmConfig", engine_idx: int = 0) -> None:
        model = vllm_config.model_config
        names = model.served_model_name or [str(model.model)]
        self._labels = {"model_name": names[0], "engine": str(engine_idx)}
        self._cache_info = {
            item.name: str(getattr(vllm_config.cache_config, item.name))
            for item in dataclasses.fields(vllm_config.cache_config)
        }
        custom = vllm_config.observability_config.custom_histogram_buckets
        if not isinstance(model.max_model_len, int):
            raise ConfigError(f"max_model_len is {model.max_model_len}: it was not resolved.")
        buckets = bucket_families(model.max_model_len, custom)
        self.series = EngineSeries(
            {name: Histogram(buckets[family]) for name, (family, _) in HISTOGRAMS.items()}
        )
        self._rejections = dict.fromkeys(REJECTION_REASONS, 0)
        self._created = time.time()

    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None
    ) -> None:
        """Add one frame's numbers."""
        if scheduler_stats is not None:
            self._record_scheduler(scheduler_stats)
        if iteration_stats is not None:
            self._record_iteration(iteration_stats)

    def record_rejection(self, reason: str) -> None:
        """Count a request that was refused at admission; `reason` is a REJECTION_REASONS."""
        if reason not in self._rejections:
            raise ValueError(f"{reason!r} is not one of {REJECTION_REASONS}")
        self._rejections[reason] += 1

    def render(self) -> bytes:
        """All series as text, with those of the process (python_*, process_*, plugins')."""
        from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry) + generate_latest(REGISTRY)

    def collect(self) -> Iterator["Metric"]:
        """The series as prometheus_client's families; it calls this on a scrape."""
        from prometheus_client import metrics_core as core

        names = ["model_name", "engine"]
        for row in GAUGES:
            gauge = core.GaugeMetricFamily(row.name, row.documentation, labels=_names(row))
            for labels, value in self._values(row):
                gauge.add_metric(labels, value)
            yield gauge
        for row in COUNTERS:
            counter = core.CounterMetricFamily(row.name, row.documentation, labels=_names(row))
            for labels, value in self._values(row):
                counter.add_metric(labels, value, created=self._created)
            yield counter
        for name, (source, text) in _histogram_names().items():
            histogram = core.HistogramMetricFamily(name, text, labels=names)
            values = self.series.histograms[source]
            histogram.add_metric([*self._labels.values()], values.cumulative(), values.sum)
            yield histogram
        yield from self._collect_others()

    def _collect_others(self) -> Iterator["Metric"]:
        from prometheus_client import metrics_core as core

        info = core.GaugeMetricFamily(
            "vllm:cache_config_info",
            "Configuration of the KV cache, in the labels.",
            labels=[*self._labels, *self._cache_info],
        )
        info.add_metric([*self._labels.values(), *self._cache_info.values()], 1)
        yield info
        rejections = core.CounterMetricFamily(
            "vllm:admission_rejections",
            "Requests refused at admission, by the limit that was reached.",
            labels=["model_name", "reason"],
        )
        for reason, number in self._rejections.items():
            labels = [self._labels["model_name"], reason]
            rejections.add_metric(labels, number, created=self._created)
        yield rejections

    def _values(self, row: Row) -> Iterator[tuple[list[str], float]]:
        value = row.read(self.series)
        labels = [*self._labels.values()]
        if isinstance(value, Mapping):
            for label, part in value.items():
                yield [*labels, label], part
        else:
            yield labels, value

    def _record_scheduler(self, stats: SchedulerStats) -> None:
        series = self.series
        series.scheduler = stats
        series.num_preemptions += stats.num_preemptions
        series.prefix_cache_queries += stats.prefix_cache.queries
        series.prefix_cache_hits += stats.prefix_cache.hits
        if stats.num_scheduled_tokens:
            tokens = series.histograms["vllm:iteration_tokens_total"]
            tokens.observe(stats.num_scheduled_tokens)

    def _record_iteration(self, stats: IterationStats) -> None:
        series, histograms = self.series, self.series.histograms
        series.prompt_tokens += stats.num_prompt_tokens
        series.prompt_tokens_cached += stats.num_cached_tokens
        series.prompt_tokens_computed += stats.num_computed_prompt_tokens
        series.generation_tokens += stats.num_generation_tokens
        for name, values in (
            ("vllm:time_to_first_token_seconds", stats.time_to_first_tokens_s),
            ("vllm:inter_token_latency_seconds", stats.inter_token_latencies_s),
            ("vllm:request_params_n", stats.params_n),
            ("vllm:request_max_num_generation_tokens", stats.max_generation_tokens),
        ):
            observe = histograms[name].observe
            for value in values:
                observe(value)
        for request in stats.finished:
            self._record_finished(request)

    def _record_finished(self, request: FinishedRequestStats) -> None:
        self.series.finished[str(request.finish_reason)] += 1
        computed = request.num_prompt_tokens - request.num_cached_tokens
        for name, value in (
            ("vllm:request_prompt_tokens", request.num_prompt_tokens),
            ("vllm:request_generation_tokens", request.num_generation_tokens),
            ("vllm:request_params_max_tokens", request.max_tokens_param),
            ("vllm:request_num_preemptions", request.num_preemptions),
            ("vllm:request_prefill_kv_computed_tokens",
             computed if request.prefill_time_s is not None else None),
            ("vllm:e2e_request_latency_seconds", request.e2e_latency_s),
            ("vllm:request_queue_time_seconds", request.queued_time_s),
            ("vllm:request_prefill_time_seconds", request.prefill_time_s),
            ("vllm:request_decode_time_seconds", request.decode_time_s),
            ("vllm:request_inference_time_seconds", request.inference_time_s),
            ("vllm:request_time_per_output_token_seconds", request.time_per_output_token_s),
        ):  # fmt: skip
            if value is not None:
                self.series.histograms[name].observe(value)


def _names(row: Row) -> list[str]:
    return ["model_name", "engine", *([row.label] if row.label else [])]


def _histogram_names() -> dict[str, tuple[str, str]]:
    """Exported name -> (name it is recorded under, documentation)."""
    names = {name: (name, text) for name, (_, text) in HISTOGRAMS.items()}
    for alias, name in HISTOGRAM_ALIASES.items():
        names[alias] = (name, f"Older name of {name}.")
    return names
