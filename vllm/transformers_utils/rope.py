"""Brings the two spellings of rotary settings in config.json into one, and checks them.

Older files say `rope_theta`, `rope_scaling` ({"type" or "rope_type": ...}) and, in Gemma 3,
`rope_local_base_freq`; newer ones put everything in `rope_parameters`, either one dict or one per
layer type. Invariant: after `canonical_rope` both spellings are in the config, they agree, and
every number in them is finite and positive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vllm.exceptions import ModelFileError
from vllm.transformers_utils.files import shown

DEFAULT_THETA = 10_000.0
FULL, SLIDING = "full_attention", "sliding_attention"

_ALIASES = {"su": "longrope"}
_REQUIRED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": (),
    "ntk": ("factor",),
    "yarn": ("factor",),
    "deepseek_yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "mrope": (),
    "proportional": (),
}
_NUMBERS = (
    "factor", "rope_theta", "original_max_position_embeddings", "low_freq_factor",
    "high_freq_factor", "attention_factor", "beta_fast", "beta_slow", "partial_rotary_factor",
    "alpha",
)  # fmt: skip
_NUMBER_LISTS = ("short_factor", "long_factor")
_ORIGINAL = "original_max_position_embeddings"
_NEEDS_ORIGINAL = ("llama3", "yarn", "deepseek_yarn", "longrope")

# Types whose `max_position_embeddings` is the length before scaling.
_SCALES_MAX_POSITION = ("linear", "dynamic", "ntk")

Rope = dict[str, Any]


def canonical_rope(config: dict[str, Any], source: str) -> None:
    """Write `rope_parameters`, `rope_theta`, `rope_scaling` and, where layers differ,
    `rope_local_base_freq` into `config`."""
    per_layer = _per_layer_type(config, source)
    main = per_layer.get(FULL) or next(iter(per_layer.values()))
    config["rope_theta"] = main["rope_theta"]
    scaling = {k: v for k, v in main.items() if k != "rope_theta"}
    config["rope_scaling"] = None if main["rope_type"] == "default" else scaling
    if main.get("partial_rotary_factor") is not None:
        config["partial_rotary_factor"] = main["partial_rotary_factor"]
    if len(per_layer) == 1:
        config["rope_parameters"] = main
        return
    config["rope_parameters"] = per_layer
    if SLIDING in per_layer:
        config["rope_local_base_freq"] = per_layer[SLIDING]["rope_theta"]


def scaled_max_position(config: Mapping[str, Any], max_position: int) -> int:
    """The longest sequence the model was made for; linear, dynamic and ntk stretch the figure."""
    scaling = config.get("rope_scaling") or {}
    is_gemma3 = str(config.get("model_type", "")).startswith("gemma3")
    if scaling.get("rope_type") in _SCALES_MAX_POSITION and not is_gemma3:
        return int(max_position * scaling.get("factor", 1.0))
    return max_position


def default_max_length(config: Mapping[str, Any], max_position: int) -> int:
    """The context length to use if nobody asks: longrope models stay on their short factors."""
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "longrope":
        return int(min(max_position, scaling.get(_ORIGINAL, max_position)))
    return max_position


def merge_rope_override(config: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The rope keys of `overrides` laid over those of `config`; a new rope_type replaces a dict.

    Each spelling overrides the other, so that a flag works whatever spelling the file uses.
    """
    merged = dict(config)
    for key, other in (("rope_scaling", "rope_parameters"), ("rope_parameters", "rope_scaling")):
        if key not in overrides:
            continue
        new, old = overrides[key], merged.get(key) or merged.get(other)
        if isinstance(new, Mapping) and isinstance(old, Mapping) and not _names_type(new):
            new = {**old, **new}
        elif isinstance(new, Mapping) and isinstance(old, Mapping) and "rope_theta" in old:
            new = {"rope_theta": old["rope_theta"], **new}
        elif new is None and isinstance(old, Mapping) and "rope_theta" in old:
            new = {"rope_type": "default", "rope_theta": old["rope_theta"]}
        merged[key] = new
        merged.pop(other, None)
        if isinstance(new, Mapping) and "rope_theta" in new:
            merged.pop("rope_theta", None)
    if "rope_theta" in overrides:
        merged["rope_theta"] = overrides["rope_theta"]
        new_style = merged.get("rope_parameters")
        if isinstance(new_style, Mapping) and "rope_theta" in new_style:
            merged["rope_parameters"] = {**new_style, "rope_theta": overrides["rope_theta"]}
    return merged


def _names_type(rope: Mapping[str, Any]) -> bool:
    return "rope_type" in rope or "type" in rope


def _per_layer_type(config: dict[str, Any], source: str) -> dict[str, Rope]:
    """{layer type: checked rope dict}; a single entry if all layers rotate alike."""
    new, old = config.get("rope_parameters"), config.get("rope_scaling")
    nested = _nested(new)
    if nested:
        return {
            layer_type: _checked(rope, config, source, f"rope_parameters.{layer_type}")
            for layer_type, rope in nested.items()
        }
    if new is not None and old is not None:
        ours = _checked(new, config, source, "rope_parameters")
        theirs = _checked(old, config, source, "rope_scaling")
        if ours["rope_type"] != theirs["rope_type"]:
            raise ModelFileError(
                f"{source}: rope_parameters says {ours['rope_type']}, "
                f"rope_scaling says {theirs['rope_type']}"
            )
        return {FULL: ours}
    key = "rope_scaling" if new is None else "rope_parameters"
    main = _checked(old if new is None else new, config, source, key)
    local_theta = config.get("rope_local_base_freq")
    if local_theta is None:
        return {FULL: main}
    local = {"rope_type": "default", "rope_theta": local_theta}
    return {SLIDING: _checked(local, config, source, "rope_local_base_freq"), FULL: main}


def _nested(rope: Any) -> dict[str, Any] | None:
    if not isinstance(rope, dict):
        return None
    parts = {k: v for k, v in rope.items() if isinstance(v, dict) and k.endswith("attention")}
    return parts or None


def _checked(rope: Any, config: Mapping[str, Any], source: str, key: str) -> Rope:
    """One rope dict with type and theta filled in, or the refusal that names its wrong key."""
    if rope is None:
        rope = {}
    if not isinstance(rope, dict):
        raise ModelFileError(f"{source}: {key} must be an object or null, not {shown(rope)}")
    result = {k: v for k, v in rope.items() if k != "type" and v is not None}
    result["rope_type"] = _rope_type(rope, source, key)
    if result.get("rope_theta") is None:
        theta = config.get("rope_theta")
        result["rope_theta"] = DEFAULT_THETA if theta is None else theta
    partial = config.get("partial_rotary_factor")
    if partial is not None:
        result.setdefault("partial_rotary_factor", partial)
    if result["rope_type"] in _NEEDS_ORIGINAL:
        _fill_original(result, config)
    _check_values(result, source, key)
    return result


def _rope_type(rope: Rope, source: str, key: str) -> str:
    names = [rope[k] for k in ("rope_type", "type") if rope.get(k) is not None]
    if not all(isinstance(n, str) for n in names):
        raise ModelFileError(f"{source}: {key}.rope_type must be a string, not {shown(names)}")
    kinds = {_ALIASES.get(n, n) for n in names}
    if kinds == {"mrope", "default"}:  # how Transformers wrote the Qwen-VL files
        kinds = {"mrope"}
    if len(kinds) > 1:
        raise ModelFileError(
            f"{source}: {key} contradicts itself: rope_type {shown(rope['rope_type'])}, "
            f"type {shown(rope['type'])}"
        )
    kind = kinds.pop() if kinds else "default"
    if kind == "default" and not names and "factor" in rope:
        raise ModelFileError(f"{source}: {key} has a factor but no rope_type")
    if kind not in _REQUIRED:
        raise ModelFileError(
            f"{source}: {key}.rope_type {shown(kind)} is unknown (known: {', '.join(_REQUIRED)})"
        )
    return kind


def _fill_original(rope: Rope, config: Mapping[str, Any]) -> None:
    outer = config.get(_ORIGINAL)
    if outer is not None:  # Phi-3 keeps it beside the dict, and there it wins
        rope[_ORIGINAL] = outer
    elif rope.get(_ORIGINAL) is None and config.get("max_position_embeddings") is not None:
        rope[_ORIGINAL] = config["max_position_embeddings"]


def _check_values(rope: Rope, source: str, key: str) -> None:
    for name in _REQUIRED[rope["rope_type"]]:
        if name not in rope:
            raise ModelFileError(
                f"{source}: {key}.{name} is missing (rope_type {rope['rope_type']} needs it)"
            )
    for name in _NUMBERS:
        if name in rope and not _is_positive(rope[name]):
            raise ModelFileError(
                f"{source}: {key}.{name} must be a positive number, not {shown(rope[name])}"
            )
    for name in _NUMBER_LISTS:
        values = rope.get(name)
        if values is not None and not (
            isinstance(values, list) and values and all(map(_is_positive, values))
        ):
            raise ModelFileError(
                f"{source}: {key}.{name} must be a list of positive numbers, not {shown(values)}"
            )


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0
