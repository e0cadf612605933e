"""Which layers share a block table, what a page holds, and which blocks a group needs.

Layers of one kind (full attention, or one window) are split into groups of equal size, the last
one padded. A page is one block of `num_tensors` layers, so a block of any group fits any page
and all groups share one pool:

    18 layers, every 6th full:  group 0 (full): 5 11 17 | group 1 (window): 0 1 2 | 2: 3 4 6 ...
    KV tensor i of the page:    i-th layer of the group that owns the block

Invariant: a group's tables have the same length as every other's; blocks that a window left
behind are the null block 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vllm.v1.messages import KVCacheConfig, KVCacheGroup, KVLayerSpec

GROUP_COST = 1.0
"""Cost of one more group (its block table and slot mapping), in layers of a window group."""

FULL_WEIGHT = 4.0
"""A padded layer of a full group wastes memory for the whole context, not for a window."""


def make_kv_cache_config(
    kv_layers: Sequence[KVLayerSpec],
    num_blocks: int,
    block_size: int,
    max_model_len: int | None = None,
) -> KVCacheConfig:
    """Layout of the pool. Windows that never bind (>= `max_model_len`) count as full attention."""
    num_tensors, groups = split_layers(kv_layers, max_model_len)
    return KVCacheConfig(num_blocks, block_size, num_tensors, groups)


def page_bytes(
    kv_layers: Sequence[KVLayerSpec],
    block_size: int,
    dtype_bytes: int,
    max_model_len: int | None = None,
) -> int:
    """Bytes of one block of the pool; a layer with smaller heads is padded to the largest."""
    num_tensors, _ = split_layers(kv_layers, max_model_len)
    width = max(layer.num_kv_heads * layer.head_dim for layer in kv_layers)
    return num_tensors * 2 * block_size * width * dtype_bytes


def split_layers(
    kv_layers: Sequence[KVLayerSpec], max_model_len: int | None = None
) -> tuple[int, tuple[KVCacheGroup, ...]]:
    """(layers per group, groups); full attention first, then windows from small to large."""
    if not kv_layers:
        raise ValueError("a model without attention layers has no KV cache groups")
    kinds: dict[int | None, list[int]] = {}
    for layer_idx, layer in enumerate(kv_layers):
        window = layer.window
        if window is not None and max_model_len is not None and window >= max_model_len:
            window = None
        kinds.setdefault(window, []).append(layer_idx)
    size = _best_group_size({window: len(layers) for window, layers in kinds.items()})
    groups = [
        KVCacheGroup(tuple(layers[start : start + size]), window)
        for window, layers in sorted(kinds.items(), key=lambda kind: kind[0] or 0)
        for start in range(0, len(layers), size)
    ]
    return size, tuple(groups)


def max_concurrency(config: KVCacheConfig, num_tokens: int, max_step_tokens: int) -> float:
    """How many requests of `num_tokens` tokens the pool holds at once."""
    policies = [GroupPolicy(group.window, config.block_size) for group in config.groups]
    need = sum(policy.peak_blocks(num_tokens, max_step_tokens) for policy in policies)
    return (config.num_blocks - 1) / need


def max_request_tokens(config: KVCacheConfig, max_step_tokens: int) -> int:
    """Tokens of the longest request that fits the pool alone; 0 if none does."""
    policies = [GroupPolicy(group.window, config.block_size) for group in config.groups]
    num_blocks = config.num_blocks - 1

    def fits(num_tokens: int) -> bool:
        return sum(p.peak_blocks(num_tokens, max_step_tokens) for p in policies) <= num_blocks

    low, high = 0, 1 << 40
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """Which blocks of a request a group needs. A token at p sees (p - window, p]."""

    window: int | None
    block_size: int

    def first_needed_block(self, num_computed_tokens: int) -> int:
        """Index of the first block that the next token, at `num_computed_tokens`, can see."""
        if self.window is None:
            return 0
        return max(0, num_computed_tokens - self.window + 1) // self.block_size

    def peak_blocks(self, num_tokens: int, max_step_tokens: int) -> int:
        """Most blocks held at once by a request that grows to `num_tokens` tokens."""
        total = -(-num_tokens // self.block_size)
        if self.window is None:
            return total
        span = self.window - 1 + max_step_tokens
        return min(total, -(-span // self.block_size) + 1)

    def hit_length(
        self, hashes: Sequence[bytes], limit: int, find: Callable[[bytes], int | None]
    ) -> int:
        """Largest n <= `limit` so that a token after n blocks finds all that it sees cached."""
        if self.window is None:
            return next((i for i in range(limit) if find(hashes[i]) is None), limit)
        num_needed = -(-(self.window - 1) // self.block_size)
        end = limit
        for i in reversed(range(limit)):
            if end - i > num_needed:
                break
            if find(hashes[i]) is None:
                end = i
        return end


def _best_group_size(num_layers: dict[int | None, int]) -> int:
    def cost(size: int) -> float:
        total = 0.0
        for window, count in num_layers.items():
            num_groups = -(-count // size)
            weight = FULL_WEIGHT if window is None else 1.0
            total += num_groups * (size * weight + GROUP_COST)
        return total

    if len(num_layers) == 1:
        return next(iter(num_layers.values()))
    return min(range(1, max(num_layers.values()) + 1), key=cost)
