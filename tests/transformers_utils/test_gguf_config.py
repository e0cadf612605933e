"""Configs from GGUF metadata, against Transformers' own reading of the same files."""

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.transformers_utils.gguf_builder import GGUF, Typed, tiny_llama
from vllm.exceptions import ModelFileError
from vllm.transformers_utils.config import ModelArch, load_hf_config
from vllm.transformers_utils.embedded import find_embedded

# Our names for what only we say, or spell differently.
OURS_ALONE = {
    "_gguf", "_source", "architectures", "torch_dtype", "rope_theta", "rope_scaling",
    "rope_local_base_freq", "mlp_bias", "attention_bias", "partial_rotary_factor", "eos_token_id",
    "head_dim", "sliding_window",
}  # fmt: skip


def family(name: str, **extra: Any) -> GGUF:
    kvs = {
        "general.architecture": name,
        f"{name}.block_count": 6,
        f"{name}.context_length": 512,
        f"{name}.embedding_length": 64,
        f"{name}.feed_forward_length": 128,
        f"{name}.attention.head_count": 4,
        f"{name}.attention.head_count_kv": 2,
        f"{name}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{name}.rope.freq_base": 50000.0,
        "tokenizer.ggml.tokens": ["a", "b", "c"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
    }
    kvs |= {f"{name}.{key.replace('__', '.')}": value for key, value in extra.items()}
    return GGUF(kvs).add("token_embd.weight", np.zeros((3, 64), np.float32))


FAMILIES = {
    "llama": family("llama"),
    "qwen2": family("qwen2"),
    "qwen3": family("qwen3", attention__key_length=32, attention__value_length=32),
    "gemma2": family(
        "gemma2", attention__key_length=32, attention__value_length=32,
        attention__sliding_window=128, attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
    ),
    "gemma3": family(
        "gemma3", attention__key_length=32, attention__value_length=32,
        attention__sliding_window=128, rope__scaling__type="linear", rope__scaling__factor=8.0,
    ),
    "phi3": family("phi3", attention__sliding_window=100),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_config_equals_transformers(name: str, tmp_path: Path) -> None:
    file = FAMILIES[name]
    # Transformers builds it on a folder; ours takes the file.
    file.write(tmp_path / "m.gguf")
    theirs = AutoConfig.from_pretrained(tmp_path, gguf_file="m.gguf").to_dict()
    ours = load_hf_config(tmp_path / "m.gguf")
    known = {k: v for k, v in ours.items() if k not in OURS_ALONE and k in theirs}
    assert len(known) >= 12
    for key, value in known.items():
        if name == "gemma3" and key == "rope_parameters":
            assert value["full_attention"]["factor"] == 8.0
        elif isinstance(value, float):
            assert math.isclose(theirs[key], value, rel_tol=1e-6), key
        elif key not in ("rope_parameters", "query_pre_attn_scalar"):
            assert theirs[key] == value, key
    arch = ModelArch.from_hf(ours)
    assert arch.eos_token_ids == (2,)
    assert arch.torch_dtype == "float32"
    assert arch.tie_word_embeddings  # no output.weight


def test_sliding_windows_of_gemma(tmp_path: Path) -> None:
    for name, period in (("gemma2", 2), ("gemma3", 6)):
        path = FAMILIES[name].write(tmp_path / "m.gguf")
        windows = ModelArch.from_hf(load_hf_config(path)).attention_windows
        assert windows == tuple(None if (i + 1) % period == 0 else 128 for i in range(6))
    per_layer = family(
        "gemma3", attention__sliding_window=128, attention__key_length=16,
        attention__sliding_window_pattern=[True, False] * 3,
    )  # fmt: skip
    arch = ModelArch.from_hf(load_hf_config(per_layer.write(tmp_path / "m.gguf")))
    assert arch.attention_windows == (128, None) * 3


def test_multipliers_of_granite(tmp_path: Path) -> None:
    file = family(
        "granite", attention__scale=0.015625, embedding_scale=12.0, residual_scale=0.22,
        logit_scale=16.0,
    )  # fmt: skip
    config = load_hf_config(file.write(tmp_path / "m.gguf"))
    assert config["attention_multiplier"] == 0.015625
    assert config["embedding_multiplier"] == 12.0
    assert config["residual_multiplier"] == 0.22
    assert config["logits_scaling"] == 16.0
    assert config["model_type"] == "granite"


@pytest.mark.parametrize(("name", "architecture"), [
    ("olmo2", "Olmo2ForCausalLM"), ("smollm3", "SmolLM3ForCausalLM"),
])  # fmt: skip
def test_other_families(name: str, architecture: str, tmp_path: Path) -> None:
    arch = ModelArch.from_hf(load_hf_config(family(name).write(tmp_path / "m.gguf")))
    assert arch.architectures == (architecture,)


def llama3_divisors(head_dim: int, theta: float, scaling: dict[str, Any]) -> np.ndarray:
    """How much Transformers slows each frequency down; what converters store."""
    rope = {**scaling, "rope_theta": theta}
    config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, rope_parameters=rope)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1 / theta ** (torch.arange(0, head_dim, 2).double() / head_dim)
    return (plain / scaled.double()).float().numpy()


PUBLISHED = {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recognised_in_its_table(factor: float, tmp_path: Path) -> None:
    scaling = {**PUBLISHED, "factor": factor}
    file = family("llama", rope__freq_base=500000.0, attention__key_length=64)
    file.add("rope_freqs.weight", llama3_divisors(64, 500000.0, scaling))
    config = load_hf_config(file.write(tmp_path / "m.gguf"))
    assert config["rope_scaling"] == scaling


def test_any_other_table_is_kept_number_by_number(tmp_path: Path) -> None:
    divisors = llama3_divisors(64, 500000.0, {**PUBLISHED, "high_freq_factor": 3.0})
    file = family("llama", rope__freq_base=500000.0, attention__key_length=64)
    file.add("rope_freqs.weight", divisors)
    scaling = load_hf_config(file.write(tmp_path / "m.gguf"))["rope_scaling"]
    assert scaling["rope_type"] == "longrope"
    assert scaling["short_factor"] == scaling["long_factor"] == divisors.tolist()
    assert scaling["attention_factor"] == 1.0
    config = load_hf_config(tmp_path / "m.gguf")
    assert ModelArch.from_hf(config).default_max_model_len == 512
    file.add("rope_freqs.weight", divisors[:5])
    with pytest.raises(ModelFileError, match=r"rope_freqs.weight must have 32 values"):
        load_hf_config(file.write(tmp_path / "m.gguf"))


def test_phi3_long_and_short_factors(tmp_path: Path) -> None:
    file = family(
        "phi3", rope__scaling__original_context_length=128, rope__scaling__attn_factor=1.19,
        rope__dimension_count=12,
    )  # fmt: skip
    file.add("rope_factors_short.weight", np.full(6, 1.5, np.float32))
    file.add("rope_factors_long.weight", np.full(6, 3.0, np.float32))
    config = load_hf_config(file.write(tmp_path / "m.gguf"))
    assert config["rope_scaling"] == {
        "rope_type": "longrope", "short_factor": [1.5] * 6, "long_factor": [3.0] * 6,
        "original_max_position_embeddings": 128, "partial_rotary_factor": 0.75,
        "attention_factor": pytest.approx(1.19, rel=1e-6),
    }  # fmt: skip
    arch = ModelArch.from_hf(config)
    assert (arch.max_position, arch.default_max_model_len) == (512, 128)


def test_yarn(tmp_path: Path) -> None:
    file = family(
        "qwen2", rope__scaling__type="yarn", rope__scaling__factor=4.0,
        rope__scaling__original_context_length=128,
    )  # fmt: skip
    config = load_hf_config(file.write(tmp_path / "m.gguf"))
    assert config["rope_scaling"] == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128
    }  # fmt: skip


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no architecture": ({"general__architecture": None}, "general.architecture is missing"),
    "unknown": ({"general__architecture": "quux"}, "'quux' is not supported (supported: gemma2,"),
    "not text": ({"general__architecture": 5}, "general.architecture is missing"),
    "heads 0": ({"llama__attention__head_count": 0}, "llama.attention.head_count: must be"),
    "blocks 0": ({"llama__block_count": 0}, "llama.block_count: must be a positive"),
    "blocks 1e6": ({"llama__block_count": 1_000_000}, "llama.block_count: 1000000 is imposs"),
    "no blocks": ({"llama__block_count": None}, "llama.block_count: missing"),
    "text": ({"llama__embedding_length": "32"}, "llama.embedding_length: must be"),
    "theta nan": ({"llama__rope__freq_base": math.nan}, "llama.rope.freq_base: must be"),
    "theta 0": ({"llama__rope__freq_base": 0.0}, "llama.rope.freq_base: must be"),
    "theta inf": ({"llama__rope__freq_base": math.inf}, "llama.rope.freq_base: must be"),
    "theta f64": ({"llama__rope__freq_base": Typed(12, 1e300)}, "llama.rope.freq_base: must be"),
    "eps": ({"llama__attention__layer_norm_rms_epsilon": -1.0}, "layer_norm_rms_epsilon: must"),
    "head size": ({"llama__attention__head_count": 5}, "5 does not divide 32"),
    "kv heads": (
        {"llama__attention__head_count_kv": Typed(4, [2, 1])},
        "head_count_kv: layers of different sizes are not supported",
    ),
    "value length": ({"llama__attention__value_length": 16}, "attention.value_length: differs"),
    "vocab": ({"tokenizer__ggml__tokens": ["x"] * 7}, "tokens has 7 entries, token_embd.weight 6"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_file_and_key(name: str, tmp_path: Path) -> None:
    changes, expected = REFUSED[name]
    path = tiny_llama(1, **changes).write(tmp_path / "m.gguf")
    with pytest.raises(ModelFileError) as caught:
        load_hf_config(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert expected in str(caught.value)


def test_equal_kv_heads_per_layer_are_one_number(tmp_path: Path) -> None:
    file = tiny_llama(2, llama__attention__head_count_kv=Typed(4, [2, 2]))
    config = load_hf_config(file.write(tmp_path / "m.gguf"))
    assert config["num_key_value_heads"] == 2


def test_an_output_matrix_and_biases_show(tmp_path: Path) -> None:
    file = tiny_llama(1).add("output.weight", np.zeros((6, 32), np.float32))
    file.add("blk.0.attn_q.bias", np.zeros(32, np.float32))
    config = load_hf_config(file.write(tmp_path / "m.gguf"))
    assert not config["tie_word_embeddings"]
    assert config["attention_bias"]


def test_end_of_turn_ends_too(tmp_path: Path) -> None:
    file = tiny_llama(1, tokenizer__ggml__eot_token_id=3)
    config = load_hf_config(file.write(tmp_path / "m.gguf"))
    assert ModelArch.from_hf(config).eos_token_ids == (1, 3)


@pytest.mark.skipif(find_embedded() is None, reason="the embedded model is not installed")
def test_the_real_model() -> None:
    path = find_embedded()
    assert path is not None
    start = time.process_time()
    config = load_hf_config(path)
    assert time.process_time() - start < 0.2
    theirs = AutoConfig.from_pretrained(path.parent, gguf_file=path.name).to_dict()
    for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
                "tie_word_embeddings", "model_type"):  # fmt: skip
        assert config[key] == theirs[key]
    assert config["rope_parameters"] == theirs["rope_parameters"]
    assert np.float32(config["rms_norm_eps"]) == np.float32(theirs["rms_norm_eps"])
    assert config["rms_norm_eps"] == 1e-5
    assert ModelArch.from_hf(config).torch_dtype == "float16"
