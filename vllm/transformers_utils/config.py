"""Reads a model's config.json (or a GGUF file's metadata) into one complete, checked dict.

Decides the spelling the rest of the package sees: defaults filled in, nested text configs lifted,
both spellings of rope in agreement. Invariant: nothing a model folder says is ever executed;
`auto_map` and friends are dropped on reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vllm.exceptions import ConfigError, ModelFileError
from vllm.transformers_utils.arch import ModelArch
from vllm.transformers_utils.defaults import with_defaults
from vllm.transformers_utils.embedded import EMBEDDED_GENERATION, find_embedded
from vllm.transformers_utils.files import read_json, shown
from vllm.transformers_utils.rope import canonical_rope, merge_rope_override

__all__ = ["ModelArch", "load_generation_config", "load_hf_config"]

Overrides = Mapping[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]

_TEXT_CONFIG_KEYS = ("text_config", "llm_config", "language_config", "text_model_config")
_CODE_KEYS = ("auto_map", "custom_pipelines")
_ROPE_KEYS = ("rope_scaling", "rope_parameters", "rope_theta")
_MAX_NESTING = 16


def load_hf_config(
    path: str | Path, config_format: str = "auto", hf_overrides: Overrides | None = None
) -> dict[str, Any]:
    """The config of a model folder or .gguf file; `_source` names the file it came from."""
    location = Path(path)
    if config_format not in ("auto", "hf", "gguf"):
        raise ConfigError(
            f"--config-format {config_format} is not supported (supported: auto, hf, gguf)"
        )
    config = _read(location, config_format)
    source = str(config["_source"])
    config = _without_code(config, source)
    config = _override(config, hf_overrides or {})
    config = with_defaults(_lift_text_config(config, source))
    canonical_rope(config, source)
    return config


def load_generation_config(path: str | Path) -> dict[str, Any]:
    """generation_config.json with `eos_token_id` as a list; {} if the model has none.

    The embedded model has recommended values of its own.
    """
    location = Path(path)
    if location.is_file():
        return dict(EMBEDDED_GENERATION) if location == find_embedded() else {}
    file = location / "generation_config.json"
    if not file.is_file():
        return {}
    values = {k: v for k, v in read_json(file).items() if v is not None}
    eos = values.get("eos_token_id")
    if eos is not None:
        ids = eos if isinstance(eos, list) else [eos]
        if not all(type(i) is int and i >= 0 for i in ids):
            raise ModelFileError(f"{file}: eos_token_id: {shown(eos)} is not a list of token ids")
        values["eos_token_id"] = ids
    return values


def _read(location: Path, config_format: str) -> dict[str, Any]:
    if location.is_file() and location.suffix == ".gguf":
        if config_format == "hf":
            raise ConfigError(f"{location} is a GGUF file, but --config-format is hf")
        from vllm.transformers_utils.gguf_config import config_from_gguf

        return config_from_gguf(location)
    file = location / "config.json"
    if not file.is_file():
        if (location / "params.json").is_file():
            raise ModelFileError(
                f"{location}: only params.json here; the mistral config format is not supported, "
                "use the repository's Transformers files (config.json)"
            )
        raise ModelFileError(f"{location}: no config.json here")
    return {**read_json(file), "_source": str(file)}


def _without_code(value: Any, source: str, depth: int = 0) -> Any:
    """`value` without the keys that name code to run, at every depth."""
    if depth > _MAX_NESTING:
        raise ModelFileError(f"{source}: nested more than {_MAX_NESTING} deep")
    if isinstance(value, dict):
        return {
            k: _without_code(v, source, depth + 1) for k, v in value.items() if k not in _CODE_KEYS
        }
    return value


def _override(config: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    """`--hf-overrides`: nested objects are merged, other values replaced."""
    if not isinstance(overrides, Mapping):
        changed = overrides(dict(config))
        if not isinstance(changed, dict):
            raise ConfigError("the hf_overrides function must return the config dict")
        return changed
    plain = {k: v for k, v in overrides.items() if k not in _CODE_KEYS and k not in _ROPE_KEYS}
    merged = merge_rope_override(config, overrides)
    for key, value in plain.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, dict):
            merged[key] = _override(old, value)
        else:
            merged[key] = value
    return merged


def _lift_text_config(config: dict[str, Any], source: str) -> dict[str, Any]:
    """A multimodal wrapper's text model as a flat config that keeps the wrapper's architecture."""
    for key in _TEXT_CONFIG_KEYS:
        inner = config.get(key)
        if inner is None:
            continue
        if not isinstance(inner, dict):
            raise ModelFileError(f"{source}: {key} must be an object, not {shown(inner)}")
        outer = {k: v for k, v in config.items() if not isinstance(v, dict)}
        kept = {k: v for k, v in inner.items() if v is not None or k not in outer}
        return {**outer, **kept, "architectures": config.get("architectures")}
    return config
