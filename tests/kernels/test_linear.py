"""Linear against numpy, for every form of weight, on odd shapes.

Quantised weights multiply 16-bit or 8-bit activations exactly, so the oracle multiplies the
dequantised weight with the dequantised activations in float64. And each output row has the same
bits whatever the other rows of the batch and the number of threads.
"""

from typing import Any

import numpy as np
import pytest

from tests.kernels.programs import step, unpack_q8
from vllm.kernels import native, reference
from vllm.kernels.native import Program, Weight

pytestmark = pytest.mark.usefixtures("isa")

Form = tuple[str, int, bool]

FLOATS: list[Form] = [("f32", 0, False), ("f16", 0, False), ("bf16", 0, False)]
INT8: list[Form] = [
    ("q8", 16, False),
    *(("q8", group, has_min) for group in (32, 64, 128) for has_min in (False, True)),
]
INT4: list[Form] = [("q4", group, True) for group in (32, 64, 128)]


# All that the tiles of any ISA can be made of, and some more.
ROW_COUNTS = [*range(1, 27), 31, 33, 47, 64, 65, 70]


def case_id(form: Form, bits: int) -> str:
    kind, group, has_min = form
    return f"{kind}-{group}{'-min' * has_min}-{bits}bits" if group else kind


CASES = [(form, 16) for form in FLOATS] + [(f, bits) for f in INT8 + INT4 for bits in (16, 8)]
forms = pytest.mark.parametrize(("form", "bits"), CASES, ids=[case_id(*case) for case in CASES])


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def make_weight(form: Form, n: int, k: int) -> Weight:
    weight = Weight(*form, n, k)
    weight.pack(0, random(n, k, seed=7), "f32", n)
    return weight


class Linear:
    """A program that quantises x if the weight wants that, and multiplies."""

    def __init__(self, weight: Weight, max_rows: int, bits: int = 16, **args: Any) -> None:
        self.n, self.k = weight.shape
        self.bits = bits
        self.program = Program(max_rows, max_rows, max_rows, bits)
        self.x = self.program.buffer("tokens", self.k)
        self.q8 = self.program.buffer("tokens", self.k, "q8")
        # Columns beyond n must stay untouched.
        self.out = self.program.buffer("tokens", self.n + 5)
        operand: dict[str, Any] = {"x": self.x}
        if weight.kind in ("q8", "q4"):
            self.program.add("quantize", {"size": self.k, "x": self.x, "out_q8": self.q8})
            operand = {"x_q8": self.q8}
        for name, value in args.items():
            args[name] = self.program.const(value) if isinstance(value, np.ndarray) else value
        self.residual = self.program.buffer("tokens", self.n)
        if args.pop("with_residual", False):
            args["residual"] = self.residual
        w = self.program.weight(weight)
        self.program.add("linear", {"w": w, **operand, "out": self.out, **args})

    def __call__(self, x: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
        rows = len(x)
        out = self.program.array(self.out)
        out[:] = -7.0
        self.program.array(self.x)[:rows] = x
        if residual is not None:
            self.program.array(self.residual)[:rows] = residual
        self.program.run(step(rows))
        assert (out[:rows, self.n :] == -7.0).all()
        assert (out[rows:] == -7.0).all()
        return out[:rows, : self.n].copy()

    def operand(self, rows: int) -> np.ndarray:
        """What the kernel multiplied in the last call: quantised rows read back as floats."""
        q, scale, _ = unpack_q8(self.program.array(self.q8)[:rows], self.k, self.bits)
        return reference.dequantize(q, scale, self.k)


def check(weight: Weight, rows: int, bits: int, **args: Any) -> None:
    n, k = weight.shape
    linear = Linear(weight, rows + 1, bits, **args)
    x = random(rows, k, seed=1)
    residual = random(rows, n, seed=2) if args.get("with_residual") else None
    out = linear(x, residual)
    operand = linear.operand(rows) if weight.kind in ("q8", "q4") else x
    alpha, bias = args.get("alpha", 1.0), args.get("bias")
    expected = reference.linear(operand, weight.unpack(), bias, alpha, residual)
    size = np.abs(operand).astype(np.float64) @ np.abs(weight.unpack()).astype(np.float64).T
    # A chain of k float operations: each rounds what was summed so far.
    bound = 2.0**-23 * (abs(alpha) * size * (2 + k**0.5) + 4 * np.abs(expected) + 1)
    assert (np.abs(out - expected) <= bound).all()


@forms
@pytest.mark.parametrize("k", [1, 2, 31, 33, 96, 300, 576])
def test_inner_sizes(form: Form, bits: int, k: int) -> None:
    check(make_weight(form, 37, k), 5, bits)


@forms
def test_output_sizes(form: Form, bits: int) -> None:
    for n in [*range(1, 34), 47, 48, 63, 64, 65, 70, 129]:
        check(make_weight(form, n, 96), 3, bits)


@forms
def test_row_counts(form: Form, bits: int) -> None:
    weight = make_weight(form, 70, 160)
    for rows in ROW_COUNTS:
        check(weight, rows, bits)


@forms
def test_the_shapes_of_a_small_model(form: Form, bits: int) -> None:
    for n, k in [(576, 576), (960, 576), (3072, 576), (576, 1536)]:
        check(make_weight(form, n, k), 2, bits)


@forms
@pytest.mark.parametrize("rows", [1, 9])
def test_bias_alpha_and_residual(form: Form, bits: int, rows: int) -> None:
    weight = make_weight(form, 45, 64)
    bias = random(45, seed=3)
    check(weight, rows, bits, bias=bias)
    check(weight, rows, bits, alpha=0.37)
    check(weight, rows, bits, with_residual=True)
    check(weight, rows, bits, bias=bias, alpha=-1.7, with_residual=True)


@forms
@pytest.mark.parametrize("shape", [(70, 288), (1, 32), (33, 1536)])
def test_a_row_has_the_same_bits_in_every_batch(
    form: Form, bits: int, shape: tuple[int, int]
) -> None:
    linear = Linear(make_weight(form, *shape), 70, bits)
    x = random(70, shape[1])
    alone = np.concatenate([linear(row[None]) for row in x])
    for rows in ROW_COUNTS:
        np.testing.assert_array_equal(
            linear(x[:rows]).view(np.uint32), alone[:rows].view(np.uint32)
        )


@forms
def test_threads_do_not_change_bits(form: Form, bits: int) -> None:
    linear = Linear(make_weight(form, 147, 288), 40, bits)
    x = random(40, linear.k)
    for rows in (1, 2, 7, 40):
        native.set_num_threads(1)
        one = linear(x[:rows])
        for threads in (2, 3, 5):
            native.set_num_threads(threads)
            np.testing.assert_array_equal(linear(x[:rows]), one)


def q8_0_weight(q: np.ndarray) -> Weight:
    """A weight with the given int8 values and scale 1."""
    n, k = q.shape
    blocks = np.zeros((n, k // 32, 34), np.uint8)
    blocks[..., :2] = np.full((n, k // 32, 1), 1.0, np.float16).view(np.uint8)
    blocks[..., 2:] = q.reshape(n, k // 32, 32).view(np.uint8)
    weight = Weight("q8", 32, False, n, k)
    weight.pack(0, blocks, "q8_0", n)
    return weight


def test_extreme_integers_are_exact() -> None:
    """All weights at the ends of int8, all activations at the largest: nothing saturates."""
    q = np.where(np.arange(40 * 256).reshape(40, 256) % 3 == 0, 127, -128).astype(np.int8)
    q[0], q[1] = -128, 127
    linear = Linear(q8_0_weight(q), 9, bits=8)
    x = np.where(random(9, 256) > 0, 127.0, -127.0).astype(np.float32)
    x[0], x[1] = 127.0, -127.0
    np.testing.assert_array_equal(linear(x), x.astype(np.int64) @ q.astype(np.int64).T)


def test_all_sixteen_bits_count() -> None:
    """With scale 1, a block's result is its exact integer dot, rounded once to float."""
    rng = np.random.default_rng(5)
    q = rng.integers(-128, 128, (40, 32)).astype(np.int8)
    q[0] = -128
    x = rng.integers(-32258, 32259, (9, 32)).astype(np.float32)
    x[:, 0] = 32258
    x[0] = 32258
    out = Linear(q8_0_weight(q), 9, bits=16)(x)
    np.testing.assert_array_equal(
        out, (x.astype(np.int64) @ q.astype(np.int64).T).astype(np.float32)
    )


@forms
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_activation_spoils_its_own_row_only(form: Form, bits: int, bad: float) -> None:
    linear = Linear(make_weight(form, 20, 96), 4, bits)
    x = random(3, 96)
    good = linear(x)
    x[1, 50] = bad
    out = linear(x)
    assert not np.isfinite(out[1]).any()
    np.testing.assert_array_equal(out[[0, 2]], good[[0, 2]])


def test_forms_that_do_not_exist_are_refused() -> None:
    for form in [("q4", 32, False), ("q4", 16, True), ("q8", 16, True), ("f32", 32, False)]:
        with pytest.raises(ValueError):
            Weight(*form, 64, 256)
