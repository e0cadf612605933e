"""Every block type against the `gguf` package, on random bytes and at the edges of f16."""

import gguf
import numpy as np
import pytest

from vllm.model_executor.weights.gguf_blocks import DEQUANTIZE
from vllm.model_executor.weights.raw import RawTensor
from vllm.transformers_utils.gguf import BLOCK_TYPES

TYPES = {kind.name: kind for kind in BLOCK_TYPES.values()}


@pytest.mark.parametrize("name", TYPES)
def test_values_equal_the_gguf_package_bit_for_bit(name: str) -> None:
    kind = TYPES[name]
    their_type = gguf.GGMLQuantizationType[name.upper()]
    assert gguf.GGML_QUANT_SIZES[their_type] == (kind.block_size, kind.block_bytes)
    rng = np.random.default_rng(7)
    raw = rng.integers(0, 256, (64, 8 * kind.block_bytes), np.uint8)
    with np.errstate(all="ignore"):  # random f16 scales are often inf or NaN
        expected = gguf.dequantize(raw, their_type).astype(np.float32)
        tensor = RawTensor("t", (64, 8 * kind.block_size), name, raw.reshape(-1))
        actual = tensor.to_float32()
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual, expected)
    assert np.isfinite(actual).mean() > 0.5


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_quantized_values_come_back_close(name: str) -> None:
    values = np.random.default_rng(0).standard_normal((16, 256)).astype(np.float32)
    raw = gguf.quantize(values, gguf.GGMLQuantizationType[name.upper()])
    back = DEQUANTIZE[name](raw.reshape(-1)).reshape(values.shape)
    step = 2 * np.abs(values).max() / (1 << (8 if name == "q8_0" else int(name[1])))
    assert np.abs(back - values).max() <= step


def test_bf16_is_the_upper_half_of_f32() -> None:
    values = np.array([1.0, -2.5, 3.0e38, 1e-40, np.inf], np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    expected = (upper.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(DEQUANTIZE["bf16"](upper.view(np.uint8)), expected)
