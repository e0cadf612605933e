"""Rotary settings: every spelling of one setting gives the same logits, a wrong one is refused.

Frequencies are compared with Transformers' own functions; the spellings are those of files in the
wild (legacy `type`, `rope_type`, both, new-style `rope_parameters`, nulls, strings).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.models.driver import Driver, log_softmax
from tests.models.test_families import options, prompt_of
from tests.models.tiny import reference_logits, save
from vllm.exceptions import ConfigError
from vllm.model_executor.build import load_reference
from vllm.model_executor.models.rope import RopeLengths, make_rope
from vllm.transformers_utils.config import load_hf_config

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 1e4},
        {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3},
        {"rope_type": "yarn", "rope_theta": 1e6, **YARN},
        {"rope_type": "yarn", "rope_theta": 1e6, **YARN, "beta_fast": 8, "beta_slow": 2},
        {"rope_type": "yarn", "rope_theta": 1e6, **YARN, "attention_factor": 0.7},
        {"rope_type": "yarn", "rope_theta": 1e6, **YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
        {"rope_type": "yarn", "rope_theta": 1e6, **YARN, "truncate": False},
        {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "original_max_position_embeddings": 64,
            "short_factor": [1.0 + i / 20 for i in range(32)],
            "long_factor": [1.0 + i for i in range(32)],
        },
    ],
    ids=lambda rope: "-".join(map(str, rope.values()))[:40],
)
def test_frequencies(rope: dict[str, Any]) -> None:
    """Against the functions of Transformers, at a length above and below the trained one."""
    config = transformers.LlamaConfig(
        head_dim=64, max_position_embeddings=256, rope_parameters=dict(rope)
    )
    for max_model_len in (48, 200):
        ours = make_rope(rope, 64, RopeLengths(256, max_model_len), "config.json")
        if rope["rope_type"] == "default":
            exponents = torch.arange(0, ours.rot_dim, 2) / ours.rot_dim
            expected, scale = 1 / rope["rope_theta"] ** exponents, 1.0
            assert ours.rot_dim == 64 * rope.get("partial_rotary_factor", 1.0)
        else:
            init = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
            expected, scale = init(config, torch.device("cpu"), seq_len=max_model_len)
        np.testing.assert_allclose(ours.inv_freq, expected.numpy(), rtol=3e-6)
        assert ours.scale == pytest.approx(scale, rel=1e-6)


def test_dynamic_follows_the_configured_length() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}
    config = transformers.LlamaConfig(
        head_dim=64, max_position_embeddings=256, rope_parameters=dict(rope)
    )
    for max_model_len in (100, 256, 1000):
        ours = make_rope(rope, 64, RopeLengths(256, max_model_len), "config.json")
        expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, None, seq_len=max_model_len)
        np.testing.assert_allclose(ours.inv_freq, expected.numpy(), rtol=3e-6)


def test_table_is_cos_then_sin_of_position_times_frequency() -> None:
    rope = make_rope(
        {"rope_type": "default", "rope_theta": 1e4}, 8, RopeLengths(64, 64), "config.json"
    )
    table = rope.table(50)
    assert table.dtype == np.float32
    for position, column in ((0, 0), (3, 1), (49, 3)):
        angle = position * 1e4 ** (-2 * column / 8)
        assert table[position, column] == pytest.approx(np.cos(angle), abs=1e-5)
        assert table[position, 4 + column] == pytest.approx(np.sin(angle), abs=1e-5)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("rope")
    return folder, save("llama3-rope", folder)


SPELLINGS: dict[str, list[dict[str, Any]]] = {
    "default": [
        {"rope_theta": 500.0},
        {"rope_theta": 500.0, "rope_scaling": None},
        {"rope_theta": 500.0, "rope_scaling": {"rope_type": "default"}},
        {"rope_theta": 500.0, "rope_scaling": {"type": "default"}},
        {"rope_theta": 500.0, "rope_parameters": None},
        {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 500.0}},
        {"rope_theta": 500.0, "rope_scaling": {"type": "mrope", "mrope_section": [4, 4, 4]}},
        {
            "rope_theta": 500.0,
            "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [4, 4, 4]},
        },
    ],
    "llama3": [
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_scaling": {"type": "llama3", "rope_type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, **LLAMA3}},
        {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "llama3", "type": None, **LLAMA3}},
        {
            "rope_scaling": {"rope_type": "llama3", **LLAMA3},
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, **LLAMA3},
        },
        {"rope_parameters": {"full_attention": {"rope_type": "llama3", **LLAMA3}}},
    ],
    "yarn": [
        {"rope_scaling": {"type": "yarn", **YARN}},
        {"rope_scaling": {"rope_type": "yarn", **YARN}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, **YARN}},
        {
            "original_max_position_embeddings": 64,
            "rope_scaling": {"type": "yarn", "factor": 4.0},
        },
    ],
}


@pytest.mark.parametrize("kind", SPELLINGS)
def test_all_spellings_give_the_same_logits(checkpoint: tuple[Path, Any], kind: str) -> None:
    folder, model = checkpoint
    ids = prompt_of(model, 24)
    results = [logits_with(folder, spelling, ids) for spelling in SPELLINGS[kind]]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    # The settings do something: without them the logits are others.
    assert np.abs(results[0] - logits_with(folder, {"rope_theta": 77.0}, ids)).max() > 0.01


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"rope_type": "llama3", "type": "yarn", **LLAMA3}}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "twice"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1.0}}, "rope_scaling.factor"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling"),
        ({"rope_scaling": [1, 2]}, "rope_scaling"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 2.0}}, "rope_type ntk"),
        ({"partial_rotary_factor": 0.01}, "partial_rotary_factor"),
        (
            {
                "rope_scaling": {"type": "yarn", **YARN},
                "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, **LLAMA3},
            },
            "rope_parameters",
        ),
        (
            {
                "rope_scaling": {
                    "rope_type": "longrope",
                    "short_factor": [1.0, 2.0],
                    "long_factor": [1.0, 2.0],
                }
            },
            "short_factor",
        ),
    ],
    ids=str,
)
def test_wrong_settings_name_file_and_key(
    checkpoint: tuple[Path, Any], tmp_path: Path, wrong: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        logits_with(checkpoint[0], wrong, [5])
    assert "config.json" in str(caught.value)
    assert key in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", ["phi3", "llama-dynamic"])
def test_longer_than_trained(case: str, tmp_path: Path) -> None:
    """Every position beyond the trained length; Transformers picks its factors by the length."""
    changes = {"max_position_embeddings": 128} if case == "llama-dynamic" else {}
    model = save(case, tmp_path, **changes)
    ids = prompt_of(model, 160)
    loaded = load_reference(options(tmp_path, max_model_len=160))
    got = log_softmax(Driver(loaded).prefill(ids, [37]))
    assert np.abs(got - log_softmax(reference_logits(model, ids))).max() <= 1e-3


def logits_with(folder: Path, spelling: dict[str, Any], ids: list[int]) -> np.ndarray:
    """Logits of the checkpoint with its rotary settings replaced; the weights stay in place."""
    config = json.loads((folder / "config.json").read_text())
    for key in ("rope_theta", "rope_scaling", "rope_parameters"):
        config.pop(key, None)
    variant = folder / "variant"
    variant.mkdir(exist_ok=True)
    (variant / "config.json").write_text(json.dumps({**config, **spelling}))
    changed = options(folder, hf_config=load_hf_config(variant))
    return Driver(load_reference(changed)).prefill(ids)
