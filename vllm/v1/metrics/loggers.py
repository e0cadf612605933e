"""Where statistics go: the interface of a stat logger, and the log line of every interval.

Invariant: recording is a few additions; text is made only when a line is due.
"""

import time
from abc import ABC, abstractmethod
from collections import deque

from vllm.logger import init_logger
from vllm.v1.messages import PrefixCacheStats, SchedulerStats
from vllm.v1.metrics.stats import IterationStats

logger = init_logger(__name__)

NUM_RECENT_REQUESTS = 1000
"""The prefix cache hit rate of the log line covers that many requests."""


class StatLogger(ABC):
    """Receives the statistics of one engine after each of its frames."""

    @abstractmethod
    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None
    ) -> None:
        """Take one frame's numbers; either may be missing. Must be cheap."""

    def log(self) -> None:  # noqa: B027 (optional)
        """An interval of VLLM_LOG_STATS_INTERVAL seconds is over."""


class LoggingStatLogger(StatLogger):
    """Writes one line per interval: INFO with traffic in this or the last one, else DEBUG."""

    def __init__(self, engine_idx: int = 0, device: str = "CPU") -> None:
        self._engine_idx = engine_idx
        self._device = device
        self._scheduler = SchedulerStats()
        self._prefix_cache = RecentHitRate()
        self._start = time.monotonic()
        self._had_traffic = False
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._num_preemptions = 0

    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None
    ) -> None:
        """Add one frame's numbers to the interval."""
        if scheduler_stats is not None:
            self._scheduler = scheduler_stats
            self._prefix_cache.add(scheduler_stats.prefix_cache)
            self._num_prompt_tokens += scheduler_stats.num_prefill_tokens
            self._num_preemptions += scheduler_stats.num_preemptions
        if iteration_stats is not None:
            self._num_generation_tokens += iteration_stats.num_generation_tokens

    def log(self) -> None:
        """Write the interval's line and start the next interval."""
        has_traffic = self._num_prompt_tokens + self._num_generation_tokens > 0
        write = logger.info if has_traffic or self._had_traffic else logger.debug
        write("%s", self.line(time.monotonic() - self._start))
        self._had_traffic = has_traffic
        self._num_prompt_tokens = self._num_generation_tokens = self._num_preemptions = 0
        self._start = time.monotonic()

    def line(self, seconds: float) -> str:
        """The line of the current interval, which took that many seconds."""
        seconds = max(seconds, 1e-9)
        stats = self._scheduler
        parts = [
            f"Avg prompt throughput: {self._num_prompt_tokens / seconds:.1f} tokens/s",
            f"Avg generation throughput: {self._num_generation_tokens / seconds:.1f} tokens/s",
            f"Running: {stats.num_running_reqs} reqs",
            f"Waiting: {stats.num_waiting_reqs} reqs",
        ]
        if self._num_preemptions:
            parts.append(f"Preemptions: {self._num_preemptions}")
        parts.append(f"{self._device} KV cache usage: {stats.kv_cache_usage * 100:.1f}%")
        if self._prefix_cache.num_queries:
            parts.append(f"Prefix cache hit rate: {self._prefix_cache.rate * 100:.1f}%")
        return f"Engine {self._engine_idx:03d}: {', '.join(parts)}"


class RecentHitRate:
    """Share of found tokens over the last `num_requests` requests that were looked up."""

    def __init__(self, num_requests: int = NUM_RECENT_REQUESTS) -> None:
        self._limit = num_requests
        self._frames: deque[PrefixCacheStats] = deque()
        self._num_requests = 0
        self.num_queries = 0
        self.num_hits = 0

    @property
    def rate(self) -> float:
        """Found tokens per token asked for, 0 to 1."""
        return self.num_hits / self.num_queries if self.num_queries else 0.0

    def add(self, stats: PrefixCacheStats) -> None:
        """Add a frame; whole old frames leave while enough requests remain."""
        if not stats.requests:
            return
        self._frames.append(stats)
        self._count(stats, 1)
        while self._num_requests - self._frames[0].requests >= self._limit:
            self._count(self._frames.popleft(), -1)

    def _count(self, stats: PrefixCacheStats, sign: int) -> None:
        self._num_requests += sign * stats.requests
        self.num_queries += sign * stats.queries
        self.num_hits += sign * stats.hits
