"""What a step program refuses: inputs of a step, ops, and building blocks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.kernels.programs import step
from tests.kernels.toy import BLOCK, BLOCKS, HIDDEN, VOCAB, Toy, packed, random
from vllm.kernels import native
from vllm.kernels.native import Program, Weight

# ---- inputs of a step that are refused --------------------------------------------------------


def replaced(name: str, index: Any, value: Any) -> Callable[[Toy], dict[str, Any]]:
    def change(toy: Toy) -> dict[str, Any]:
        inputs = toy.inputs()
        array = inputs[name][0] if isinstance(inputs[name], list) else inputs[name]
        array[index] = value
        return inputs

    return change


def given(**fields: Any) -> Callable[[Toy], dict[str, Any]]:
    return lambda toy: toy.inputs(**fields)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (replaced("token_ids", 3, VOCAB), r"token_ids\[3\] is 40"),
        (replaced("token_ids", 0, -1), r"token_ids\[0\] is -1"),
        (replaced("positions", 6, 50), r"positions\[6\] is 50"),
        (replaced("positions", 6, -(2**31)), r"positions\[6\]"),
        (replaced("logits_indices", 1, 7), r"logits_indices\[1\] is 7"),
        (replaced("slot_mapping", 2, BLOCK * BLOCKS), r"slot_mapping\[2\] is 80"),
        (replaced("slot_mapping", 2, -1), r"slot_mapping\[2\] is -1"),
        (replaced("block_tables", (1, 1), BLOCKS), r"block_tables\[1\] is 5"),
        (replaced("block_tables", (0, 0), -3), r"block_tables\[0\] is -3"),
        (replaced("query_start", 0, 1), r"query_start\[0\] is 1"),
        (replaced("query_start", 1, 8), r"query_start\[1\] is 8"),
        (replaced("query_start", 2, 6), "the end of query_start is 6"),
        (replaced("seq_lens", 0, 4), r"seq_lens\[0\] is 4"),
        (replaced("seq_lens", 1, 33), r"seq_lens\[1\] is 33"),
        (given(token_ids=np.zeros(25, np.int32), positions=np.zeros(25, np.int32),
               slot_mapping=[np.zeros(25, np.int64)]), "number of tokens is 25"),
        (given(logits_indices=np.zeros(5, np.int32)), "number of logits_indices is 5"),
        (given(positions=np.zeros(6, np.int32)), "positions must be of length 7"),
        (given(token_ids=np.zeros(7, np.int64)), "token_ids must be a C-contiguous array of int32"),
        (given(token_ids=[1, 2, 3, 4, 5, 6, 7]), "token_ids must be a C-contiguous array"),
        (given(token_ids=np.zeros((7, 2), np.int32)[:, 0]), "token_ids must be a C-contiguous"),
        (given(slot_mapping=[]), "slot_mapping must be a list with one array per group"),
        (given(slot_mapping=[np.zeros(7, np.int32)]), "slot_mapping must be a C-contiguous array"),
        (given(block_tables=[np.zeros((1, 2), np.int32)]), "block_tables must be arrays"),
        (lambda toy: {}, "token_ids must be given"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_refused(change: Callable[[Toy], dict[str, Any]], named: str) -> None:
    toy = Toy()
    with pytest.raises(ValueError, match=named):
        toy.program.run(change(toy))
    toy.program.run(toy.inputs())


def test_unused_entries_of_a_block_table_are_not_looked_at() -> None:
    toy = Toy()
    toy.program.run(replaced("block_tables", (0, 1), 10**6)(toy))


@pytest.mark.parametrize(("first", "last"), [(0, 7), (-1, 3), (4, 3)])
def test_wrong_op_ranges_are_refused(first: int, last: int) -> None:
    toy = Toy()
    with pytest.raises(ValueError, match=r"first|last"):
        toy.program.run(toy.inputs(), first=first, last=last)


# ---- ops that are refused ---------------------------------------------------------------------


class Parts:
    """A program with one of everything that ops can name."""

    def __init__(self) -> None:
        self.program = Program(8, 4, 2)
        self.x = self.program.buffer("tokens", 64)
        self.y = self.program.buffer("tokens", 64)
        self.rows = self.program.buffer("logits", 64)
        self.q8 = self.program.buffer("tokens", 64, "q8")
        self.shared = self.program.buffer("tokens", 64, offset_bytes=0)
        self.vector = self.program.const(np.ones(64, np.float32))
        self.short = self.program.const(np.ones(63, np.float32))
        self.table = self.program.const(np.ones((9, 16), np.float32))
        self.w = self.program.weight(packed(random(64, 64)))


RMS = {"kind": "rms", "size": 64, "eps": 1e-6}
HEAD = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 16, "kv_kind": "f16", "kv_tensor": 0}


@pytest.mark.parametrize(
    ("op", "args", "named"),
    [
        ("nothing", lambda p: {}, "op 'nothing' is unknown"),
        ("norm", lambda p: {**RMS, "x": p.x}, "out is missing"),
        ("norm", lambda p: {**RMS, "x": 99, "out": p.y}, "x is buffer 99, which does not exist"),
        ("norm", lambda p: {**RMS, "x": -1, "out": p.y}, "x is -1"),
        ("norm", lambda p: {**RMS, "x": (p.x, 1), "out": p.y}, "x has 64 columns, used from 1"),
        ("norm", lambda p: {**RMS, "x": (p.x, -1), "out": p.y}, "x has 64 columns"),
        ("norm", lambda p: {**RMS, "x": p.q8, "out": p.y}, "x must be an f32 buffer"),
        ("norm", lambda p: {**RMS, "x": p.x, "out": p.rows}, "mix token and logits rows"),
        ("norm", lambda p: {**RMS, "x": p.x, "out": p.y, "size": 65}, "x has 64 columns"),
        ("norm", lambda p: {**RMS, "x": p.x, "out": p.y, "weight": p.short}, "vector of 64"),
        ("norm", lambda p: {**RMS, "x": p.x, "out": p.y, "weight": 77}, "weight is 77"),
        ("norm", lambda p: {**RMS, "x": p.x, "out": p.y, "eps": np.nan}, "eps must be finite"),
        ("norm", lambda p: {**RMS, "x": p.x, "out": p.y, "eps": "1"}, "eps must be a number"),
        ("norm", lambda p: {**RMS, "x": p.x, "out": p.y, "kind": "max"}, "kind is 'max'"),
        ("norm", lambda p: {**RMS, "x": p.x, "out": p.y, "epsilon": 1}, "epsilon is not an arg"),
        ("norm", lambda p: {**RMS, "x": p.x, "out": [p.y]}, "out must be None, a number"),
        ("quantize", lambda p: {"x": p.x, "out_q8": p.q8, "size": 32}, "exactly 32"),
        ("linear", lambda p: {"w": p.w, "x": p.x, "out": p.shared}, "shares memory"),
        ("linear", lambda p: {"w": p.w, "x_q8": p.q8, "out": p.y}, "x is missing"),
        ("linear", lambda p: {"w": 3, "x": p.x, "out": p.y}, "w is 3"),
        ("embedding", lambda p: {"w": p.w, "out": p.rows}, "token rows"),
        ("gather", lambda p: {"x": p.x, "out": p.y, "size": 64}, "out must have logits rows"),
        ("logits", lambda p: {"x": p.x, "size": 64}, "x must have logits rows"),
        ("logits", lambda p: {"x": p.rows, "size": 64, "softcap": -1.0}, "softcap"),
        ("act", lambda p: {"act": "silu", "gated": True, "size": 64, "x": p.x, "out": p.y},
         "128 are needed"),
        ("rope_cache", lambda p: {**HEAD, "qkv": p.x, "num_kv_heads": 2}, "96 are needed"),
        ("rope_cache", lambda p: {**HEAD, "qkv": p.x, "head_dim": 12}, "multiple of 8"),
        ("rope_cache", lambda p: {**HEAD, "qkv": p.x, "kv_kind": "int8"}, "kv_kind is 'int8'"),
        ("rope_cache", lambda p: {**HEAD, "qkv": p.x, "rot_dim": 16}, "go together"),
        ("rope_cache", lambda p: {**HEAD, "qkv": p.x, "rot_dim": 8, "cos_sin": p.table},
         "rows of 8"),
        ("rope_cache", lambda p: {**HEAD, "qkv": p.x, "qk_norm": "full", "eps": 1e-6},
         "q_norm and k_norm"),
        ("attention", lambda p: {**HEAD, "q": p.x, "out": p.x, "scale": 1}, "shares memory"),
        ("attention", lambda p: {**HEAD, "q": p.x, "out": p.y}, "scale is missing"),
        ("attention", lambda p: {**HEAD, "q": p.x, "out": p.y, "scale": 1, "num_heads": 3,
                                 "num_kv_heads": 2}, "num_heads must be a multiple"),
        ("attention", lambda p: {**HEAD, "q": p.x, "out": p.y, "scale": 1, "window": -1},
         "window is -1"),
        ("attention", lambda p: {**HEAD, "q": p.x, "out": p.y, "scale": 1, "sinks": p.vector},
         "sinks must be a vector of 2"),
    ],
)  # fmt: skip
def test_wrong_ops_are_refused(
    op: str, args: Callable[[Parts], dict[str, Any]], named: str
) -> None:
    parts = Parts()
    with pytest.raises(ValueError, match=named):
        parts.program.add(op, args(parts))
    assert parts.program.num_ops == 0
    parts.program.run(step(1))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: Program(0, 1, 1), "max_tokens is 0"),
        (lambda: Program(4, 5, 1), "max_logits is 5"),
        (lambda: Program(4, 1, 1).buffer("rows", 8), "rows is 'rows'"),
        (lambda: Program(4, 1, 1).buffer("tokens", 0), "cols is 0"),
        (lambda: Program(4, 1, 1).buffer("tokens", 8, "f64"), "dtype is 'f64'"),
        (lambda: Program(4, 1, 1).buffer("tokens", 8, offset_bytes=32), "multiple of 64"),
        (lambda: Program(4, 1, 1).buffer("tokens", 8, offset_bytes=-64), "offset_bytes is -64"),
        (lambda: Program(4, 1, 1).const(np.ones(3)), "float32"),
        (lambda: Program(4, 1, 1).const(np.ones((0, 3), np.float32)), "not empty"),
        (lambda: Program(4, 1, 1).array(0), "buffer id is 0"),
        (lambda: Program(4, 1, 1).kv_arrays(0), "kv tensor is 0"),
        (lambda: Program(4, 1, 1).bind_kv(1, 8, 1, 1), "block_size is 8"),
        (lambda: Program(4, 1, 1).bind_kv(1, 24, 1, 1), "multiple of 16"),
        (lambda: Program(4, 1, 1).bind_kv(0, 16, 1, 1), "num_blocks is 0"),
        (lambda: Weight("f32", 32, False, 4, 4), "no group"),
        (lambda: Weight("q4", 8, False, 4, 32), "group 8"),
        (lambda: Weight("f64", 0, False, 4, 4), "kind is 'f64'"),
        (lambda: Weight("f32", 0, False, 0, 4), "n is 0"),
        (lambda: Weight("f32", 0, False, 4, 4).pack(0, np.ones((3, 4), np.float32), "f32", 4),
         "src has 48 bytes; 4 rows of 4 values have 64"),
        (lambda: Weight("f32", 0, False, 4, 4).pack(3, np.ones((2, 4), np.float32), "f32", 2),
         "n_rows is 2"),
        (lambda: Weight("q4", 32, True, 4, 32).pack(0, np.zeros(4 * 144, np.uint8), "q4_k", 4),
         "blocks of 256"),
        (lambda: native.set_isa("mmx"), "isa 'mmx'"),
    ],
)  # fmt: skip
def test_wrong_building_blocks_are_refused(call: Callable[[], object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        call()


def test_kv_tensors_need_one_shape_and_must_exist() -> None:
    program = Program(4, 1, 1)
    x, y = program.buffer("tokens", 64), program.buffer("tokens", 64)
    program.add("attention", {**HEAD, "q": x, "out": y, "scale": 1.0})
    other = {**HEAD, "kv_kind": "f32"}
    program.add("attention", {**other, "q": x, "out": y, "scale": 1.0})
    with pytest.raises(ValueError, match="different types or head shapes"):
        program.bind_kv(4, 16, 1, 1)
    with pytest.raises(ValueError, match="kv_tensor is 0"):
        program.bind_kv(4, 16, 0, 1)
    with pytest.raises(ValueError, match="call bind_kv first"):
        program.run(step(1))


def test_a_weight_of_another_isa_is_refused() -> None:
    if len(native.isas()) < 2:
        pytest.skip("one ISA only")
    weight = packed(random(8, 8))
    native.set_isa(native.isas()[1])
    try:
        with pytest.raises(ValueError, match="packed for"):
            Program(4, 1, 1).weight(weight)
    finally:
        native.set_isa(native.isas()[0])


def test_a_cache_that_can_not_exist_is_a_memory_error() -> None:
    program = Program(4, 1, 1)
    x, y = program.buffer("tokens", 64), program.buffer("tokens", 64)
    program.add("attention", {**HEAD, "q": x, "out": y, "scale": 1.0})
    with pytest.raises(MemoryError):
        program.bind_kv(2**31 - 2, 2**16, 1, 1)


def test_after_the_first_run_nothing_can_be_added() -> None:
    toy = Toy()
    toy.program.run(toy.inputs())
    with pytest.raises(ValueError, match="can't be extended"):
        toy.program.buffer("tokens", 8)
    with pytest.raises(ValueError, match="can't be extended"):
        toy.program.add("gather", {"x": 0, "out": 3, "size": HIDDEN})
