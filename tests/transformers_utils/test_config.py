"""config.json -> dict: nesting, overrides, code that must not run, generation settings."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm.exceptions import ConfigError, ModelFileError
from vllm.transformers_utils.config import ModelArch, load_generation_config, load_hf_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64,
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "torch_dtype": "bfloat16",
}  # fmt: skip


def write(folder: Path, config: Any, name: str = "config.json") -> Path:
    (folder / name).write_text(json.dumps(config))
    return folder


def test_a_plain_config(tmp_path: Path) -> None:
    config = load_hf_config(write(tmp_path, LLAMA))
    assert config["_source"] == str(tmp_path / "config.json")
    assert config["rms_norm_eps"] == 1e-6
    arch = ModelArch.from_hf(config)
    assert arch.architectures == ("LlamaForCausalLM",)
    assert (arch.num_layers, arch.num_heads, arch.num_kv_heads, arch.head_dim) == (2, 4, 2, 8)
    assert arch.torch_dtype == "bfloat16"
    assert (arch.bos_token_id, arch.eos_token_ids, arch.pad_token_id) == (1, (2,), None)
    assert arch.attention_windows == (None, None)
    assert arch.quant_method is None


def test_new_spelling_of_dtype(tmp_path: Path) -> None:
    config = {**LLAMA, "dtype": "float16"}
    del config["torch_dtype"]
    assert ModelArch.from_hf(load_hf_config(write(tmp_path, config))).torch_dtype == "float16"


GEMMA3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "eos_token_id": [1, 106],
    "torch_dtype": "bfloat16",
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}  # fmt: skip


def test_the_text_model_of_a_wrapper(tmp_path: Path) -> None:
    config = load_hf_config(write(tmp_path, GEMMA3_4B))
    arch = ModelArch.from_hf(config)
    assert arch.architectures == ("Gemma3ForConditionalGeneration",)
    assert arch.model_type == "gemma3_text"
    assert (arch.hidden_size, arch.num_heads, arch.head_dim) == (2560, 8, 256)
    assert arch.vocab_size == 262208
    assert arch.eos_token_ids == (1, 106)
    assert arch.tie_word_embeddings
    assert arch.attention_windows[:6] == (1024, 1024, 1024, 1024, 1024, None)
    assert config["rope_parameters"]["full_attention"]["factor"] == 8.0
    assert config["rope_local_base_freq"] == 10_000.0


def test_overrides_are_merged_at_every_depth(tmp_path: Path) -> None:
    overrides = {"text_config": {"sliding_window": 512}, "torch_dtype": "float32"}
    config = load_hf_config(write(tmp_path, GEMMA3_4B), hf_overrides=overrides)
    assert config["sliding_window"] == 512
    assert config["hidden_size"] == 2560
    assert config["torch_dtype"] == "float32"


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_rope_overrides_work_in_either_spelling(spelling: str, tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    old = {**LLAMA, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}
    for base in (old, new):
        config = load_hf_config(write(tmp_path, base), hf_overrides={spelling: yarn})
        assert config["rope_parameters"] == {**yarn, "rope_theta": 5e5}
        one = load_hf_config(tmp_path, hf_overrides={spelling: {"factor": 8.0}})
        assert one["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
        assert one["rope_theta"] == 5e5
        theta = load_hf_config(tmp_path, hf_overrides={"rope_theta": 1e6})
        assert theta["rope_parameters"]["rope_theta"] == theta["rope_theta"] == 1e6
        off = load_hf_config(tmp_path, hf_overrides={spelling: None})
        assert (off["rope_scaling"], off["rope_theta"]) == (None, 5e5)


def test_overrides_by_a_function(tmp_path: Path) -> None:
    def double(config: dict[str, Any]) -> dict[str, Any]:
        return {**config, "vocab_size": 2 * config["vocab_size"]}

    assert load_hf_config(write(tmp_path, LLAMA), hf_overrides=double)["vocab_size"] == 128
    with pytest.raises(ConfigError, match="hf_overrides function must return"):
        load_hf_config(tmp_path, hf_overrides=lambda config: None)  # type: ignore[arg-type,return-value]


WATCHER = """
import sys
sys.addaudithook(lambda event, args: "evil" in str(args) and print("TOUCHED", event, args))
from vllm.transformers_utils.config import load_hf_config
auto_map = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.C"}
config = load_hf_config(sys.argv[1], hf_overrides={"auto_map": auto_map})
assert "auto_map" not in config
"""


def test_code_that_a_config_names_is_never_loaded(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (tmp_path / "evil.py").write_text(f"open({str(canary)!r}, 'w')\nclass C: pass\n")
    auto_map = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.C"}
    write(tmp_path, {**LLAMA, "auto_map": auto_map, "text_config": {**LLAMA, "auto_map": auto_map}})
    run = subprocess.run(
        [sys.executable, "-c", WATCHER, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert not canary.exists()


def test_formats_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no config.json here"):
        load_hf_config(tmp_path)
    write(tmp_path, {}, "params.json")
    with pytest.raises(ModelFileError, match="mistral config format is not supported"):
        load_hf_config(tmp_path)
    with pytest.raises(ConfigError, match="--config-format mistral is not supported"):
        load_hf_config(tmp_path, "mistral")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("hidden_size", None, "hidden_size: missing"),
        ("hidden_size", "32", "hidden_size: must be an integer from 1 to"),
        ("hidden_size", True, "hidden_size: must be an integer"),
        ("num_hidden_layers", 0, "num_hidden_layers: must be an integer from 1 to 4096, not 0"),
        ("num_hidden_layers", 10**12, "num_hidden_layers: must be"),
        ("num_attention_heads", 6, "num_attention_heads: 6 does not divide 32"),
        ("num_key_value_heads", 3, "num_key_value_heads: 3 does not divide 4 heads"),
        ("head_dim", 7, "head_dim: must be even, not 7"),
        ("max_position_embeddings", None, "max_position_embeddings: missing"),
        ("vocab_size", -1, "vocab_size: must be"),
        ("torch_dtype", "int8", "torch_dtype: must be one of"),
        ("eos_token_id", "2", "eos_token_id: must be a token id or a list"),
        ("architectures", [], "architectures: must be a list of names"),
        ("architectures", None, "architectures: must be a list of names"),
        ("tie_word_embeddings", "yes", "tie_word_embeddings: must be true or false"),
        ("quantization_config", {}, "quantization_config: has no quant_method"),
    ],
)
def test_wrong_values_name_file_and_key(
    key: str, value: Any, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError) as caught:
        ModelArch.from_hf(load_hf_config(write(tmp_path, {**LLAMA, key: value})))
    assert f"{tmp_path}/config.json: {expected}" in str(caught.value)


def test_quantized_checkpoints_say_so(tmp_path: Path) -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 4}}
    assert ModelArch.from_hf(load_hf_config(write(tmp_path, config))).quant_method == "awq"


def test_generation_config(tmp_path: Path) -> None:
    assert load_generation_config(tmp_path) == {}
    write(tmp_path, {"eos_token_id": 5, "top_k": 20, "top_p": None}, "generation_config.json")
    assert load_generation_config(tmp_path) == {"eos_token_id": [5], "top_k": 20}
    write(tmp_path, {"eos_token_id": [5, 6]}, "generation_config.json")
    assert load_generation_config(tmp_path) == {"eos_token_id": [5, 6]}
    write(tmp_path, {"eos_token_id": "end"}, "generation_config.json")
    with pytest.raises(ModelFileError, match=r"generation_config\.json: eos_token_id"):
        load_generation_config(tmp_path)
