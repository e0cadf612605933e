"""Tiny random models of every family, made by Transformers: configs with the odd values."""

from pathlib import Path
from typing import Any

import torch
import transformers

torch.set_num_threads(1)  # tiny matrices: more threads only wait for each other

_BASE: dict[str, Any] = {
    "vocab_size": 151,
    "hidden_size": 72,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.05 * i for i in range(9)],
    "long_factor": [1.0 + 0.5 * i for i in range(9)],
}

# case -> (name of the Transformers classes, changes to the base config)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama3-rope": ("Llama", {"rope_parameters": _LLAMA3}),
    "llama-bias": ("Llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 6}),
    "llama-linear": (
        "Llama",
        {
            "rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 500.0},
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
        },
    ),
    "llama-dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0}}),
    "mistral": ("Mistral", {"sliding_window": 16}),
    "mistral-nemo": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "qwen2": (
        "Qwen2",
        {
            "head_dim": None,
            "hidden_size": 96,
            "use_sliding_window": True,
            "sliding_window": 20,
            "max_window_layers": 2,
            "tie_word_embeddings": True,
        },
    ),
    "qwen2.5-yarn": ("Qwen2", {"head_dim": None, "hidden_size": 96, "rope_parameters": _YARN}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "gemma2": ("Gemma2", {"sliding_window": 16, "query_pre_attn_scalar": 20}),
    "gemma3": (
        "Gemma3Text",
        {
            "num_hidden_layers": 7,
            "sliding_window": 16,
            "query_pre_attn_scalar": 20,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": (
        "Phi3",
        {
            "head_dim": None,
            "hidden_size": 144,
            "sliding_window": 24,
            "partial_rotary_factor": 0.75,
            "rope_parameters": _LONGROPE,
            "original_max_position_embeddings": 128,
        },
    ),
    "granite": (
        "Granite",
        {
            "head_dim": None,
            "hidden_size": 96,
            "attention_multiplier": 0.3,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.0,
        },
    ),
    "olmo2": ("Olmo2", {"head_dim": None, "hidden_size": 96}),
    "smollm3": ("SmolLM3", {"head_dim": None, "hidden_size": 96, "num_hidden_layers": 5}),
}


def make_model(case: str, **changes: Any) -> Any:
    """The Transformers model of a case, in f32, with weights that all matter."""
    name, own = CASES[case]
    values = {k: v for k, v in {**_BASE, **own, **changes}.items() if v is not None}
    if own.get("sliding_window", 0) is None:
        values["sliding_window"] = None
    config = getattr(transformers, f"{name}Config")(**values)
    config._attn_implementation = "eager"
    model_class = getattr(transformers, name.replace("Text", "") + "ForCausalLM")
    torch.manual_seed(sum(map(ord, case)))
    model = model_class(config).float().eval()
    randomize(model)
    return model


def randomize(model: torch.nn.Module) -> None:
    """Biases and norms that are not 0 and 1, matrices that keep the scale of their input."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            elif "embed" in name:
                parameter.normal_(std=0.25)
            else:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)


def save(case: str, folder: Path, **changes: Any) -> Any:
    """Make, save and return the model of a case."""
    model = make_model(case, **changes)
    model.save_pretrained(folder)
    return model


def reference_logits(model: Any, ids: list[int]) -> Any:
    """Logits of every position as a numpy array."""
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def reference_greedy(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """Greedy continuation, each token from a forward pass over everything before it."""
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append(int(reference_logits(model, ids)[-1].argmax()))
    return ids[len(prompt) :]
