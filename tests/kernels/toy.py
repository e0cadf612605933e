"""A step program of one attention layer and a head, and inputs for it."""

from typing import Any

import numpy as np

from tests.kernels.programs import step
from vllm.kernels.native import Program, Weight

VOCAB, HIDDEN, HEADS, HEAD_DIM, BLOCK, BLOCKS = 40, 32, 2, 16, 16, 5


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def packed(table: np.ndarray) -> Weight:
    weight = Weight("f32", 0, False, *table.shape)
    weight.pack(0, table, "f32", len(table))
    return weight


class Toy:
    """One attention layer and a head: every kind of op that reads an index."""

    def __init__(self) -> None:
        self.program = p = Program(max_tokens=24, max_logits=4, max_seqs=3)
        self.table, self.qkv_weight = random(VOCAB, HIDDEN), random(3 * HIDDEN, HIDDEN, seed=1)
        self.cos_sin = random(50, HEAD_DIM, seed=2)
        x, qkv = p.buffer("tokens", HIDDEN), p.buffer("tokens", 3 * HIDDEN)
        attended, last = p.buffer("tokens", HIDDEN), p.buffer("logits", HIDDEN)
        self.logits = p.buffer("logits", VOCAB)
        head = p.weight(packed(self.table))
        heads = {"num_heads": HEADS, "num_kv_heads": HEADS, "head_dim": HEAD_DIM}
        heads |= {"kv_kind": "f32", "kv_tensor": 0}
        p.add("embedding", {"w": head, "out": x})
        p.add("linear", {"w": p.weight(packed(self.qkv_weight)), "x": x, "out": qkv})
        rope = {"cos_sin": p.const(self.cos_sin), "rot_dim": HEAD_DIM}
        p.add("rope_cache", {"qkv": qkv, **heads, **rope})
        p.add("attention", {"q": qkv, "out": attended, "scale": 0.25, **heads})
        p.add("gather", {"x": attended, "out": last, "size": HIDDEN})
        p.add("linear", {"w": head, "x": last, "out": self.logits})
        p.bind_kv(BLOCKS, BLOCK, 1, 1)

    def inputs(self, **fields: Any) -> dict[str, Any]:
        """Two sequences: 5 tokens of 5, and the last 2 of 20."""
        inputs = step(
            7,
            token_ids=np.array([0, 39, 7, 7, 1, 2, 3], np.int32),
            positions=np.array([0, 1, 2, 3, 4, 18, 19], np.int32),
            query_start=np.array([0, 5, 7], np.int32),
            seq_lens=np.array([5, 20], np.int32),
            logits_indices=np.array([4, 6], np.int32),
            slot_mapping=[np.array([16, 17, 18, 19, 20, 50, 51], np.int64)],
            block_tables=[np.array([[1, 0], [2, 3]], np.int32)],
        )
        return {**inputs, **fields}
