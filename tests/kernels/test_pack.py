"""Packing: what a weight holds, against the gguf package's own dequantisation and against numpy."""

import gguf
import numpy as np
import pytest

from vllm.kernels import native
from vllm.kernels.native import Weight

pytestmark = pytest.mark.usefixtures("isa")

Form = tuple[str, int, bool]

# Where the halves (d, dmin or m) of a block are, and the form that holds its integers.
BLOCKS: dict[str, tuple[list[int], Form]] = {
    "q4_0": ([0], ("q4", 32, True)),
    "q4_1": ([0, 2], ("q4", 32, True)),
    "q5_0": ([0], ("q8", 32, False)),
    "q5_1": ([0, 2], ("q8", 32, True)),
    "q8_0": ([0], ("q8", 32, False)),
    "q4_k": ([0, 2], ("q4", 32, True)),
    "q5_k": ([0, 2], ("q8", 32, True)),
    "q6_k": ([208], ("q8", 16, False)),
}
EXACT = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q6_k"]
FLOATS = {"f32": np.float32, "f16": np.float16}


def random_blocks(type_name: str, n: int, k: int, seed: int = 0) -> np.ndarray:
    """Rows of blocks whose bytes are random, with scales of a sane size: [n, row bytes]."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name.upper()]]
    rng = np.random.default_rng([seed, n, k])
    blocks = rng.integers(0, 256, (n, k // block, size), np.uint8)
    for offset in BLOCKS[type_name][0]:
        halves = rng.uniform(-0.1, 0.1, (n, k // block, 1)).astype(np.float16)
        blocks[..., offset : offset + 2] = halves.view(np.uint8)
    return blocks.reshape(n, -1)


def dequantized(type_name: str, blocks: np.ndarray) -> np.ndarray:
    return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[type_name.upper()])


def packed(form: Form, n: int, k: int, source: np.ndarray, type_name: str) -> np.ndarray:
    weight = Weight(*form, n, k)
    weight.pack(0, source, type_name, n)
    return weight.unpack()


@pytest.mark.parametrize("type_name", BLOCKS)
@pytest.mark.parametrize("n", [1, 7, 33, 70])
def test_blocks_keep_their_values(type_name: str, n: int) -> None:
    blocks = random_blocks(type_name, n, 512)
    got = packed(BLOCKS[type_name][1], n, 512, blocks, type_name)
    want = dequantized(type_name, blocks)
    if type_name in EXACT:
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
        return
    # Products of d with 6-bit factors are rounded to f16, d * scale * q and dmin * min apart.
    d, dmin = (
        np.abs(blocks.reshape(n, 2, -1)[..., o : o + 2].copy().view(np.float16)) for o in (0, 2)
    )
    bound = 2.0**-11 * 63 * (31 * d.astype(np.float32) + dmin) + 1e-6
    assert (np.abs(got - want).reshape(n, 2, 256) <= bound).all()


@pytest.mark.parametrize("type_name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
@pytest.mark.parametrize("k", [32, 96, 576])
def test_quantised_floats(type_name: str, k: int) -> None:
    """The same through blocks that the gguf package made from floats."""
    x = np.random.default_rng(k).standard_normal((20, k)).astype(np.float32)
    blocks = gguf.quants.quantize(x, gguf.GGMLQuantizationType[type_name.upper()])
    got = packed(BLOCKS[type_name][1], 20, k, blocks, type_name)
    np.testing.assert_allclose(got, dequantized(type_name, blocks), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("type_name", BLOCKS)
def test_float_weights_from_blocks(type_name: str) -> None:
    blocks = random_blocks(type_name, 9, 256)
    got = packed(("f32", 0, False), 9, 256, blocks, type_name)
    np.testing.assert_allclose(got, dequantized(type_name, blocks), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("type_name", BLOCKS)
@pytest.mark.parametrize("form", [("q8", 128, True), ("q8", 16, False), ("q8", 32, False)])
def test_blocks_in_another_form_are_rounded(type_name: str, form: Form) -> None:
    blocks = random_blocks(type_name, 9, 256)
    got, want = packed(form, 9, 256, blocks, type_name), dequantized(type_name, blocks)
    group = want.reshape(9, -1, form[1])
    span = np.ptp(group, axis=2) / 255 if form[2] else np.abs(group).max(axis=2) / 127
    error = np.abs(got - want).reshape(group.shape).max(axis=2)
    assert (error <= span * 0.51 + np.abs(group).max(axis=2) * 1e-3).all()


@pytest.mark.parametrize("source", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (33, 100), (70, 65)])
def test_float_conversions(source: str, kind: str, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    x.flat[: min(x.size, 3)] = [6.1e-8, -65504.0, 1e-3][: min(x.size, 3)]
    raw, x = stored(x, source)
    want = stored(x, kind)[1]
    np.testing.assert_array_equal(packed((kind, 0, False), *shape, raw, source), want)


def stored(x: np.ndarray, type_name: str) -> tuple[np.ndarray, np.ndarray]:
    """x rounded to a type: as bytes, and as float32."""
    if type_name in FLOATS:
        with np.errstate(over="ignore"):
            rounded = x.astype(FLOATS[type_name])
        return rounded, rounded.astype(np.float32)
    bits = np.ascontiguousarray(x).view(np.uint32).astype(np.uint64)
    bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


def test_conversion_to_half_rounds_to_even_and_keeps_what_is_not_finite() -> None:
    every = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(invalid="ignore"):
        middle = np.nextafter(every, np.float32(np.inf)), (every[:-1] + every[1:]) / 2
    tiny = np.array([2e-8, 2.98e-8, 3e-8, 65519.9, 65520.0, 1e30, -np.inf, np.nan], np.float32)
    x = np.concatenate([every, *middle, tiny])[None]
    with np.errstate(over="ignore"):
        want = x.astype(np.float16).astype(np.float32)
    got = packed(("f16", 0, False), *x.shape, x, "f32")
    np.testing.assert_array_equal(got, want)


FORMS = [
    *[("q8", group, False) for group in (16, 32, 64, 128)],
    *[(kind, group, True) for kind in ("q8", "q4") for group in (32, 64, 128)],
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(1, 128), (37, 160), (40, 300), (3, 7)])
def test_floats_are_rounded_to_the_nearest_step(form: Form, shape: tuple[int, int]) -> None:
    kind, group, has_min = form
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32) + np.float32(0.3)
    x[0] = 0
    error = np.abs(packed(form, *shape, x, "f32") - x)
    for first in range(0, shape[1], group):
        part = x[:, first : first + group]
        span = np.ptp(part, axis=1) if has_min else np.abs(part).max(axis=1)
        steps = 15 if kind == "q4" else 255 if has_min else 127
        # f16 scales and minima add up to 2^-11 of the largest value each.
        bound = span / steps * 0.5 + 2.0**-10 * np.abs(part).max(axis=1) + 1e-7
        assert (error[:, first : first + group].max(axis=1) <= bound).all()


@pytest.mark.parametrize("type_name", [*BLOCKS, "f32", "bf16"])
def test_pieces_at_any_row_and_any_number_of_threads(type_name: str) -> None:
    """A fused matrix is packed by several calls; rows need not start at a panel."""
    n, k = 75, 256
    form: Form = BLOCKS[type_name][1] if type_name in BLOCKS else (type_name, 0, False)
    if type_name in BLOCKS:
        rows = random_blocks(type_name, n, k)
    else:
        rows = stored(
            np.random.default_rng(3).standard_normal((n, k)).astype(np.float32), type_name
        )[0]
    whole = packed(form, n, k, rows, type_name)
    native.set_num_threads(3)
    weight = Weight(*form, n, k)
    for first, last in [(41, 75), (0, 5), (5, 6), (6, 41)]:
        weight.pack(first, np.ascontiguousarray(rows[first:last]), type_name, last - first)
    np.testing.assert_array_equal(weight.unpack(), whole)


@pytest.mark.parametrize("type_name", ["q4_1", "q8_0", "q6_k", "f32", "f16"])
def test_sources_need_no_alignment(type_name: str) -> None:
    n, k = 5, 256
    form: Form = BLOCKS[type_name][1] if type_name in BLOCKS else (type_name, 0, False)
    if type_name in BLOCKS:
        rows = random_blocks(type_name, n, k)
    else:
        rows = np.random.default_rng(4).standard_normal((n, k)).astype(FLOATS[type_name])
    shifted = np.empty(rows.nbytes + 1, np.uint8)
    shifted[1:] = rows.reshape(-1).view(np.uint8)
    np.testing.assert_array_equal(
        packed(form, n, k, shifted[1:], type_name), packed(form, n, k, rows, type_name)
    )


def test_memory_is_close_to_that_of_the_checkpoint() -> None:
    n, k = 4096, 1024
    for type_name, factor in {"q4_1": 1.0, "q8_0": 1.0, "q5_1": 1.5, "q6_k": 1.53}.items():
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name.upper()]]
        weight = Weight(*BLOCKS[type_name][1], n, k)
        assert weight.nbytes <= n * k // block * size * factor
