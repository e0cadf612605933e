"""Attention in numpy over the same paged layout: the oracle of the kernels' tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vllm.attention.backend import cache_shapes
from vllm.ir.op import LayerCache
from vllm.ir.values import Floats
from vllm.v1.messages import KVCacheConfig, KVLayerSpec


class ReferenceBackend:
    """Any head size, any block size."""

    name = "reference"
    kv_kinds = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}

    def problem(self, layer: KVLayerSpec, block_size: int) -> str | None:
        return None


BACKEND = ReferenceBackend()


def new_caches(
    layers: Sequence[KVLayerSpec], config: KVCacheConfig, kv_kind: str
) -> dict[int, LayerCache]:
    """Zeroed memory, shared by the layers that share a KV tensor."""
    tensors: dict[int, tuple[Floats, Floats]] = {}
    caches: dict[int, LayerCache] = {}
    for group_idx, group in enumerate(config.groups):
        for tensor_idx, layer_idx in enumerate(group.layers):
            if tensor_idx not in tensors:
                shapes = cache_shapes(layers[layer_idx], config.num_blocks, config.block_size)
                k, v = (np.zeros(shape, np.float32) for shape in shapes)
                tensors[tensor_idx] = (k, v)
            caches[layer_idx] = LayerCache(group_idx, *tensors[tensor_idx], _ROUND[kv_kind])
    return caches


def _to_f16(x: Floats) -> Floats:
    return x.astype(np.float16).astype(np.float32)


def to_bf16(x: Floats) -> Floats:
    """Rounded to nearest even, as f32."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded: Floats = ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return rounded


_ROUND: dict[str, Callable[[Floats], Floats]] = {
    "f32": lambda x: x,
    "f16": _to_f16,
    "bf16": to_bf16,
}
