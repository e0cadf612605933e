"""The http_* series of /metrics: requests, durations and sizes per endpoint.

Plain numbers, turned into Prometheus text when they are asked for. Invariant: labels come from the
route table and a fixed list of methods, so clients can't make new series.
"""

from bisect import bisect_left

DURATION_BOUNDS = (0.1, 0.5, 1.0)
HIGH_RESOLUTION_BOUNDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30,
    60,
)  # fmt: skip
METHODS = frozenset(["GET", "POST", "OPTIONS", "HEAD"])
UNCOUNTED = frozenset(["/metrics", "/health", "/load", "/ping", "/version", "/server_info"])


class _Histogram:
    """Counts per bucket; the last one is for everything above the highest bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str) -> list[str]:
        """The series in the text format."""
        lines, total, comma = [], 0, "," if labels else ""
        for bound, count in zip((*self._bounds, None), self._counts, strict=True):
            total += count
            limit = "+Inf" if bound is None else f"{float(bound)}"
            lines.append(f'{name}_bucket{{{labels}{comma}le="{limit}"}} {float(total)}')
        shown = f"{{{labels}}}" if labels else ""
        return [*lines, f"{name}_count{shown} {float(total)}", f"{name}_sum{shown} {self._sum}"]


class HttpMetrics:
    """Numbers of all HTTP requests but the uncounted ones."""

    def __init__(self, paths: frozenset[str]) -> None:
        self._paths = paths
        self._requests: dict[tuple[str, str, str], int] = {}
        self._durations: dict[tuple[str, str], _Histogram] = {}
        self._all_durations = _Histogram(HIGH_RESOLUTION_BOUNDS)
        self._sizes: dict[tuple[str, str], list[int]] = {}

    def record(
        self, path: str, method: str, status: int, seconds: float, sizes: tuple[int, int]
    ) -> None:
        """Count one request; `sizes` are bytes of its body and of its answer."""
        if path in UNCOUNTED:
            return
        handler = path if path in self._paths else "none"
        method = method if method in METHODS else "other"
        key = handler, method, f"{status // 100}xx"
        self._requests[key] = self._requests.get(key, 0) + 1
        self._all_durations.observe(seconds)
        durations = self._durations.get((handler, method))
        if durations is None:
            durations = self._durations[handler, method] = _Histogram(DURATION_BOUNDS)
        durations.observe(seconds)
        for name, size in zip(("request", "response"), sizes, strict=True):
            count_and_sum = self._sizes.setdefault((name, handler), [0, 0])
            count_and_sum[0] += 1
            count_and_sum[1] += size

    def render(self) -> bytes:
        """Prometheus text."""
        lines = [
            "# HELP http_requests_total HTTP requests by endpoint, method and status.",
            "# TYPE http_requests_total counter",
        ]
        for (handler, method, status), count in self._requests.items():
            labels = f'handler="{handler}",method="{method}",status="{status}"'
            lines.append(f"http_requests_total{{{labels}}} {float(count)}")
        for name in ("request", "response"):
            series = f"http_{name}_size_bytes"
            lines += [f"# HELP {series} Bytes of the body.", f"# TYPE {series} summary"]
            for (kind, handler), (count, total) in self._sizes.items():
                if kind == name:
                    lines.append(f'{series}_count{{handler="{handler}"}} {float(count)}')
                    lines.append(f'{series}_sum{{handler="{handler}"}} {float(total)}')
        series = "http_request_duration_highr_seconds"
        lines += [f"# HELP {series} Time to the end of the answer.", f"# TYPE {series} histogram"]
        lines += self._all_durations.lines(series, "")
        series = "http_request_duration_seconds"
        lines += [f"# HELP {series} Time to the end of the answer.", f"# TYPE {series} histogram"]
        for (handler, method), durations in self._durations.items():
            lines += durations.lines(series, f'handler="{handler}",method="{method}"')
        return ("\n".join(lines) + "\n").encode()
