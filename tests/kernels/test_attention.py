"""Paged attention: against the reference, and the same bits whatever the step looks like."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.paged import Heads, PagedAttention, stored
from vllm.kernels import native, reference


def random_sequences(
    heads: Heads, lengths: list[int], seed: int = 0
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Queries, keys and values of each sequence, [tokens, heads, head_dim]."""
    rng = np.random.default_rng([seed, *lengths])

    def draw(num_heads: int) -> list[np.ndarray]:
        return [
            rng.standard_normal((n, num_heads, heads.head_dim)).astype(np.float32) for n in lengths
        ]

    return draw(heads.num_heads), draw(heads.num_kv_heads), draw(heads.num_kv_heads)


def expected(heads: Heads, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return reference.attention(
        q,
        stored(k, heads.kv_kind),
        stored(v, heads.kv_kind),
        np.arange(len(k), dtype=np.int32),
        scale=heads.head_dim**-0.5,
        **heads.options,
    )


SINKS = np.array([0.5, -1.0, 3.0, 0.0], np.float32)
CASES: list[tuple[str, dict[str, Any], list[int]]] = [
    ("plain", {}, [1, 16, 17, 300]),
    ("long", {}, [1030]),
    ("one head per kv head", {"num_kv_heads": 4}, [5, 257]),
    ("many heads per kv head", {"num_heads": 14, "num_kv_heads": 2}, [40, 3]),
    ("more heads than a tile has rows", {"num_heads": 71, "num_kv_heads": 1, "head_dim": 8}, [9]),
    ("head_dim 8", {"head_dim": 8}, [33]),
    ("head_dim 40", {"head_dim": 40}, [70]),
    ("head_dim 72", {"head_dim": 72}, [70, 280]),
    ("head_dim 128", {"head_dim": 128}, [270]),
    ("head_dim 256", {"head_dim": 256}, [100]),
    ("head_dim 512", {"head_dim": 512, "num_heads": 2, "num_kv_heads": 1}, [40]),
    ("block 16", {"block_size": 16}, [100, 260]),
    ("block 48", {"block_size": 48}, [100, 530]),
    ("block 512", {"block_size": 512}, [100, 700]),
    ("window", {"options": {"window": 20}}, [1, 19, 20, 21, 300]),
    ("window over chunks", {"options": {"window": 300}}, [800]),
    ("window 1", {"options": {"window": 1}}, [270]),
    ("softcap", {"options": {"softcap": 2.0}}, [300]),
    ("sinks", {"options": {"sinks": SINKS}}, [1, 300]),
    ("all options", {"options": {"sinks": SINKS, "window": 50, "softcap": 3.0}}, [400]),
]


@pytest.mark.parametrize("kv_kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("name", "fields", "lengths"), CASES, ids=[case[0] for case in CASES])
def test_prefill_against_reference(
    isa: str, name: str, fields: dict[str, Any], lengths: list[int], kv_kind: str
) -> None:
    heads = Heads(kv_kind=kv_kind, **fields)
    q, k, v = random_sequences(heads, lengths)
    paged = PagedAttention(heads, k, v)
    results = paged.run([(s, 0, n) for s, n in enumerate(lengths)], q)
    for s, out in enumerate(results):
        np.testing.assert_allclose(out, expected(heads, q[s], k[s], v[s]), rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("kv_kind", ["f32", "f16"])
@pytest.mark.parametrize(("name", "fields", "lengths"), CASES, ids=[case[0] for case in CASES])
def test_decode_gives_the_bits_of_prefill(
    isa: str, name: str, fields: dict[str, Any], lengths: list[int], kv_kind: str, threads: int
) -> None:
    heads = Heads(kv_kind=kv_kind, **fields)
    q, k, v = random_sequences(heads, lengths)
    paged = PagedAttention(heads, k, v)
    whole = paged.run([(s, 0, n) for s, n in enumerate(lengths)], q)
    native.set_num_threads(threads)
    for back in (1, 2, 16, 17, 255, 256, 257):
        rows = [(s, n - back, 1) for s, n in enumerate(lengths) if n >= back]
        if not rows:
            continue
        for (s, start, _), out in zip(rows, paged.run(rows, q), strict=True):
            np.testing.assert_array_equal(out[0], whole[s][start])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize(
    "options", [{}, {"window": 37}, {"window": 270, "sinks": SINKS}], ids=["full", "37", "270"]
)
def test_any_split_gives_the_same_bits(options: dict[str, Any], data: st.DataObject) -> None:
    native.set_isa(data.draw(st.sampled_from(native.isas())))
    heads = Heads(kv_kind="f16", head_dim=24, block_size=16, options=options)
    lengths = data.draw(st.lists(st.integers(1, 600), min_size=1, max_size=4))
    q, k, v = random_sequences(heads, lengths)
    paged = PagedAttention(heads, k, v)
    alone = [paged.run([(s, 0, n)], q)[0] for s, n in enumerate(lengths)]
    cuts = [[0, *sorted(data.draw(st.sets(st.integers(1, n), max_size=6)) | {n})] for n in lengths]
    pieces = [
        (s, start, end - start) for s, ends in enumerate(cuts) for start, end in pairwise(ends)
    ]
    pieces = data.draw(st.permutations(pieces))
    native.set_num_threads(data.draw(st.integers(1, 4)))
    while pieces:
        batch = pieces[: data.draw(st.integers(1, len(pieces)))]
        pieces = pieces[len(batch) :]
        for (s, start, n), out in zip(batch, paged.run(batch, q), strict=True):
            np.testing.assert_array_equal(out, alone[s][start : start + n])


def test_block_size_does_not_matter(isa: str) -> None:
    lengths = [513]
    results = []
    for block_size in (16, 32, 48, 64, 128, 1024):
        heads = Heads(block_size=block_size)
        q, k, v = random_sequences(heads, lengths)
        results.append(PagedAttention(heads, k, v).run([(0, 0, 513)], q)[0])
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_what_lies_outside_the_window_is_never_read(isa: str) -> None:
    """Blocks that left the window may belong to another request by now: here they hold NaN."""
    heads = Heads(block_size=16, options={"window": 40})
    q, k, v = random_sequences(heads, [700])
    want = expected(heads, q[0], k[0], v[0])
    for array in (*k, *v):
        array[: 699 - 40 - 15] = np.nan
    out = PagedAttention(heads, k, v).run([(0, 699, 1)], q)[0]
    np.testing.assert_allclose(out, want[699:], rtol=3e-5, atol=3e-6)


def test_large_scores_do_not_overflow(isa: str) -> None:
    heads = Heads()
    q, k, v = random_sequences(heads, [300])
    q[0] *= 1000
    out = PagedAttention(heads, k, v).run([(0, 0, 300)], q)[0]
    np.testing.assert_allclose(out, expected(heads, q[0], k[0], v[0]), rtol=2e-3, atol=2e-3)
