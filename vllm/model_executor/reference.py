"""Runs a graph node by node in numpy: slow, readable, and the oracle of the native program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from vllm.attention.backend import StepInput
from vllm.attention.backends.reference import new_caches
from vllm.attention.selector import select_backend
from vllm.ir.graph import Graph
from vllm.ir.op import Context, LayerCache, Q8Rows
from vllm.ir.ops import OPS
from vllm.ir.values import Arg, Buffer, Const, Floats, View, Weight
from vllm.model_executor.model import Ints, mask_padding
from vllm.model_executor.models.decoder import LOGITS
from vllm.model_executor.weights.loader import Loaded
from vllm.model_executor.weights.packing import FloatMatrix
from vllm.v1.messages import KVCacheConfig, KVLayerSpec

Array = Floats | Q8Rows


class ReferenceModel:
    """A `Model` whose weights are plain f32 matrices."""

    def __init__(
        self, graph: Graph, loaded: Loaded[FloatMatrix], kv_layers: Sequence[KVLayerSpec]
    ) -> None:
        self.graph = graph
        self.kv_layers = list(kv_layers)
        self.vocab_size = graph.buffers[LOGITS].cols
        self._loaded = loaded
        self._consts = {name: loaded.const(c) for name, c in graph.consts.items()}
        self._caches: dict[int, LayerCache] = {}
        self._arrays: dict[str, Array] = {}
        self._last: StepInput | None = None
        self._num_tokens: int | None = None

    def bind_kv_cache(self, config: KVCacheConfig, kv_dtype: str) -> None:
        backend = select_backend("reference", self.kv_layers, kv_dtype, config.block_size)
        self._caches = new_caches(self.kv_layers, config, backend.kv_kinds[kv_dtype])

    def limit_tokens(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def stats(self) -> dict[str, Any]:
        return {"weight_bytes": sum(w.values.nbytes for w in self._loaded.weights.values())}

    def execute(self, batch: StepInput) -> Floats:
        self._arrays = {}
        self._last = batch
        return self._run(batch, 0)

    def logits_rows(self, indices: Ints) -> Floats:
        if self._last is None:
            raise ValueError("logits_rows needs a step before it")
        kept = self.graph.kept - {LOGITS}
        self._arrays = {name: self._arrays[name] for name in kept}
        return self._run(replace(self._last, logits_indices=indices), self.graph.head)

    def _run(self, batch: StepInput, first: int) -> Floats:
        context = Context(batch, self._caches)
        num_rows = {"tokens": len(batch.token_ids), "logits": len(batch.logits_indices)}
        for node in self.graph.nodes[first:]:
            op = OPS[node.op]
            arguments = vars(op.arguments(node))
            arrays = {name: self._value(arg, num_rows) for name, arg in arguments.items()}
            op.reference(SimpleNamespace(**arrays), context)
        logits = self._arrays[LOGITS]
        if not isinstance(logits, np.ndarray):
            raise TypeError("logits must be f32")
        return mask_padding(logits, self._num_tokens)

    def _value(self, arg: Arg | None, num_rows: dict[str, int]) -> object:
        if isinstance(arg, View):
            array = self._array(arg.buffer, num_rows[arg.buffer.rows])
            if isinstance(array, Q8Rows):
                return array
            return array[:, arg.first_col : arg.first_col + arg.cols]
        if isinstance(arg, Weight):
            return self._loaded.weights[arg.name].values
        return self._consts[arg.name] if isinstance(arg, Const) else arg

    def _array(self, buffer: Buffer, num_rows: int) -> Array:
        if buffer.name not in self._arrays:
            shape = (num_rows, buffer.cols)
            # NaN: reading what was never written must not go unnoticed.
            is_float = buffer.dtype == "f32"
            array = np.full(shape, np.nan, np.float32) if is_float else Q8Rows(*shape)
            self._arrays[buffer.name] = array
        return self._arrays[buffer.name]
