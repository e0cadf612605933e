"""Runs a model step by step without a scheduler: fixed block tables, given chunk sizes."""

import numpy as np

from vllm.attention import StepInput
from vllm.model_executor.model import Model
from vllm.v1.core.kv_cache_groups import GroupPolicy, make_kv_cache_config

BLOCK_SIZE = 16


class Driver:
    """Up to `num_seqs` sequences; every group has blocks of its own for each of them."""

    def __init__(
        self, model: Model, max_len: int = 256, num_seqs: int = 1, kv_dtype: str = "float32"
    ) -> None:
        self.model = model
        self.max_blocks = -(-max_len // BLOCK_SIZE)
        self.num_seqs = num_seqs
        num_groups = len(make_kv_cache_config(model.kv_layers, 1, BLOCK_SIZE).groups)
        num_blocks = 1 + num_groups * num_seqs * self.max_blocks
        self.config = make_kv_cache_config(model.kv_layers, num_blocks, BLOCK_SIZE)
        model.bind_kv_cache(self.config, kv_dtype)
        self.lengths = [0] * num_seqs

    def step(self, tokens: dict[int, list[int]], last_only: bool = False) -> np.ndarray:
        """Append tokens to sequences; logits of all their rows, or of each one's last row."""
        counts = [len(ids) for ids in tokens.values()]
        starts = np.cumsum([0, *counts]).astype(np.int32)
        positions = np.concatenate(
            [self.lengths[s] + np.arange(n) for s, n in zip(tokens, counts, strict=True)]
        ).astype(np.int32)
        for seq, count in zip(tokens, counts, strict=True):
            self.lengths[seq] += count
        tables = [self._tables(g, list(tokens), counts) for g in range(len(self.config.groups))]
        rows = np.repeat(np.arange(len(tokens)), counts)
        slots = [t[rows, positions // BLOCK_SIZE] for t in tables]
        batch = StepInput(
            token_ids=np.concatenate(list(tokens.values())).astype(np.int32),
            positions=positions,
            query_start=starts,
            seq_lens=np.array([self.lengths[s] for s in tokens], np.int32),
            logits_indices=starts[1:] - 1 if last_only else np.arange(starts[-1], dtype=np.int32),
            block_tables=tables,
            slot_mapping=[s.astype(np.int64) * BLOCK_SIZE + positions % BLOCK_SIZE for s in slots],
            block_size=BLOCK_SIZE,
        )
        return self.model.execute(batch).copy()

    def prefill(self, ids: list[int], chunks: list[int] | None = None, seq: int = 0) -> np.ndarray:
        """Logits of every position, fed in chunks of the given sizes (repeated as needed)."""
        sizes, start, rows = chunks or [len(ids)], 0, []
        while start < len(ids):
            size = sizes[len(rows) % len(sizes)]
            rows.append(self.step({seq: ids[start : start + size]}))
            start += size
        return np.concatenate(rows)

    def greedy(self, prompt: list[int], num_tokens: int, seq: int = 0) -> list[int]:
        """The next `num_tokens` most likely tokens."""
        out = [int(self.step({seq: prompt}, last_only=True)[0].argmax())]
        while len(out) < num_tokens:
            out.append(int(self.step({seq: [out[-1]]}, last_only=True)[0].argmax()))
        return out

    def _tables(self, group: int, seqs: list[int], counts: list[int]) -> np.ndarray:
        """Block ids; those that a window has left behind are the null block."""
        policy = GroupPolicy(self.config.groups[group].window, BLOCK_SIZE)
        table = np.zeros((len(seqs), self.max_blocks), np.int32)
        for row, (seq, count) in enumerate(zip(seqs, counts, strict=True)):
            first_id = 1 + (group * self.num_seqs + seq) * self.max_blocks
            table[row] = np.arange(first_id, first_id + self.max_blocks)
            table[row, : policy.first_needed_block(self.lengths[seq] - count)] = 0
        return table


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
