"""The input of a model step, and what an attention backend answers before one is run.

Invariant: a StepInput describes each sequence by its block tables alone; where a token's key and
value go and what it may see follow from slots, positions and lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vllm.v1.messages import KVLayerSpec

Ints = npt.NDArray[np.int32]


@dataclass
class StepInput:
    """T tokens of S sequences, with R rows to sample; one table and mapping per KV group.

    Rows of a sequence are consecutive: query_start[s] to query_start[s + 1].
    """

    token_ids: Ints  # [T]
    positions: Ints  # [T]
    query_start: Ints  # [S + 1]
    seq_lens: Ints  # [S], this step included
    logits_indices: Ints  # [R], rows of this step
    block_tables: list[Ints]  # [S, max_blocks] each
    slot_mapping: list[npt.NDArray[np.int64]]  # [T] each: block * block_size + offset
    block_size: int


class AttentionBackend(Protocol):
    """A way to compute attention over a paged cache."""

    name: str
    kv_kinds: dict[str, str]
    """KV dtype of the configuration -> the backend's name for it."""

    def problem(self, layer: KVLayerSpec, block_size: int) -> str | None:
        """Why this backend can't serve such a layer; None if it can."""


def cache_shapes(
    layer: KVLayerSpec, num_blocks: int, block_size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Keys lie dimension-major inside a block, values token-major."""
    heads, dim = layer.num_kv_heads, layer.head_dim
    return (num_blocks, heads, dim, block_size), (num_blocks, heads, block_size, dim)

