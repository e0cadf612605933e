"""Attention over a paged KV cache with scattered blocks, filled from plain keys and values."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vllm.kernels.native import Program

KV_BYTES = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Bits of the nearest bf16, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def stored(x: np.ndarray, kv_kind: str) -> np.ndarray:
    """What the cache keeps of x, as float32."""
    if kv_kind == "bf16":
        return from_bf16(to_bf16(x))
    return x.astype(KV_BYTES[kv_kind]).astype(np.float32)


@dataclass
class Heads:
    """Head shape and options of one attention layer."""

    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    kv_kind: str = "f32"
    block_size: int = 32
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> dict[str, Any]:
        return {
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "kv_kind": self.kv_kind,
            "kv_tensor": 0,
        }


class PagedAttention:
    """One attention op over sequences whose keys and values are all known in advance."""

    def __init__(self, heads: Heads, keys: list[np.ndarray], values: list[np.ndarray]) -> None:
        self.heads = heads
        self.max_blocks = max(-(-len(k) // heads.block_size) for k in keys)
        num_blocks = 1 + self.max_blocks * len(keys)
        self.tables = np.random.default_rng(1).permutation(np.arange(1, num_blocks))
        self.tables = self.tables.reshape(len(keys), -1).astype(np.int32)
        cols = heads.num_heads * heads.head_dim
        total = sum(len(k) for k in keys)
        self.program = Program(total, 1, total)
        self.q = self.program.buffer("tokens", cols)
        self.out = self.program.buffer("tokens", cols)
        options = dict(heads.options)
        if options.get("sinks") is not None:
            options["sinks"] = self.program.const(options["sinks"])
        args = {**heads.shape, "scale": heads.head_dim**-0.5, **options}
        self.program.add("attention", {"q": self.q, "out": self.out, **args})
        self.program.bind_kv(num_blocks, heads.block_size, 1, 1)
        self._poison()
        for s, (k, v) in enumerate(zip(keys, values, strict=True)):
            self._fill(s, k, v)

    def _poison(self) -> None:
        """NaN wherever no key was written: reading one shows."""
        for cache in self.program.kv_arrays(0):
            cache[:] = 0x7FC0 if cache.dtype == np.uint16 else np.nan

    def _fill(self, s: int, keys: np.ndarray, values: np.ndarray) -> None:
        k_cache, v_cache = self.program.kv_arrays(0)
        cast = to_bf16 if self.heads.kv_kind == "bf16" else np.asarray
        block, offset = np.divmod(np.arange(len(keys)), self.heads.block_size)
        block = self.tables[s][block]
        k_cache[block, :, :, offset] = cast(keys)
        v_cache[block, :, offset, :] = cast(values)

    def run(self, rows: list[tuple[int, int, int]], queries: list[np.ndarray]) -> list[np.ndarray]:
        """Attends for (sequence, first position, number of queries) of each row entry.

        queries: of every sequence, all positions [tokens, heads, head_dim].
        """
        counts = [n for _, _, n in rows]
        total = sum(counts)
        q = np.concatenate([queries[s][start : start + n] for s, start, n in rows])
        self.program.array(self.q)[:total] = q.reshape(total, -1)
        self.program.run(
            {
                "token_ids": np.zeros(total, np.int32),
                "positions": np.concatenate(
                    [np.arange(start, start + n, dtype=np.int32) for _, start, n in rows]
                ),
                "query_start": np.cumsum([0, *counts]).astype(np.int32),
                "seq_lens": np.array([start + n for _, start, n in rows], np.int32),
                "logits_indices": np.zeros(1, np.int32),
                "slot_mapping": [np.zeros(total, np.int64)],
                "block_tables": [self.tables[[s for s, _, _ in rows]]],
            }
        )
        out = self.program.array(self.out)[:total].copy()
        out = out.reshape(total, self.heads.num_heads, self.heads.head_dim)
        return np.split(out, np.cumsum(counts)[:-1])
