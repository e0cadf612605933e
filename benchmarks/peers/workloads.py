"""The workloads, seeded: every engine gets the same token ids in the same order."""

import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from benchmarks.peers.client import Timing, complete

VOCAB = (1000, 40000)
"""Ids are drawn from here: ordinary text pieces in every vocabulary that is compared."""

Run = Callable[[int, int], Awaitable[dict[str, float]]]


@dataclass(frozen=True)
class Workload:
    """A named run: (port, seed) -> figures. `lower_is_better` names figures that are times."""

    name: str
    run: Run


def _prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(*VOCAB) for _ in range(length)]


async def decode(port: int, seed: int) -> dict[str, float]:
    """One stream, 128 in, 128 out: tokens per second after the first token."""
    timing = await complete(port, _prompt(random.Random(seed), 128), 128, "m")
    return {"decode tok/s": 127 / (timing.chunks[-1] - timing.chunks[0])}


def prefill(length: int) -> Run:
    """One prompt of `length` tokens: prompt tokens per second until the first token."""

    async def run(port: int, seed: int) -> dict[str, float]:
        timing = await complete(port, _prompt(random.Random(seed), length), 1, "m")
        return {f"prefill {length} tok/s": length / timing.ttft}

    return run


async def batch(port: int, seed: int) -> dict[str, float]:
    """64 requests at once, 128 to 512 in, 128 out."""
    rng = random.Random(seed)
    prompts = [_prompt(rng, rng.randint(128, 512)) for _ in range(64)]
    timings = await asyncio.gather(*(complete(port, p, 128, "m") for p in prompts))
    return {"64 at once, output tok/s": 64 * 128 / _span(timings)}


async def clients(port: int, seed: int) -> dict[str, float]:
    """16 clients, 64 requests, 256 in, 64 out, streamed."""
    rng = random.Random(seed)
    queue = [_prompt(rng, 256) for _ in range(64)]
    timings: list[Timing] = []

    async def client() -> None:
        while queue:
            timings.append(await complete(port, queue.pop(), 64, "m"))

    await asyncio.gather(*(client() for _ in range(16)))
    gaps = sorted(gap for timing in timings for gap in timing.gaps)
    return {
        "16 clients, output tok/s": 64 * 64 / _span(timings),
        "16 clients, TTFT p50 s": statistics.median(t.ttft for t in timings),
        "16 clients, ITL p99 s": gaps[int(len(gaps) * 0.99)],
    }


async def shared_prefix(port: int, seed: int) -> dict[str, float]:
    """32 requests at once sharing 1024 tokens, 32 own, 32 out."""
    rng = random.Random(seed)
    prefix = _prompt(rng, 1024)
    prompts = [prefix + _prompt(rng, 32) for _ in range(32)]
    timings = await asyncio.gather(*(complete(port, p, 32, "m") for p in prompts))
    return {"32 sharing 1024, total s": _span(timings)}


def _span(timings: list[Timing]) -> float:
    return max(t.chunks[-1] for t in timings) - min(t.sent for t in timings)


WORKLOADS = {
    "decode": Workload("decode", decode),
    "prefill": Workload("prefill", prefill(512)),
    "prefill-2048": Workload("prefill-2048", prefill(2048)),
    "batch": Workload("batch", batch),
    "clients": Workload("clients", clients),
    "prefix": Workload("prefix", shared_prefix),
}
