"""A `Model` run by the native step program: one call per step, or one per op in eager mode.

Both modes run the same ops on the same buffers, so they give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from vllm.attention.backend import StepInput
from vllm.attention.selector import select_backend
from vllm.ir.graph import Graph
from vllm.ir.values import Floats
from vllm.model_executor.model import Ints, StepLimits, mask_padding
from vllm.model_executor.models.decoder import LOGITS
from vllm.model_executor.native.program import Lowered, lower
from vllm.model_executor.weights.loader import Loaded
from vllm.model_executor.weights.packing import NativeMatrix
from vllm.v1.messages import KVCacheConfig, KVLayerSpec


class NativeModel:
    """Packed weights and, once the cache is bound, the program that uses them."""

    def __init__(
        self,
        graph: Graph,
        loaded: Loaded[NativeMatrix],
        kv_layers: Sequence[KVLayerSpec],
        limits: StepLimits,
        is_eager: bool = False,
    ) -> None:
        self.graph = graph
        self.kv_layers = list(kv_layers)
        self.vocab_size = graph.buffers[LOGITS].cols
        self.limits = limits
        self.is_eager = is_eager
        self._loaded = loaded
        self._lowered: Lowered | None = None
        self._logits: Floats | None = None
        self._last: StepInput | None = None
        self._num_tokens: int | None = None

    def bind_kv_cache(self, config: KVCacheConfig, kv_dtype: str) -> None:
        backend = select_backend("native", self.kv_layers, kv_dtype, config.block_size)
        kv_kind = backend.kv_kinds[kv_dtype]
        self._lowered = lower(self.graph, self._loaded, self.limits, config, kv_kind)
        self._logits = self._lowered.program.array(self._lowered.buffers[LOGITS])

    def limit_tokens(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens if num_tokens < self.vocab_size else None

    def stats(self) -> dict[str, Any]:
        buffers = self._lowered.program.arena_bytes if self._lowered else 0
        return {
            "weight_bytes": sum(w.packed.nbytes for w in self._loaded.weights.values()),
            "const_bytes": sum(4 * prod(c.shape) for c in self.graph.consts.values()),
            "buffer_bytes": buffers,
        }

    def execute(self, batch: StepInput) -> Floats:
        self._last = batch
        return self._run(batch, 0)

    def logits_rows(self, indices: Ints) -> Floats:
        if self._last is None:
            raise ValueError("logits_rows needs a step before it")
        return self._run(replace(self._last, logits_indices=indices), self.graph.head)

    def measure(self, is_on: bool) -> None:
        """Start or stop timing ops; starting forgets what was measured."""
        self._program().program.set_timing(is_on)

    def timings(self) -> list[tuple[str, int, float]]:
        """(node, calls, seconds) of every op since `measure(True)`."""
        timings = zip(self.graph.nodes, self._program().program.timings(), strict=True)
        return [(str(node), calls, seconds) for node, (_, calls, seconds) in timings]

    def _run(self, batch: StepInput, first: int) -> Floats:
        program = self._program().program
        if self.is_eager:
            for index in range(first, program.num_ops):
                program.run(batch, index, index + 1)
        else:
            program.run(batch, first)
        if self._logits is None:
            raise ValueError("bind_kv_cache was not called")
        return mask_padding(self._logits[: len(batch.logits_indices)], self._num_tokens)

    def _program(self) -> Lowered:
        if self._lowered is None:
            raise ValueError("bind_kv_cache was not called")
        return self._lowered
