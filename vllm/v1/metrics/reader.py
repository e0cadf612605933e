"""`LLM.get_metrics()`: the series of /metrics as objects, for programs without a server."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm.v1.metrics.loggers import StatLogger
from vllm.v1.metrics.prometheus import PrometheusStatLogger

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family


@dataclass
class Metric:
    """One series at one moment."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(Metric):
    """A number that only grows; `name` is without `_total`."""

    value: int


@dataclass
class Gauge(Metric):
    """A number that goes up and down."""

    value: float


@dataclass
class Histogram(Metric):
    """How many observations were at most each bound (`buckets`), all of them, and their sum."""

    count: int = 0
    sum: float = 0.0
    buckets: dict[str, int] = field(default_factory=dict)


@dataclass
class Vector(Metric):
    """A counter per position. Scripts test for it; speculation would be the first to give one."""

    values: list[int]


def read_metrics(stat_logger: StatLogger) -> list[Metric]:
    """What the logger has collected; nothing for loggers that collect nothing."""
    if not isinstance(stat_logger, PrometheusStatLogger):
        return []
    return [metric for family in stat_logger.collect() for metric in _read_family(family)]


def _read_family(family: "Family") -> list[Metric]:
    if family.type == "histogram":
        return [_read_histogram(family)]
    metrics: list[Metric] = []
    for sample in family.samples:
        if family.type == "gauge":
            metrics.append(Gauge(family.name, sample.labels, sample.value))
        elif sample.name.endswith("_total"):
            metrics.append(Counter(family.name, sample.labels, int(sample.value)))
    return metrics


def _read_histogram(family: "Family") -> Histogram:
    """One engine is one set of labels, so a family is one histogram."""
    histogram = Histogram(family.name, {})
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            labels = dict(sample.labels)
            histogram.buckets[labels.pop("le")] = int(sample.value)
            histogram.labels = labels
        elif sample.name.endswith("_count"):
            histogram.count = int(sample.value)
        else:
            histogram.sum = sample.value
    return histogram
