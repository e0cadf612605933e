"""What one load run measured -> the numbers of its report. Times are in seconds, as measured.

TTFT: request sent to first token. ITL: between two chunks. E2EL: request sent to end.
TPOT: (end - first token) / (tokens - 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.benchmarks.report import mean, percentile, row, section, title

METRICS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


@dataclass(slots=True)
class RequestResult:
    """One request: when it was sent, when its parts arrived, and why it failed if it did."""

    prompt_len: int
    start: float
    ttft: float = 0.0
    latency: float = 0.0
    itls: list[float] = field(default_factory=list)
    num_output_tokens: int = 0
    text: str = ""
    error: str = ""

    @property
    def is_success(self) -> bool:
        return not self.error

    @property
    def tpot(self) -> float:
        """0 for an answer of one token."""
        count = self.num_output_tokens - 1
        return (self.latency - self.ttft) / count if count > 0 else 0.0

    def note(self, now: float, last: float) -> None:
        """A part arrived; `last` is when the one before did, or the start."""
        if self.ttft == 0.0:
            self.ttft = now - self.start
        else:
            self.itls.append(now - last)
        self.latency = now - self.start

    def values(self, metric: str) -> list[float]:
        """This request's contribution to a metric."""
        if metric == "itl":
            return self.itls
        if metric == "tpot":
            return [self.tpot] if self.num_output_tokens > 1 else []
        return [self.ttft if metric == "ttft" else self.latency]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What was asked of the run."""

    duration: float
    max_concurrency: int | None
    request_rate: float


def summarize(
    results: Sequence[RequestResult],
    facts: RunFacts,
    metrics: Sequence[str],
    percentiles: Sequence[float],
    goodput: dict[str, float],
) -> dict[str, Any]:
    """The numbers under the keys of the result file; times in milliseconds."""
    done = [one for one in results if one.is_success]
    num_input = sum(one.prompt_len for one in done)
    num_output = sum(one.num_output_tokens for one in done)
    seconds = max(facts.duration, 1e-9)
    summary: dict[str, Any] = {
        "duration": facts.duration,
        "completed": len(done),
        "failed": len(results) - len(done),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(done) / seconds,
        "output_throughput": num_output / seconds,
        "total_token_throughput": (num_input + num_output) / seconds,
        "max_output_tokens_per_s": _peak_tokens(done),
        "max_concurrent_requests": _peak_concurrency(done),
        "max_concurrency": facts.max_concurrency,
        "request_rate": facts.request_rate if facts.request_rate < float("inf") else "inf",
    }
    if goodput:
        good = sum(all(_ms(one, m) <= limit for m, limit in goodput.items()) for one in done)
        summary["request_goodput"] = good / seconds
    for metric in metrics:
        values = [1000 * value for one in done for value in one.values(metric)]
        summary[f"mean_{metric}_ms"] = mean(values)
        summary[f"median_{metric}_ms"] = percentile(values, 50)
        for q in percentiles:
            summary[f"p{q:g}_{metric}_ms"] = percentile(values, q)
    return summary


def _ms(result: RequestResult, metric: str) -> float:
    return 1000 * max(result.values(metric), default=0.0)


def _peak_tokens(results: Sequence[RequestResult]) -> float:
    """Most tokens that arrived within one second of the run."""
    if not results:
        return 0.0
    begin = min(one.start for one in results)
    seconds: dict[int, float] = {}
    for one in results:
        chunks = 1 + len(one.itls)
        now = one.start + one.ttft
        for gap in (0.0, *one.itls):
            now += gap
            slot = int(now - begin)
            seconds[slot] = seconds.get(slot, 0.0) + one.num_output_tokens / chunks
    return max(seconds.values())


def _peak_concurrency(results: Sequence[RequestResult]) -> int:
    """Most requests that were open at the same time."""
    events = [(one.start, 1) for one in results]
    events += [(one.start + one.latency, -1) for one in results]
    peak = running = 0
    for _, change in sorted(events):
        running += change
        peak = max(peak, running)
    return peak


def table(
    summary: dict[str, Any], metrics: Sequence[str], percentiles: Sequence[float]
) -> list[str]:
    """The report block."""
    lines = [title("Serving Benchmark Result")]
    lines.append(row("Successful requests:", summary["completed"]))
    lines.append(row("Failed requests:", summary["failed"]))
    if summary["max_concurrency"] is not None:
        lines.append(row("Maximum request concurrency:", summary["max_concurrency"]))
    if summary["request_rate"] != "inf":
        lines.append(row("Request rate configured (RPS):", float(summary["request_rate"])))
    lines += [
        row("Benchmark duration (s):", summary["duration"]),
        row("Total input tokens:", summary["total_input_tokens"]),
        row("Total generated tokens:", summary["total_output_tokens"]),
        row("Request throughput (req/s):", summary["request_throughput"]),
    ]
    if "request_goodput" in summary:
        lines.append(row("Request goodput (req/s):", summary["request_goodput"]))
    lines += [
        row("Output token throughput (tok/s):", summary["output_throughput"]),
        row("Peak output token throughput (tok/s):", summary["max_output_tokens_per_s"]),
        row("Peak concurrent requests:", float(summary["max_concurrent_requests"])),
        row("Total token throughput (tok/s):", summary["total_token_throughput"]),
    ]
    for metric in metrics:
        lines.append(section(METRICS[metric]))
        name = metric.upper()
        lines.append(row(f"Mean {name} (ms):", summary[f"mean_{metric}_ms"]))
        lines.append(row(f"Median {name} (ms):", summary[f"median_{metric}_ms"]))
        for q in percentiles:
            lines.append(row(f"P{q:g} {name} (ms):", summary[f"p{q:g}_{metric}_ms"]))
    lines.append("=" * len(lines[0]))
    return lines
