"""Layer groups: the split, what a page costs, which blocks a window needs."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from vllm.v1.core.kv_cache_groups import (
    GroupPolicy,
    make_kv_cache_config,
    max_concurrency,
    max_request_tokens,
    page_bytes,
    split_layers,
)
from vllm.v1.messages import KVCacheGroup, KVLayerSpec


def layers(windows) -> list[KVLayerSpec]:
    return [KVLayerSpec(2, 64, window) for window in windows]


def test_equal_layers_are_one_group():
    config = make_kv_cache_config(layers([None] * 30), 100, 32)
    assert config.groups == (KVCacheGroup(tuple(range(30)), None),)
    assert (config.num_blocks, config.block_size, config.num_tensors) == (100, 32, 30)
    assert make_kv_cache_config(layers([512] * 5), 9, 16).groups[0].window == 512


def test_five_windows_to_one_full_layer():
    windows = [None if i % 6 == 5 else 512 for i in range(18)]
    size, groups = split_layers(layers(windows))
    assert size == 3
    assert groups[0] == KVCacheGroup((5, 11, 17), None)
    assert [group.layers for group in groups[1:]] == [
        (0, 1, 2), (3, 4, 6), (7, 8, 9), (10, 12, 13), (14, 15, 16),
    ]  # fmt: skip


def test_the_last_group_of_a_kind_is_padded():
    windows = [None if i % 6 == 5 else 512 for i in range(26)]
    size, groups = split_layers(layers(windows))
    assert size == 4
    assert [len(group.layers) for group in groups] == [4, 4, 4, 4, 4, 4, 2]
    # A few layers more of one kind do not halve the groups: 13 full, 12 with a window.
    assert split_layers(layers([None, 512] * 12 + [None]))[0] == 13


def test_a_window_that_never_binds_is_full_attention():
    specs = layers([None, 4096, 4096, None])
    assert split_layers(specs, max_model_len=4096) == (4, (KVCacheGroup((0, 1, 2, 3), None),))
    assert len(split_layers(specs, max_model_len=4097)[1]) == 2


def test_no_layers():
    with pytest.raises(ValueError, match="without attention layers"):
        split_layers([])


@given(st.lists(st.sampled_from([None, None, 8, 100]), min_size=1, max_size=40))
def test_every_layer_is_in_one_group_of_its_kind(windows):
    size, groups = split_layers(layers(windows))
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(windows)))
    for group in groups:
        assert 1 <= len(group.layers) <= size
        assert all(windows[layer] == group.window for layer in group.layers)


def test_page_bytes():
    # 30 layers x (K + V) x 32 tokens x 3 heads x 64 x 2 bytes
    assert page_bytes([KVLayerSpec(3, 64)] * 30, 32, 2) == 737_280
    mixed = [KVLayerSpec(1, 256, None if i % 6 == 5 else 512) for i in range(18)]
    assert page_bytes(mixed, 16, 4) == 3 * 2 * 16 * 256 * 4
    assert page_bytes([KVLayerSpec(1, 64), KVLayerSpec(2, 64)], 16, 2) == 2 * 2 * 16 * 128 * 2


def visible(window, position) -> set[int]:
    """Positions that a token at `position` attends to, itself included."""
    first = 0 if window is None else max(0, position - window + 1)
    return set(range(first, position + 1))


windows = st.one_of(st.none(), st.integers(1, 20))
block_sizes = st.sampled_from([1, 2, 4, 5])


@given(windows, block_sizes, st.integers(0, 60))
def test_first_needed_block(window, block_size, position):
    policy = GroupPolicy(window, block_size)
    assert policy.first_needed_block(position) == min(visible(window, position)) // block_size


@given(windows, block_sizes, st.lists(st.booleans(), max_size=14), st.integers(0, 2))
def test_hit_length_by_definition(window, block_size, cached, spare):
    """The longest n so that every block before n that the next token sees is cached."""
    keys = [bytes([i]) for i in range(len(cached))]
    limit = max(0, len(keys) - spare)
    found = GroupPolicy(window, block_size).hit_length(
        keys, limit, lambda key: 1 if cached[key[0]] else None
    )

    def is_hit(n: int) -> bool:
        seen = visible(window, n * block_size) - {n * block_size}
        return all(cached[position // block_size] for position in seen)

    assert found == max(n for n in range(limit + 1) if is_hit(n))


@given(
    windows, block_sizes, st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(9, 12)
)
def test_peak_blocks_bounds_what_a_growing_request_holds(window, block_size, chunks, max_step):
    policy = GroupPolicy(window, block_size)
    total, computed, held = sum(chunks), 0, set()
    for chunk in chunks:
        needed = set(range(-(-(computed + chunk) // block_size)))
        if needed - held:  # blocks are released only when others are needed
            held = {b for b in needed if b >= policy.first_needed_block(computed)}
        assert len(held) <= policy.peak_blocks(total, max_step)
        computed += chunk


def test_longest_request():
    config = make_kv_cache_config(layers([None] * 4), 11, 16)
    assert max_request_tokens(config, 64) == 160
    assert max_concurrency(config, 80, 64) == 2.0
    # 10 blocks for 1 full group and 1 window group, which never holds more than
    # ceil((31 + 16) / 16) + 1 = 4 of them: 6 are left for the full group.
    config = make_kv_cache_config(layers([None, 32]), 11, 16)
    assert max_request_tokens(config, 16) == 96
    # Without full attention there is no limit if a window and a step fit, and no request else.
    assert max_request_tokens(make_kv_cache_config(layers([32]), 11, 16), 16) == 1 << 40
    assert max_request_tokens(make_kv_cache_config(layers([None, 32, 64]), 3, 16), 16) == 0
