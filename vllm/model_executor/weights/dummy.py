"""Random weights for a graph (`--load-format dummy`): for benchmarks without a checkpoint.

Invariant: the values depend on the seed and the parameter's name and shape alone.
"""

from __future__ import annotations

from math import prod
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from vllm.ir.graph import Graph
from vllm.ir.values import Floats
from vllm.model_executor.weights.raw import RawTensor

# One block of random numbers serves all tensors; a prime length, so that rows never repeat it
# in step. Drawing every weight anew would take 5 s per billion.
_NUM_VALUES = 1_048_573
_SCALE = 0.02
_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


class DummyCheckpoint:
    """Every tensor that a graph needs: matrices in the model's dtype, vectors in f32."""

    def __init__(self, graph: Graph, seed: int, dtype: str, scale: float = _SCALE) -> None:
        weights = {p.name: (p.rows, w.k) for w in graph.weights.values() for p in w.parts}
        vectors = {p.name: (p.rows,) for c in graph.consts.values() for p in c.parts}
        self._offsets = {p.name: c.offset for c in graph.consts.values() for p in c.parts}
        self._shapes: dict[str, tuple[int, ...]] = {**weights, **vectors}
        self._type = _TYPES[dtype]
        generator = np.random.Generator(np.random.Philox(seed))
        values: Floats = generator.standard_normal(_NUM_VALUES, np.float32) * np.float32(scale)
        self._vectors = values
        self._matrices = _stored(values, self._type)

    def names(self) -> list[str]:
        return list(self._shapes)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        shape = self._shapes[name]
        return shape, self._type if len(shape) == 2 else "f32"

    def get(self, name: str) -> RawTensor:
        """Norm weights are near 1 in effect, everything else near 0."""
        shape, type_name = self.describe(name)
        values = _cycle(self._matrices if len(shape) == 2 else self._vectors, name, prod(shape))
        if name.endswith("norm.weight"):
            values = values + np.float32(1 - self._offsets[name])
        return RawTensor(name, shape, type_name, values.view(np.uint8))

    def close(self) -> None:
        """Nothing is open."""


def _cycle(block: npt.NDArray[Any], name: str, size: int) -> npt.NDArray[Any]:
    """`size` values of the block, repeated as needed, from a place that the name decides."""
    start = crc32(name.encode()) % _NUM_VALUES
    out = np.empty(size, block.dtype)
    filled = min(size, _NUM_VALUES - start)
    out[:filled] = block[start : start + filled]
    while filled < size:
        count = min(size - filled, _NUM_VALUES)
        out[filled : filled + count] = block[:count]
        filled += count
    return out


def _stored(values: Floats, type_name: str) -> npt.NDArray[Any]:
    """The values in a storage type; bf16 as the upper half of f32."""
    if type_name == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16) if type_name == "f16" else values
