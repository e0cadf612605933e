"""What Transformers assumes for keys that a config.json leaves out, per `model_type`.

Only keys that change the computed result are listed; sizes have no default, except in Gemma 3
whose published files really omit them. `tests/transformers_utils/test_defaults.py` compares the
table with the Transformers classes.
"""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}
_BIASES: dict[str, Any] = {"attention_bias": False, "mlp_bias": False}
_GEMMA: dict[str, Any] = {
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "head_dim": 256,
    "sliding_window": 4096,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}

DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {**_COMMON, **_BIASES, "bos_token_id": 1, "eos_token_id": 2},
    "mistral": {**_COMMON, "sliding_window": 4096, "bos_token_id": 1, "eos_token_id": 2},
    "qwen2": {
        **_COMMON,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "qwen3": {
        **_COMMON,
        "attention_bias": False,
        "head_dim": 128,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {
        **_GEMMA,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
    },
    "phi3": {
        **_COMMON,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "bos_token_id": 1,
        "eos_token_id": 32_000,
        "pad_token_id": 32_000,
    },
    "granite": {
        **_COMMON,
        **_BIASES,
        "embedding_multiplier": 1.0,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "olmo2": {
        **_COMMON,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "eos_token_id": 50_279,
        "pad_token_id": 1,
    },
    "smollm3": {
        **_COMMON,
        **_BIASES,
        "rope_theta": 2_000_000.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "no_rope_layer_interval": 4,
        "bos_token_id": 128_000,
        "eos_token_id": 128_001,
        "pad_token_id": 128_004,
    },
}


def with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """`config` completed by what its model type assumes for missing keys."""
    defaults = dict(DEFAULTS.get(str(config.get("model_type")), {}))
    if config.get("rope_parameters") is not None:
        for key in ("rope_theta", "rope_local_base_freq"):
            defaults.pop(key, None)
    merged = {**defaults, **config}
    if merged.get("rope_theta", 0) is None:
        merged["rope_theta"] = defaults.get("rope_theta")
    if "hidden_activation" in defaults and merged.get("hidden_activation") is None:
        merged["hidden_activation"] = defaults["hidden_activation"]
    return merged
