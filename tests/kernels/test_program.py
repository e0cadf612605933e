"""The step program: op by op or whole, in any number of threads, and what it shows of itself."""

from typing import Any

import numpy as np
import pytest

from tests.kernels.programs import step
from tests.kernels.toy import HEAD_DIM, HEADS, Toy
from vllm.kernels import native, reference
from vllm.kernels.native import Program


def test_a_whole_step_against_the_reference(isa: str) -> None:
    toy = Toy()
    toy.program.run(toy.inputs())
    inputs = toy.inputs()
    x = reference.embedding(toy.table, inputs["token_ids"])
    heads = {"num_heads": HEADS, "num_kv_heads": HEADS, "head_dim": HEAD_DIM}
    q, k, v = reference.rope_cache(
        reference.linear(x, toy.qkv_weight), inputs["positions"], cos_sin=toy.cos_sin,
        rot_dim=HEAD_DIM, **heads,
    )  # fmt: skip
    k_cache, v_cache = (np.zeros_like(cache) for cache in toy.program.kv_arrays(0))
    reference.write_cache(k, v, inputs["slot_mapping"][0], k_cache, v_cache)
    rows = []
    for s, (first, last) in enumerate([(0, 5), (5, 7)]):
        table, length = inputs["block_tables"][0][s], int(inputs["seq_lens"][s])
        keys, values = reference.read_cache(k_cache, v_cache, table, length)
        position = np.arange(length - (last - first), length, dtype=np.int32)
        out = reference.attention(q[first:last], keys, values, position, scale=0.25)
        rows.append(out.reshape(last - first, -1))
    last_rows = reference.gather(np.concatenate(rows), inputs["logits_indices"])
    expected = reference.linear(last_rows, toy.table)
    got = toy.program.array(toy.logits)[:2]
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_op_by_op_gives_the_same_bits(isa: str, threads: int) -> None:
    native.set_num_threads(threads)
    whole, eager = Toy(), Toy()
    whole.program.run(whole.inputs())
    for i in range(eager.program.num_ops):
        eager.program.run(eager.inputs(), first=i, last=i + 1)
    np.testing.assert_array_equal(
        whole.program.array(whole.logits), eager.program.array(eager.logits)
    )


def test_more_threads_than_cores_give_the_same_bits() -> None:
    """Threads come late all the time then, and find their share taken, or the op over."""
    toy = Toy()
    toy.program.run(toy.inputs())
    once = toy.program.array(toy.logits)[:2].copy()
    native.set_num_threads(24)
    for _ in range(300):
        toy.program.array(toy.logits)[:] = 0
        toy.program.run(toy.inputs())
        np.testing.assert_array_equal(toy.program.array(toy.logits)[:2], once)


def test_the_head_can_run_again_for_other_rows(isa: str) -> None:
    toy = Toy()
    toy.program.run(toy.inputs(logits_indices=np.array([0, 1, 2, 3], np.int32)))
    first = toy.program.array(toy.logits)[:4].copy()
    toy.program.run(toy.inputs())
    head = toy.program.num_ops - 2
    toy.program.run(toy.inputs(logits_indices=np.array([0, 1, 2, 3], np.int32)), first=head)
    np.testing.assert_array_equal(toy.program.array(toy.logits)[:4], first)


def test_params_may_be_an_object() -> None:
    class Step:
        def __init__(self, fields: dict[str, Any]) -> None:
            self.__dict__.update(fields)

    one, two = Toy(), Toy()
    one.program.run(one.inputs())
    two.program.run(Step(two.inputs()))
    np.testing.assert_array_equal(one.program.array(one.logits), two.program.array(two.logits))


def test_an_empty_step_does_nothing() -> None:
    toy = Toy()
    toy.program.run(
        step(
            0,
            query_start=np.zeros(1, np.int32),
            seq_lens=np.zeros(0, np.int32),
            logits_indices=np.zeros(0, np.int32),
            slot_mapping=[np.zeros(0, np.int64)],
            block_tables=[np.zeros((0, 2), np.int32)],
        )
    )


# ---- memory, timings --------------------------------------------------------------------------


def test_buffers_are_where_the_plan_puts_them() -> None:
    program = Program(10, 3, 1)
    assert native.row_bytes(33) == 192
    assert native.row_bytes(64, "q8") % 64 == 0
    a = program.buffer("tokens", 33)
    assert program.arena_bytes == 10 * 192
    b = program.buffer("tokens", 16, offset_bytes=64)
    c = program.buffer("logits", 16)
    assert program.arena_bytes == 10 * 192 + 3 * 64
    program.array(a)[:] = 0
    program.array(b)[0, :] = 7
    assert program.array(a).shape == (10, 33)
    np.testing.assert_array_equal(program.array(a)[0, 16:32], 7)
    assert not program.array(c).any()


def test_views_keep_the_program_alive() -> None:
    toy = Toy()
    toy.program.run(toy.inputs())
    view, (k, _) = toy.program.array(toy.logits), toy.program.kv_arrays(0)
    before, keys = view.copy(), k.copy()
    del toy
    np.testing.assert_array_equal(view, before)
    np.testing.assert_array_equal(k, keys)


def test_timings_count_calls_when_asked() -> None:
    toy = Toy()
    toy.program.run(toy.inputs())
    assert [calls for _, calls, _ in toy.program.timings()] == [0] * 6
    toy.program.set_timing(True)
    toy.program.run(toy.inputs())
    toy.program.run(toy.inputs(), first=4)
    rows = toy.program.timings()
    assert [name for name, _, _ in rows] == [
        "embedding", "linear", "rope_cache", "attention", "gather", "linear",
    ]  # fmt: skip
    assert [calls for _, calls, _ in rows] == [1, 1, 1, 1, 2, 2]
    assert all(0 < seconds < 1 for _, _, seconds in rows)


def test_an_idle_cache_takes_no_memory() -> None:
    """A terabyte of KV cache is a reservation only."""
    program = Program(4, 1, 1)
    x, y = program.buffer("tokens", 64), program.buffer("tokens", 64)
    heads = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 16, "kv_kind": "f16", "kv_tensor": 0}
    program.add("attention", {**heads, "q": x, "out": y, "scale": 1.0})
    program.bind_kv(2**30, 16, 1, 1)
    k, _ = program.kv_arrays(0)
    assert k.nbytes == 2**40 // 2
    k[-1, -1, -1, -1] = 1
    assert k[-1, -1, -1, -1] == 1
