"""Builds the config.json that a GGUF file stands for from its metadata and tensor table.

Decides the Transformers name and value of each hyper-parameter. Invariant: the result reads like
the config of the model the file was converted from, plus `_gguf: True` (norm weights of Gemma are
stored as 1 + w) and `_source`; wrong or missing metadata is refused by key.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from vllm.exceptions import ModelFileError
from vllm.transformers_utils.files import shown
from vllm.transformers_utils.gguf import GGUFFile

_MAX_LAYERS = 4096
_MAX_ROPE_FACTORS = 4096
_HIGHEST_F32 = 3.4e38


@dataclass(frozen=True)
class _Family:
    """How one GGUF architecture is called by Transformers."""

    architecture: str
    model_type: str
    extra: Callable[[_Metadata, dict[str, Any]], None] | None = None


def config_from_gguf(path: Path) -> dict[str, Any]:
    """The Transformers-style config dict of a .gguf file."""
    file = GGUFFile(path)
    try:
        return _build(_Metadata(file))
    finally:
        file.close()


class _Metadata:
    """Typed access to `<architecture>.<key>` entries; every complaint names file and key."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        name = file.get("general.architecture")
        if not isinstance(name, str):
            file.fail("general.architecture is missing")
        family = _FAMILIES.get(name)
        if family is None:
            file.fail(
                f"general.architecture {shown(name)} is not supported "
                f"(supported: {', '.join(sorted(_FAMILIES))})"
            )
        self.prefix, self.family = name, family

    def fail(self, key: str, problem: str) -> NoReturn:
        raise ModelFileError(f"{self.file.path}: {self.prefix}.{key}: {problem}")

    def value(self, key: str) -> Any:
        return self.file.get(f"{self.prefix}.{key}")

    def count(self, key: str, default: int | None = None) -> int:
        """A positive integer; a per-layer list counts if all its entries agree."""
        value = self.value(key)
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            value = value[0]
        if value is None:
            if default is None:
                self.fail(key, "missing")
            return default
        if isinstance(value, list):
            self.fail(key, "layers of different sizes are not supported")
        if type(value) is not int or not 1 <= value < 1 << 31:
            self.fail(key, f"must be a positive integer, not {shown(value)}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self.value(key)
        if value is None:
            if default is None:
                self.fail(key, "missing")
            return default
        if type(value) not in (int, float) or not 0 < value < _HIGHEST_F32:
            self.fail(key, f"must be a positive number, not {shown(value)}")
        return float(value)

    def token_id(self, key: str) -> int | None:
        value = self.file.get(f"tokenizer.ggml.{key}")
        return value if type(value) is int and 0 <= value < 1 << 24 else None

    def has_tensor(self, name: str) -> bool:
        return name in self.file.tensors

    def small_floats(self, name: str) -> list[float] | None:
        """The values of a small f32 tensor, None if the file has none of this name."""
        info = self.file.tensors.get(name)
        if info is None:
            return None
        if info.type.name != "f32" or info.nbytes > 4 * _MAX_ROPE_FACTORS:
            self.file.fail(f"tensor {name} must be a short list of F32 values")
        data = self.file.map_of(info)[info.offset : info.offset + info.nbytes]
        values = list(struct.unpack(f"<{info.nbytes // 4}f", data))
        if not all(math.isfinite(v) and v > 0 for v in values):
            self.file.fail(f"tensor {name} must hold positive numbers")
        return values


def _build(meta: _Metadata) -> dict[str, Any]:
    config = _sizes(meta)
    config.update(_token_ids(meta))
    config["rope_theta"] = _tidy(meta.number("rope.freq_base", 10_000.0))
    rotary_dim = meta.count("rope.dimension_count", config["head_dim"])
    if rotary_dim != config["head_dim"]:
        config["partial_rotary_factor"] = rotary_dim / config["head_dim"]
    scaling = _rope_scaling(meta, config, rotary_dim)
    if scaling is not None:
        config["rope_scaling"] = scaling
    if meta.family.extra is not None:
        meta.family.extra(meta, config)
    return config


def _sizes(meta: _Metadata) -> dict[str, Any]:
    hidden_size = meta.count("embedding_length")
    num_heads = meta.count("attention.head_count")
    num_layers = meta.count("block_count")
    if num_layers > _MAX_LAYERS:
        meta.fail("block_count", f"{num_layers} is impossible (limit {_MAX_LAYERS})")
    if meta.value("attention.key_length") is None and hidden_size % num_heads:
        meta.fail("attention.head_count", f"{num_heads} does not divide {hidden_size}")
    head_dim = meta.count("attention.key_length", hidden_size // num_heads)
    if meta.count("attention.value_length", head_dim) != head_dim:
        meta.fail("attention.value_length", "differs from key_length, which is not supported")
    return {
        "_gguf": True,
        "_source": str(meta.file.path),
        "architectures": [meta.family.architecture],
        "model_type": meta.family.model_type,
        "vocab_size": _vocab_size(meta),
        "hidden_size": hidden_size,
        "intermediate_size": meta.count("feed_forward_length"),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": meta.count("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": meta.count("context_length"),
        "rms_norm_eps": _tidy(meta.number("attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": not meta.has_tensor("output.weight"),
        "attention_bias": meta.has_tensor("blk.0.attn_q.bias"),
        "mlp_bias": meta.has_tensor("blk.0.ffn_down.bias"),
        "torch_dtype": _dtype(meta),
    }


def _vocab_size(meta: _Metadata) -> int:
    """The width of the embedding table, which the tokenizer may not fill."""
    table = meta.file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        meta.file.fail("tensor token_embd.weight is missing or not a matrix")
    num_tokens = meta.file.length("tokenizer.ggml.tokens")
    if num_tokens > table.shape[0]:
        meta.file.fail(
            f"tokenizer.ggml.tokens has {num_tokens} entries, token_embd.weight {table.shape[0]}"
        )
    return table.shape[0]


def _dtype(meta: _Metadata) -> str:
    """Plain float files keep their type; block types are declared as float16."""
    kinds = {info.type.name for info in meta.file.tensors.values() if len(info.shape) > 1}
    if kinds <= {"f32"}:
        return "float32"
    return "bfloat16" if kinds <= {"f32", "bf16"} else "float16"


def _token_ids(meta: _Metadata) -> dict[str, Any]:
    end_ids = [meta.token_id(k) for k in ("eos_token_id", "eot_token_id", "eom_token_id")]
    return {
        "bos_token_id": meta.token_id("bos_token_id"),
        "eos_token_id": list(dict.fromkeys(i for i in end_ids if i is not None)),
        "pad_token_id": meta.token_id("padding_token_id"),
    }


def _rope_scaling(
    meta: _Metadata, config: dict[str, Any], rotary_dim: int
) -> dict[str, Any] | None:
    long = meta.small_floats("rope_factors_long.weight")
    short = meta.small_floats("rope_factors_short.weight")
    if long is not None and short is not None:
        return _longrope(meta, config, short, long)
    factors = meta.small_floats("rope_freqs.weight")
    if factors is not None:
        return _from_frequency_factors(meta, config, factors, rotary_dim)
    kind = meta.value("rope.scaling.type")
    if kind in (None, "none"):
        return None
    scaling = {"rope_type": kind, "factor": _tidy(meta.number("rope.scaling.factor"))}
    original = meta.value("rope.scaling.original_context_length")
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if meta.value(f"rope.scaling.{key}") is not None:
            scaling[name] = _tidy(meta.number(f"rope.scaling.{key}"))
    return scaling


def _longrope(
    meta: _Metadata, config: dict[str, Any], short: list[float], long: list[float]
) -> dict[str, Any]:
    original = meta.count("rope.scaling.original_context_length", config["max_position_embeddings"])
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": original,
    }
    if meta.value("rope.scaling.attn_factor") is not None:
        scaling["attention_factor"] = meta.number("rope.scaling.attn_factor")
    return scaling


def _from_frequency_factors(
    meta: _Metadata, config: dict[str, Any], factors: list[float], rotary_dim: int
) -> dict[str, Any]:
    """Llama 3 scaling is stored as its result, one divisor per frequency.

    The parameters of the published Llama 3 models are recognised, so that the config is theirs;
    other divisors are said as longrope with one list for every length, which is the same thing.
    """
    if len(factors) != rotary_dim // 2:
        meta.file.fail(f"tensor rope_freqs.weight must have {rotary_dim // 2} values")
    candidate = {
        "rope_type": "llama3",
        "factor": _tidy(max(factors)),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = _llama3_divisors(candidate, config["rope_theta"], rotary_dim)
    if all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(expected, factors, strict=True)):
        return candidate
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": 1.0,
        "original_max_position_embeddings": config["max_position_embeddings"],
    }


def _llama3_divisors(scaling: dict[str, Any], theta: float, rotary_dim: int) -> list[float]:
    """What Llama 3 scaling divides each frequency by: 1, the factor, or a blend between."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    divisors = []
    for i in range(rotary_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * i / rotary_dim)
        turns = scaling["original_max_position_embeddings"] / wavelength
        blend = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1 / ((1 - blend) / scaling["factor"] + blend))
    return divisors


def _gemma2(meta: _Metadata, config: dict[str, Any]) -> None:
    config["sliding_window"] = meta.count("attention.sliding_window", 4096)
    config["attn_logit_softcapping"] = meta.number("attn_logit_softcapping", 50.0)
    config["final_logit_softcapping"] = meta.number("final_logit_softcapping", 30.0)
    # The file does not say the query scale; only the 27B model departs from the head size.
    is_27b = config["num_hidden_layers"] == 46
    config["query_pre_attn_scalar"] = _query_scalar(config, is_27b)


def _gemma3(meta: _Metadata, config: dict[str, Any]) -> None:
    config["sliding_window"] = meta.count("attention.sliding_window")
    config["rope_local_base_freq"] = _tidy(meta.number("rope.freq_base_swa", 10_000.0))
    if meta.value("rope.freq_base") is None:
        config["rope_theta"] = 1_000_000.0
    pattern = meta.value("attention.sliding_window_pattern")
    if type(pattern) is int:
        config["sliding_window_pattern"] = pattern
    elif isinstance(pattern, list):
        config["layer_types"] = [
            "sliding_attention" if local else "full_attention" for local in pattern
        ]
    if meta.value("final_logit_softcapping") is not None:
        config["final_logit_softcapping"] = meta.number("final_logit_softcapping")
    is_27b = config["num_hidden_layers"] == 62
    config["query_pre_attn_scalar"] = _query_scalar(config, is_27b)


def _query_scalar(config: dict[str, Any], by_width: bool) -> int:
    if by_width:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return int(config["head_dim"])


def _phi3(meta: _Metadata, config: dict[str, Any]) -> None:
    window = meta.value("attention.sliding_window")
    config["sliding_window"] = window if type(window) is int and window > 0 else None


def _granite(meta: _Metadata, config: dict[str, Any]) -> None:
    scale = 1 / math.sqrt(config["head_dim"])
    config["attention_multiplier"] = _tidy(meta.number("attention.scale", scale))
    config["embedding_multiplier"] = _tidy(meta.number("embedding_scale", 1.0))
    config["residual_multiplier"] = _tidy(meta.number("residual_scale", 1.0))
    config["logits_scaling"] = _tidy(meta.number("logit_scale", 1.0))


def _tidy(value: float) -> float:
    """The shortest decimal that rounds to the same f32: 1e-05 again, not 9.999999747378752e-06."""
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == struct.pack("<f", value):
            return short
    return value


_FAMILIES = {
    "llama": _Family("LlamaForCausalLM", "llama"),
    "qwen2": _Family("Qwen2ForCausalLM", "qwen2"),
    "qwen3": _Family("Qwen3ForCausalLM", "qwen3"),
    "gemma2": _Family("Gemma2ForCausalLM", "gemma2", _gemma2),
    "gemma3": _Family("Gemma3ForCausalLM", "gemma3_text", _gemma3),
    "phi3": _Family("Phi3ForCausalLM", "phi3", _phi3),
    "granite": _Family("GraniteForCausalLM", "granite", _granite),
    "olmo2": _Family("Olmo2ForCausalLM", "olmo2"),
    "smollm3": _Family("SmolLM3ForCausalLM", "smollm3"),
}
