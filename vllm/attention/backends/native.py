"""Paged attention by the native CPU kernels; the step program owns the cache."""

from __future__ import annotations

from vllm.v1.messages import KVLayerSpec

MAX_HEAD_DIM = 1024


class NativeBackend:
    """Ops `rope_cache` and `attention` of the step program."""

    name = "native"
    kv_kinds = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}

    def problem(self, layer: KVLayerSpec, block_size: int) -> str | None:
        """Head sizes are whole vectors, blocks whole score tiles."""
        if layer.head_dim % 8 or layer.head_dim > MAX_HEAD_DIM:
            return f"head_dim is {layer.head_dim}, not a multiple of 8 up to {MAX_HEAD_DIM}"
        if block_size % 16:
            return f"--block-size is {block_size}, not a multiple of 16"
        return None


BACKEND = NativeBackend()
