"""A model that only remembers: it writes tokens into the paged cache and reads them back.

The logits of a position are a random function of all tokens up to it, as the block tables give
them, so a wrong slot, table, position or length changes them.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm.attention.backend import StepInput
from vllm.v1.core.kv_cache_groups import make_kv_cache_config
from vllm.v1.messages import KVCacheConfig, KVLayerSpec


def logits_after(token_ids: Sequence[int], vocab_size: int) -> NDArray[np.float32]:
    """What the fake model says after these tokens."""
    rng = np.random.default_rng([len(token_ids), *token_ids])
    return (rng.standard_normal(vocab_size) * 3).astype(np.float32)


class PagedFake:
    """Implements `Model` for one full and, if `window` is given, one sliding group."""

    def __init__(self, vocab_size: int = 50, window: int | None = None) -> None:
        self.vocab_size = vocab_size
        self.window = window
        self.kv_layers = [KVLayerSpec(1, 8)]
        if window is not None:
            self.kv_layers.append(KVLayerSpec(1, 8, window))
        self.num_calls = 0
        self.max_rows = 0

    def bind_kv_cache(self, config: KVCacheConfig, kv_dtype: str) -> None:
        self.groups = config.groups
        shape = (len(config.groups), config.num_blocks * config.block_size)
        self.cache: NDArray[np.int64] = np.full(shape, -1, np.int64)

    def execute(self, batch: StepInput) -> NDArray[np.float32]:
        self.num_calls += 1
        self.last = batch
        self._check(batch)
        for group, slots in enumerate(batch.slot_mapping):
            self.cache[group, slots] = batch.token_ids
        return self.logits_rows(batch.logits_indices)

    def logits_rows(self, indices: NDArray[np.int32]) -> NDArray[np.float32]:
        self.max_rows = max(self.max_rows, len(indices))
        rows = [logits_after(self._tokens(int(i)), self.vocab_size) for i in indices]
        return np.array(rows, np.float32).reshape(len(rows), self.vocab_size)

    def limit_tokens(self, num_tokens: int) -> None:
        raise AssertionError("not used here")

    def stats(self) -> dict[str, Any]:
        return {}

    def _tokens(self, index: int) -> list[int]:
        batch = self.last
        seq = int(np.searchsorted(batch.query_start, index, side="right")) - 1
        length = int(batch.positions[index]) + 1
        full = self._read(0, seq, length)
        if self.window is not None:
            start = max(0, length - self.window)
            np.testing.assert_array_equal(self._read(1, seq, length)[start:], full[start:])
        assert (full >= 0).all(), "read a slot that was never written"
        return full.tolist()

    def _read(self, group: int, seq: int, length: int) -> NDArray[np.int64]:
        size = self.last.block_size
        table = self.last.block_tables[group][seq]
        blocks, offsets = np.divmod(np.arange(length), size)
        return self.cache[group, table[blocks].astype(np.int64) * size + offsets]

    def _check(self, batch: StepInput) -> None:
        int32 = [batch.token_ids, batch.positions, batch.query_start, batch.seq_lens]
        for array in (*int32, batch.logits_indices, *batch.block_tables):
            assert array.dtype == np.int32 and array.flags.c_contiguous
        assert all(s.dtype == np.int64 and s.flags.c_contiguous for s in batch.slot_mapping)
        ends = batch.query_start[1:] - 1
        np.testing.assert_array_equal(batch.positions[ends] + 1, batch.seq_lens)


def runner_config(**fields: Any) -> Any:
    """What scheduler and runner read of a VllmConfig."""
    values = {
        "max_num_seqs": 8,
        "max_model_len": 128,
        "max_num_batched_tokens": 64,
        "num_blocks": 64,
        "enable_prefix_caching": True,
        "logprobs_mode": "raw_logprobs",
        **fields,
    }
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(
            max_num_seqs=values["max_num_seqs"],
            max_num_active_seqs=None,
            max_num_batched_tokens=values["max_num_batched_tokens"],
            max_num_scheduled_tokens=None,
            enable_chunked_prefill=True,
            long_prefill_token_threshold=0,
            scheduling_policy="fcfs",
            watermark=0.0,
        ),
        model_config=SimpleNamespace(
            max_model_len=values["max_model_len"], logprobs_mode=values["logprobs_mode"]
        ),
        cache_config=SimpleNamespace(
            enable_prefix_caching=values["enable_prefix_caching"],
            prefix_caching_hash_algo="sha256",
            num_gpu_blocks=values["num_blocks"],
            block_size=16,
        ),
    )


def bind(model: PagedFake, config: Any) -> KVCacheConfig:
    """Lay out and bind the cache of `model`."""
    cache = config.cache_config
    kv = make_kv_cache_config(
        model.kv_layers, cache.num_gpu_blocks, cache.block_size, config.model_config.max_model_len
    )
    model.bind_kv_cache(kv, "float32")
    return kv
