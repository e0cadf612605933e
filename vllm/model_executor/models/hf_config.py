"""What family files read: a completed config dict with typed access, and the facts of ModelArch.

Decides nothing. Invariant: every complaint names the file and the key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from vllm.exceptions import ConfigError
from vllm.model_executor.models.rope import Rope, RopeLengths, make_rope
from vllm.model_executor.models.spec import LayerSpec
from vllm.transformers_utils.config import ModelArch
from vllm.transformers_utils.files import shown

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


class HfConfig:
    """A config dict as made by `load_hf_config`."""

    def __init__(self, values: Mapping[str, Any], max_model_len: int, dtype: str) -> None:
        self.values = values
        self.arch = ModelArch.from_hf(values)
        self.source = str(values.get("_source", "config.json"))
        self.dtype = dtype
        self.lengths = RopeLengths(self._max_position(), max_model_len)

    @property
    def is_gguf(self) -> bool:
        return self.values.get("_gguf") is True

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool | None) or not isinstance(value, int | float):
            self.fail(key, f"must be a number, not {shown(value)}")
        if not math.isfinite(value):
            self.fail(key, f"must be finite, not {shown(value)}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(key, f"must be true or false, not {shown(value)}")
        return bool(value)

    def activation(self) -> str:
        """Gemma's `hidden_activation` wins over a `hidden_act` that is there for old readers."""
        is_new = self.values.get("hidden_activation") is not None
        key = "hidden_activation" if is_new else "hidden_act"
        name = self.values.get(key)
        if name not in _ACTIVATIONS:
            self.fail(key, f"{shown(name)} is not supported (supported: {', '.join(_ACTIVATIONS)})")
        return _ACTIVATIONS[str(name)]

    def layers(self) -> tuple[LayerSpec, ...]:
        """Window and rotation of each layer; layer types that share a rope share the object."""
        windows = self.arch.attention_windows
        ropes = {local: self._rope(local) for local in {window is not None for window in windows}}
        return tuple(LayerSpec(window, ropes[window is not None]) for window in windows)

    def fail(self, key: str, problem: str) -> NoReturn:
        raise ConfigError(f"{self.source}: {key}: {problem}")

    def _rope(self, is_local: bool) -> Rope:
        parameters = self.values["rope_parameters"]
        if "rope_type" not in parameters:
            layer_type = "sliding_attention" if is_local else "full_attention"
            if layer_type not in parameters:
                self.fail(f"rope_parameters.{layer_type}", "missing")
            parameters = parameters[layer_type]
        return make_rope(parameters, self.arch.head_dim, self.lengths, self.source)

    def _max_position(self) -> int:
        value = self.values.get("max_position_embeddings")
        return value if isinstance(value, int) and value > 0 else self.arch.max_position
