"""Which layers see a window, against `layer_types` of the Transformers config classes."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from vllm.transformers_utils.config import ModelArch, load_hf_config

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 13,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 256,
}  # fmt: skip
CASES: list[dict[str, Any]] = [
    {"model_type": "llama"},
    {"model_type": "mistral"},
    {"model_type": "mistral", "sliding_window": None},
    {"model_type": "mistral", "sliding_window": 17},
    {"model_type": "phi3"},
    {"model_type": "phi3", "sliding_window": 2047},
    {"model_type": "qwen2", "sliding_window": 100, "use_sliding_window": False},
    {"model_type": "qwen2", "sliding_window": 100, "use_sliding_window": True,
     "max_window_layers": 5},
    {"model_type": "qwen3", "sliding_window": 100, "use_sliding_window": True,
     "max_window_layers": 0},
    {"model_type": "gemma2"},
    {"model_type": "gemma2", "sliding_window": 64},
    {"model_type": "gemma3_text", "sliding_window": 512},
    {"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 3},
    {"model_type": "granite"},
    {"model_type": "olmo2"},
    {"model_type": "smollm3"},
    {"model_type": "smollm3", "sliding_window": 32, "use_sliding_window": True},
    {"model_type": "smollm3", "sliding_window": 32, "use_sliding_window": True,
     "no_rope_layer_interval": 3},
]  # fmt: skip


def expected(case: dict[str, Any]) -> tuple[int | None, ...]:
    config = AutoConfig.for_model(**SIZES, **case)
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        return (window,) * 13
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_windows(case: dict[str, Any], tmp_path: Path) -> None:
    config = {**SIZES, **case, "architectures": ["X"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    arch = ModelArch.from_hf(load_hf_config(tmp_path))
    assert arch.attention_windows == expected(case)
    # The same from the file that Transformers writes.
    saved = AutoConfig.for_model(**SIZES, **case, architectures=["X"])
    saved.save_pretrained(tmp_path)
    assert ModelArch.from_hf(load_hf_config(tmp_path)).attention_windows == expected(case)
