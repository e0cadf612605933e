"""The table of assumed values against the Transformers classes."""

import pytest
from transformers import AutoConfig

from vllm.transformers_utils.defaults import DEFAULTS, with_defaults

ROPE = {"rope_theta", "rope_local_base_freq"}


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_values_are_those_of_transformers(model_type: str) -> None:
    theirs = AutoConfig.for_model(model_type).to_dict()
    # Transformers drops the window when it is switched off; the value behind it shows when on.
    theirs |= {"sliding_window": AutoConfig.for_model(
        model_type, **({"use_sliding_window": True} if "qwen" in model_type else {})
    ).to_dict().get("sliding_window")}  # fmt: skip
    for key, value in DEFAULTS[model_type].items():
        if key not in ROPE:
            assert theirs[key] == value, key
    rope = theirs["rope_parameters"]
    if "rope_local_base_freq" in DEFAULTS[model_type]:
        assert rope["sliding_attention"]["rope_theta"] == with_local(model_type)
        rope = rope["full_attention"]
    assert rope["rope_theta"] == DEFAULTS[model_type]["rope_theta"]


def with_local(model_type: str) -> float:
    return float(DEFAULTS[model_type]["rope_local_base_freq"])


def test_stated_values_win_even_if_null() -> None:
    merged = with_defaults({"model_type": "mistral", "sliding_window": None, "rms_norm_eps": 1e-3})
    assert merged["sliding_window"] is None
    assert merged["rms_norm_eps"] == 1e-3
    assert merged["hidden_act"] == "silu"


def test_unknown_types_get_nothing() -> None:
    assert with_defaults({"model_type": "strange"}) == {"model_type": "strange"}
