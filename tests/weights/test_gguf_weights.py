"""GGUF tensors under Hugging Face names and in Hugging Face row order."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.transformers_utils.gguf_builder import GGUF, Typed, tiny_llama
from vllm.exceptions import ModelFileError
from vllm.model_executor.weights import open_checkpoint
from vllm.transformers_utils.embedded import find_embedded

# How the `gguf` package calls the architecture whose Transformers names it maps.
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
}
HF_LAYER = [
    "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
    "self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj",
    "mlp.down_proj",
]  # fmt: skip
HF_EXTRA = {
    "qwen3": ["self_attn.q_norm", "self_attn.k_norm"],
    "gemma2": ["pre_feedforward_layernorm", "post_feedforward_layernorm"],
    "gemma3": [
        "self_attn.q_norm", "self_attn.k_norm", "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ],
    "olmo2": ["self_attn.q_norm", "self_attn.k_norm", "post_feedforward_layernorm"],
}  # fmt: skip
HF_MISSING = {
    "olmo2": ["input_layernorm"],
    "phi3": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj",
             "mlp.up_proj"],
}  # fmt: skip


def hf_names(family: str, num_layers: int) -> list[str]:
    # Gemma 2 has no output matrix of its own.
    names = ["model.embed_tokens", "model.norm"] + ["lm_head"] * (family != "gemma2")
    layer = [n for n in HF_LAYER + HF_EXTRA.get(family, []) if n not in HF_MISSING.get(family, [])]
    if family == "phi3":
        layer += ["self_attn.qkv_proj", "mlp.gate_up_proj"]
    return names + [f"model.layers.{i}.{n}" for i in range(num_layers) for n in layer]


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_names_are_those_that_the_gguf_package_maps(family: str, tmp_path: Path) -> None:
    name_map = gguf.get_tensor_name_map(ARCHITECTURES[family], 12)
    expected = [f"{name}.weight" for name in hf_names(family, 12)]
    file = GGUF({"general.architecture": family, f"{family}.attention.head_count": 1})
    for name in expected:
        gguf_name = name_map.get_name(name, try_suffixes=(".weight",))
        assert gguf_name is not None, name
        file.add(gguf_name, np.zeros((2, 32), np.float32))
    checkpoint = open_checkpoint(file.write(tmp_path / "m.gguf"))
    assert checkpoint.names() == expected


def interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """What the converter does to q and k: rows of the two halves of a head take turns."""
    out = np.empty_like(weight)
    head_dim = len(weight) // num_heads
    for head in range(num_heads):
        for i in range(head_dim // 2):
            base = head * head_dim
            out[base + 2 * i] = weight[base + i]
            out[base + 2 * i + 1] = weight[base + head_dim // 2 + i]
    return out


@pytest.mark.parametrize("kind", ["f32", "q4_0", "q8_0"])
def test_q_and_k_rows_are_put_back(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    hf = {
        "q_proj": rng.standard_normal((32, 32)).astype(np.float32),
        "k_proj": rng.standard_normal((16, 32)).astype(np.float32),
        "v_proj": rng.standard_normal((16, 32)).astype(np.float32),
    }
    stored = {
        "q": interleaved(hf["q_proj"], 4), "k": interleaved(hf["k_proj"], 2), "v": hf["v_proj"]
    }  # fmt: skip
    file = tiny_llama(1)
    their_type = gguf.GGMLQuantizationType[kind.upper()]
    for short, weight in stored.items():
        raw = gguf.quantize(weight, their_type).tobytes()
        file.tensors[f"blk.0.attn_{short}.weight"] = (weight.shape, kind, raw)
    checkpoint = open_checkpoint(file.write(tmp_path / "m.gguf"))
    for name, weight in hf.items():
        tensor = checkpoint.get(f"model.layers.0.self_attn.{name}.weight")
        expected = gguf.dequantize(gguf.quantize(weight, their_type), their_type)
        np.testing.assert_array_equal(tensor.to_float32(), expected)
        assert tensor.type == kind
        assert tensor.shape == weight.shape
        assert tensor.rows.shape[0] == weight.shape[0]


def test_biases_of_q_are_put_back_too(tmp_path: Path) -> None:
    bias = np.arange(32, dtype=np.float32)
    file = tiny_llama(1).add("blk.0.attn_q.bias", interleaved(bias, 4))
    checkpoint = open_checkpoint(file.write(tmp_path / "m.gguf"))
    read = checkpoint.get("model.layers.0.self_attn.q_proj.bias")
    assert read.to_float32().tolist() == bias.tolist()


def test_other_families_keep_their_rows(tmp_path: Path) -> None:
    weight = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
    file = GGUF({"general.architecture": "qwen2", "qwen2.attention.head_count": 4})
    file.add("blk.0.attn_q.weight", weight)
    checkpoint = open_checkpoint(file.write(tmp_path / "m.gguf"))
    read = checkpoint.get("model.layers.0.self_attn.q_proj.weight")
    np.testing.assert_array_equal(read.to_float32(), weight)


@pytest.mark.parametrize("heads", [3, 0, -4, 1 << 40, "four", 32])
def test_heads_that_do_not_fit_are_refused(heads: int | str, tmp_path: Path) -> None:
    file = tiny_llama(1, llama__attention__head_count_kv=None)
    file.kvs["llama.attention.head_count"] = heads if isinstance(heads, str) else Typed(11, heads)
    checkpoint = open_checkpoint(file.write(tmp_path / "m.gguf"))
    with pytest.raises(ModelFileError, match=r"blk.0.attn_q.weight"):
        checkpoint.get("model.layers.0.self_attn.q_proj.weight")


def test_unknown_tensors_keep_their_name_and_rope_tables_are_no_weights(tmp_path: Path) -> None:
    file = tiny_llama(1).add("rope_freqs.weight", np.ones(4, np.float32))
    file.add("blk.0.strange.weight", np.ones(4, np.float32))
    names = open_checkpoint(file.write(tmp_path / "m.gguf")).names()
    assert "rope_freqs.weight" not in names
    assert "blk.0.strange.weight" in names


def test_two_tensors_of_one_hf_name_are_refused(tmp_path: Path) -> None:
    file = tiny_llama(1).add("blk.00.attn_q.weight", np.ones((32, 32), np.float32))
    with pytest.raises(ModelFileError, match="collide"):
        open_checkpoint(file.write(tmp_path / "m.gguf"))


def test_views_outlive_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_llama(1).write(tmp_path / "m.gguf"))
    tensor = checkpoint.get("model.norm.weight")
    before = tensor.to_float32().copy()
    checkpoint.close()
    np.testing.assert_array_equal(tensor.to_float32(), before)


def test_data_can_not_be_written(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_llama(1).write(tmp_path / "m.gguf"))
    with pytest.raises(ValueError, match="read-only"):
        checkpoint.get("model.norm.weight").data[0] = 1


@pytest.mark.skipif(find_embedded() is None, reason="the embedded model is not installed")
def test_the_real_model_has_the_values_of_the_gguf_package() -> None:
    path = find_embedded()
    assert path is not None
    checkpoint = open_checkpoint(path)
    theirs = {t.name: t for t in gguf.GGUFReader(path).tensors}
    down = theirs["blk.7.ffn_down.weight"]
    np.testing.assert_array_equal(
        checkpoint.get("model.layers.7.mlp.down_proj.weight").to_float32(),
        gguf.dequantize(down.data, down.tensor_type),
    )
    q = theirs["blk.7.attn_q.weight"]
    ours = checkpoint.get("model.layers.7.self_attn.q_proj.weight").to_float32()
    np.testing.assert_array_equal(interleaved(ours, 9), gguf.dequantize(q.data, q.tensor_type))
    assert len(checkpoint.names()) == 272
