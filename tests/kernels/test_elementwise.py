"""Row ops against their numpy references, on odd sizes; each row alone gives the same bits."""

from typing import Any

import numpy as np
import pytest

from tests.kernels.programs import run_op, step, unpack_q8
from vllm.kernels import native, reference
from vllm.kernels.native import Program, Weight

pytestmark = pytest.mark.usefixtures("isa")

SIZES = [1, 7, 8, 31, 32, 33, 64, 100, 576, 1000, 2048]
ACTIVATIONS = ["silu", "gelu", "gelu_tanh", "relu", "relu2"]


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    return (rng.standard_normal(shape) * scale).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("affine", [False, True])
def test_norm(size: int, kind: str, affine: bool) -> None:
    x = random(5, size, scale=3.0) + np.float32(0.5)
    weight, bias = (random(size, seed=1), random(size, seed=2)) if affine else (None, None)
    out = run_op(
        "norm",
        {"x": x},
        {"out": (size, "f32")},
        kind=kind,
        size=size,
        eps=1e-5,
        weight=weight,
        bias=bias,
    )["out"]
    expected = reference.norm(x, kind=kind, eps=1e-5, weight=weight, bias=bias)
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bits", [8, 16])
def test_quantize(size: int, bits: int) -> None:
    x = random(4, size)
    x[1] = 0
    out = run_op("quantize", {"x": x}, {"out_q8": (size, "q8")}, bits, size=size)["out_q8"]
    q, scale, sums = unpack_q8(out, size, bits)
    want_q, want_scale, want_sums = reference.quantize(x, bits)
    np.testing.assert_allclose(scale, want_scale, rtol=1e-6)
    # An exact half may be rounded either way: the product before rounding has an error.
    assert np.abs(q.astype(int) - want_q).max() <= 1
    assert (q != want_q).mean() < 1e-3
    np.testing.assert_allclose(sums, scale * q.reshape(4, -1, 32).sum(-1), rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(sums, want_sums, rtol=1e-5, atol=float(scale.max()) * 1.01)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("bits", [8, 16])
def test_quantize_keeps_what_is_not_finite(value: float, bits: int) -> None:
    """So that a request whose numbers broke is told, instead of getting nonsense."""
    x = random(1, 64)
    x[0, 40] = value
    out = run_op("quantize", {"x": x}, {"out_q8": (64, "q8")}, bits=bits, size=64)["out_q8"]
    _, scale, _ = unpack_q8(out, 64, bits)
    np.testing.assert_array_equal(np.isfinite(scale), [[True, False]])


@pytest.mark.parametrize("size", [31, 64, 576])
def test_norm_gives_the_quantised_row_of_its_float_output(size: int) -> None:
    x, weight = random(3, size), random(size, seed=1)
    out = run_op(
        "norm",
        {"x": x},
        {"out": (size, "f32"), "out_q8": (size, "q8")},
        kind="rms",
        size=size,
        eps=1e-6,
        weight=weight,
    )
    again = run_op("quantize", {"x": out["out"]}, {"out_q8": (size, "q8")}, size=size)
    for mine, theirs in zip(
        unpack_q8(out["out_q8"], size), unpack_q8(again["out_q8"], size), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
def test_act(size: int, act: str, gated: bool) -> None:
    x = random(3, 2 * size if gated else size, scale=4.0)
    out = run_op("act", {"x": x}, {"out": (size, "f32")}, act=act, gated=gated, size=size)["out"]
    expected = reference.act(x, act=act, gated=gated)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=4e-6)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_act_of_extreme_values(act: str) -> None:
    x = np.array([[-1e30, -1e4, -200.0, -88.0, -20.0, -0.0, 0.0, 20.0, 88.0, 200.0, 1e4, 1e15]])
    x = x.astype(np.float32)
    out = run_op("act", {"x": x}, {"out": (12, "f32")}, act=act, size=12)["out"]
    with np.errstate(over="ignore"):
        expected = reference.act(x, act=act)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [33, 160])
def test_act_quantised_output(size: int) -> None:
    x = random(3, 2 * size)
    out = run_op(
        "act",
        {"x": x},
        {"out": (size, "f32"), "out_q8": (size, "q8")},
        act="silu",
        gated=True,
        size=size,
    )
    q, scale, _ = unpack_q8(out["out_q8"], size)
    error = np.abs(reference.dequantize(q, scale, size) - out["out"])
    assert error.max() <= 0.5001 * scale.max()


@pytest.mark.parametrize("size", SIZES)
def test_add(size: int) -> None:
    a, b = random(4, size), random(4, size, seed=1)
    out = run_op("add", {"a": a, "b": b}, {"out": (size, "f32")}, size=size, alpha=0.25)["out"]
    np.testing.assert_allclose(out, reference.add(a, b, 0.25), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("scale", "softcap"), [(0.5, 0.0), (1.0, 30.0), (0.25, 5.0)])
def test_logits_and_gather(scale: float, softcap: float) -> None:
    x = random(6, 77, scale=20.0)
    program = Program(8, 4, 1)
    tokens, rows = program.buffer("tokens", 77), program.buffer("logits", 77)
    program.add("gather", {"x": tokens, "out": rows, "size": 77})
    program.add("logits", {"x": rows, "size": 77, "scale": scale, "softcap": softcap})
    program.array(tokens)[:6] = x
    wanted = np.array([5, 0, 2], np.int32)
    program.run(step(6, logits_indices=wanted))
    expected = reference.logits(reference.gather(x, wanted), scale, softcap)
    np.testing.assert_allclose(program.array(rows)[:3], expected, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("k", [8, 72, 100])
def test_embedding(k: int) -> None:
    table = random(50, k)
    weight = Weight("f32", 0, False, 50, k)
    weight.pack(0, table, "f32", 50)
    program = Program(8, 1, 1)
    out = program.buffer("tokens", k)
    program.add("embedding", {"w": program.weight(weight), "out": out, "scale": 1.5})
    ids = np.array([3, 49, 0, 3], np.int32)
    program.run(step(4, token_ids=ids))
    np.testing.assert_array_equal(program.array(out)[:4], reference.embedding(table, ids, 1.5))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("norm", {"kind": "rms", "eps": 1e-6, "size": 200}),
        ("norm", {"kind": "layer", "eps": 1e-6, "size": 200}),
        ("act", {"act": "gelu", "gated": True, "size": 100}),
    ],
)
def test_rows_do_not_depend_on_the_batch_or_threads(
    op: str, args: dict[str, Any], threads: int
) -> None:
    x = random(7, 200)
    outputs = {"out": (args["size"], "f32"), "out_q8": (args["size"], "q8")}
    alone = [run_op(op, {"x": x[i : i + 1]}, outputs, **args) for i in range(7)]
    native.set_num_threads(threads)
    together = run_op(op, {"x": x}, outputs, **args)
    for i in range(7):
        np.testing.assert_array_equal(together["out"][i], alone[i]["out"][0])
        for mine, theirs in zip(
            unpack_q8(together["out_q8"], args["size"]),
            unpack_q8(alone[i]["out_q8"], args["size"]),
            strict=True,
        ):
            np.testing.assert_array_equal(mine[i], theirs[0])


def test_norm_works_in_place() -> None:
    x = random(4, 96)
    program = Program(4, 1, 1)
    buffer = program.buffer("tokens", 96)
    program.add("norm", {"kind": "layer", "x": buffer, "out": buffer, "size": 96, "eps": 1e-6})
    program.array(buffer)[:] = x
    program.run(step(4))
    expected = reference.norm(x, kind="layer", eps=1e-6)
    np.testing.assert_allclose(program.array(buffer), expected, rtol=1e-5, atol=1e-6)
