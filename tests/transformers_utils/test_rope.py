"""Both spellings of rope settings, against what Transformers makes of them, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from vllm.exceptions import ModelFileError
from vllm.transformers_utils.config import ModelArch, load_hf_config

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64,
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 4096,
}  # fmt: skip
LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}  # fmt: skip
LONG = {"short_factor": [1.0] * 4, "long_factor": [2.0, 3.0, 4.0, 5.0]}
NO_ARCHITECTURES = {k: v for k, v in BASE.items() if k != "architectures"}


def load(folder: Path, **changes: Any) -> dict[str, Any]:
    (folder / "config.json").write_text(json.dumps({**BASE, **changes}))
    return load_hf_config(folder)


SPELLINGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "theta": {"rope_theta": 5e5},
    "null": {"rope_theta": 5e5, "rope_scaling": None},
    "new default": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "new without type": {"rope_parameters": {"rope_theta": 5e5}},
    "llama3": {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    "llama3 new": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "linear both names": {"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 4}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "yarn legacy": {"rope_scaling": {"type": "yarn", "factor": 4.0,
                                     "original_max_position_embeddings": 1024}},
    "yarn without original": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "longrope": {"rope_scaling": {"rope_type": "longrope", **LONG, "factor": 2.0,
                                  "original_max_position_embeddings": 1024}},
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_result_equals_transformers(name: str, tmp_path: Path) -> None:
    ours = load(tmp_path, **SPELLINGS[name])
    theirs = dict(AutoConfig.for_model(**NO_ARCHITECTURES, **SPELLINGS[name]).rope_parameters)
    theirs.pop("type", None)
    assert ours["rope_parameters"] == theirs
    assert ours["rope_theta"] == theirs["rope_theta"]
    if theirs["rope_type"] == "default":
        assert ours["rope_scaling"] is None
    else:
        assert {**ours["rope_scaling"], "rope_theta": ours["rope_theta"]} == theirs


def test_spellings_of_one_setting_agree(tmp_path: Path) -> None:
    assert load(tmp_path, **SPELLINGS["llama3"]) == load(tmp_path, **SPELLINGS["llama3 new"])
    su = load(tmp_path, rope_scaling={"type": "su", **LONG})
    longrope = load(tmp_path, rope_scaling={"rope_type": "longrope", **LONG})
    assert su["rope_scaling"] == longrope["rope_scaling"]


def test_phi3_keeps_the_original_length_beside_the_dict(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        rope_scaling={"type": "longrope", **LONG},
        original_max_position_embeddings=2048,
        partial_rotary_factor=0.75,
    )
    assert config["rope_scaling"]["original_max_position_embeddings"] == 2048
    assert config["rope_scaling"]["partial_rotary_factor"] == 0.75
    arch = ModelArch.from_hf(config)
    assert (arch.max_position, arch.default_max_model_len) == (4096, 2048)


GEMMA3 = {**NO_ARCHITECTURES, "model_type": "gemma3_text", "head_dim": 8}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_theta": 1e6, "rope_local_base_freq": 5e3},
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ],
)
def test_gemma3_layers_of_two_kinds(changes: dict[str, Any], tmp_path: Path) -> None:
    ours = load(tmp_path, **{**GEMMA3, **changes})
    theirs = AutoConfig.for_model(**GEMMA3, **changes).rope_parameters
    assert ours["rope_parameters"] == theirs
    assert ours["rope_local_base_freq"] == theirs["sliding_attention"]["rope_theta"]
    # What Transformers writes, we read to the same result.
    saved = load(tmp_path, **{**GEMMA3, "rope_parameters": theirs})
    assert saved["rope_parameters"] == theirs
    assert saved["rope_theta"] == ours["rope_theta"]
    assert saved["rope_local_base_freq"] == ours["rope_local_base_freq"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "only the type": (
        {"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling.factor is missing"
    ),
    "half": (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        "rope_scaling.low_freq_factor is missing",
    ),
    "both and conflicting": (
        {"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2.0}},
        "rope_scaling contradicts itself: rope_type 'linear', type 'yarn'",
    ),
    "two dicts conflicting": (
        {"rope_scaling": {"type": "linear", "factor": 2.0},
         "rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
        "rope_parameters says yarn, rope_scaling says linear",
    ),
    "factor as a string": (
        {"rope_scaling": {"type": "linear", "factor": "8.0"}},
        "rope_scaling.factor must be a positive number, not '8.0'",
    ),
    "factor nan": (
        {"rope_scaling": {"type": "linear", "factor": float("nan")}}, "rope_scaling.factor must"
    ),
    "factor 0": ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor must"),
    "no type": ({"rope_scaling": {"factor": 2.0}}, "rope_scaling has a factor but no rope_type"),
    "unknown type": (
        {"rope_scaling": {"type": "spiral", "factor": 2.0}}, "rope_type 'spiral' is unknown"
    ),
    "type is a number": ({"rope_scaling": {"type": 3}}, "rope_type must be a string"),
    "not an object": ({"rope_scaling": 8.0}, "rope_scaling must be an object or null, not 8.0"),
    "theta 0": ({"rope_theta": 0}, "rope_theta must be a positive number, not 0"),
    "theta text": ({"rope_theta": "1e4"}, "rope_theta must be a positive number"),
    "factors of a wrong type": (
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": ["a"]}},
        "rope_scaling.long_factor must be a list of positive numbers",
    ),
    "new style": (
        {"rope_parameters": {"rope_type": "yarn", "factor": -1}}, "rope_parameters.factor must"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_file_and_key(name: str, tmp_path: Path) -> None:
    changes, expected = REFUSED[name]
    with pytest.raises(ModelFileError) as caught:
        load(tmp_path, **changes)
    assert str(caught.value).startswith(f"{tmp_path}/config.json: ")
    assert expected in str(caught.value)


def test_mrope_needs_no_factor(tmp_path: Path) -> None:
    for scaling in (
        {"type": "mrope", "mrope_section": [1, 1, 2]},
        {"type": "mrope", "rope_type": "default", "mrope_section": [1, 1, 2]},
    ):
        assert load(tmp_path, rope_scaling=scaling)["rope_scaling"]["rope_type"] == "mrope"


@pytest.mark.parametrize(
    ("changes", "longest"),
    [
        ({}, 4096),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.5}}, 10240),
        (SPELLINGS["yarn legacy"], 4096),
        (SPELLINGS["llama3"], 4096),
        (SPELLINGS["longrope"], 4096),
        ({"model_type": "gemma3_text", "head_dim": 8,
          "rope_scaling": {"type": "linear", "factor": 8.0}}, 4096),
    ],
)  # fmt: skip
def test_longest_sequence(changes: dict[str, Any], longest: int, tmp_path: Path) -> None:
    assert ModelArch.from_hf(load(tmp_path, **changes)).max_position == longest
