"""Random weights for a graph (`--load-format dummy`): for benchmarks without a checkpoint.

Invariant: the values depend on the seed and the parameter's name and shape alone.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np

from vllm.ir.graph import Graph
from vllm.ir.values import Floats
from vllm.model_executor.weights.raw import RawTensor

# One block of random numbers serves all tensors; a prime length, so that rows never repeat it
# in step. Drawing every weight anew would take 5 s per billion.
_NUM_VALUES = 1_048_573
_SCALE = 0.02


class DummyCheckpoint:
    """Every tensor that a graph needs, as f32."""

    def __init__(self, graph: Graph, seed: int) -> None:
        weights = {p.name: (p.rows, w.k) for w in graph.weights.values() for p in w.parts}
        vectors = {p.name: (p.rows,) for c in graph.consts.values() for p in c.parts}
        self._offsets = {p.name: c.offset for c in graph.consts.values() for p in c.parts}
        self._shapes: dict[str, tuple[int, ...]] = {**weights, **vectors}
        generator = np.random.Generator(np.random.Philox(seed))
        values: Floats = generator.standard_normal(_NUM_VALUES, np.float32) * np.float32(_SCALE)
        self._values = np.concatenate([values, values])

    def names(self) -> list[str]:
        return list(self._shapes)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        return self._shapes[name], "f32"

    def get(self, name: str) -> RawTensor:
        """Norm weights are near 1 in effect, everything else near 0."""
        shape = self._shapes[name]
        size = int(np.prod(shape))
        start = crc32(name.encode()) % _NUM_VALUES
        values = self._values[start : start + min(size, _NUM_VALUES)]
        if size > _NUM_VALUES:
            values = np.resize(values, size)
        if name.endswith("norm.weight"):
            values = values + np.float32(1 - self._offsets[name])
        return RawTensor(name, shape, "f32", values.view(np.uint8))

    def close(self) -> None:
        """Nothing is open."""
