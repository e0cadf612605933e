"""`ModelArch`: the facts about a model that the engine needs, read once from its config.

Decides which keys are essential and what they may hold. Invariant: a ModelArch exists only if its
sizes are consistent; every refusal names the file and the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from vllm.exceptions import ModelFileError
from vllm.transformers_utils.files import shown
from vllm.transformers_utils.rope import default_max_length, scaled_max_position

_MAX_POSITION_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length",
    "max_seq_length",
)  # fmt: skip
# Far above every model that exists; keeps hostile files from asking for huge tables.
_HIGHEST = {"vocab_size": 1 << 24, "num_hidden_layers": 4096, "num_attention_heads": 1 << 14}
_HIGHEST_OTHER = 1 << 30
_NO_WINDOW_TYPES = ("llama", "granite", "olmo2", "olmo")


@dataclass(frozen=True)
class ModelArch:
    """Sizes and ids of one decoder."""

    architectures: tuple[str, ...]
    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position: int
    """The longest sequence the model was made for, rope scaling included."""
    default_max_model_len: int
    """The context length when none is asked for; below `max_position` for longrope models."""
    model_max_length: int | None
    """A larger limit that the model itself allows (`model_max_length`), if it states one."""
    attention_windows: tuple[int | None, ...]
    """Per layer: how many positions, the newest included, are seen; None is all of them."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    torch_dtype: str
    tie_word_embeddings: bool
    quant_method: str | None
    """Value of quantization_config.quant_method; None for plain and GGUF weights."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelArch:
        """Read a dict made by `load_hf_config`."""
        read = _Reader(config)
        num_layers = read.size("num_hidden_layers")
        num_heads = read.size("num_attention_heads")
        num_kv_heads = read.size("num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            read.fail("num_key_value_heads", f"{num_kv_heads} does not divide {num_heads} heads")
        max_position = scaled_max_position(config, read.max_position())
        return cls(
            architectures=read.architectures(),
            model_type=read.text("model_type", ""),
            vocab_size=read.size("vocab_size"),
            hidden_size=read.size("hidden_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=read.head_dim(num_heads),
            intermediate_size=read.size("intermediate_size"),
            max_position=max_position,
            default_max_model_len=default_max_length(config, max_position),
            model_max_length=read.optional_size("model_max_length"),
            attention_windows=_attention_windows(read, num_layers),
            bos_token_id=read.first_id("bos_token_id"),
            eos_token_ids=read.ids("eos_token_id"),
            pad_token_id=read.first_id("pad_token_id"),
            torch_dtype=read.dtype(),
            tie_word_embeddings=read.flag("tie_word_embeddings", False),
            quant_method=read.quant_method(),
        )


class _Reader:
    """Typed access to a config dict; every complaint names file and key."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.source = str(config.get("_source", "config.json"))

    def fail(self, key: str, problem: str) -> NoReturn:
        raise ModelFileError(f"{self.source}: {key}: {problem}")

    def size(self, key: str, default: int | None = None) -> int:
        value = self.config.get(key)
        if value is None:
            if default is None:
                self.fail(key, "missing")
            value = default
        highest = _HIGHEST.get(key, _HIGHEST_OTHER)
        if type(value) is not int or not 1 <= value <= highest:
            self.fail(key, f"must be an integer from 1 to {highest}, not {shown(value)}")
        return value

    def optional_size(self, key: str) -> int | None:
        value = self.config.get(key)
        # Tokenizer-style "very large" sentinels mean: no limit known.
        return value if type(value) is int and 1 <= value <= _HIGHEST_OTHER else None

    def text(self, key: str, default: str) -> str:
        value = self.config.get(key, default)
        if not isinstance(value, str):
            self.fail(key, f"must be a string, not {shown(value)}")
        return str(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(key, f"must be true or false, not {shown(value)}")
        return bool(value)

    def architectures(self) -> tuple[str, ...]:
        names = self.config.get("architectures")
        if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
            self.fail("architectures", f"must be a list of names, not {shown(names)}")
        return tuple(names)

    def head_dim(self, num_heads: int) -> int:
        hidden_size = self.size("hidden_size")
        if self.config.get("head_dim") is None and hidden_size % num_heads:
            self.fail("num_attention_heads", f"{num_heads} does not divide {hidden_size}")
        head_dim = self.size("head_dim", hidden_size // num_heads)
        if head_dim % 2:
            self.fail("head_dim", f"must be even, not {head_dim}")
        return head_dim

    def max_position(self) -> int:
        found = [self.size(k) for k in _MAX_POSITION_KEYS if self.config.get(k) is not None]
        if not found:
            self.fail("max_position_embeddings", "missing")
        return min(found)

    def ids(self, key: str) -> tuple[int, ...]:
        value = self.config.get(key)
        values = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(v) is int and 0 <= v < _HIGHEST["vocab_size"] for v in values):
            # -1 is how some files say "none".
            if values == [-1]:
                return ()
            self.fail(key, f"must be a token id or a list of token ids, not {shown(value)}")
        return tuple(dict.fromkeys(values))

    def first_id(self, key: str) -> int | None:
        ids = self.ids(key)
        return ids[0] if ids else None

    def dtype(self) -> str:
        value = self.config.get("dtype") or self.config.get("torch_dtype") or "float32"
        name = str(value).removeprefix("torch.")
        known = {"float32", "float16", "bfloat16"}
        if name not in known:
            self.fail("torch_dtype", f"must be one of {sorted(known)}, not {shown(value)}")
        return name

    def quant_method(self) -> str | None:
        value = self.config.get("quantization_config")
        if value is None:
            return None
        if not isinstance(value, dict) or not isinstance(value.get("quant_method"), str):
            self.fail("quantization_config", f"has no quant_method: {shown(value)}")
        return str(value["quant_method"])


def _attention_windows(read: _Reader, num_layers: int) -> tuple[int | None, ...]:
    """Which layers see only the newest `sliding_window` positions."""
    config = read.config
    window = config.get("sliding_window")
    model_type = str(config.get("model_type", ""))
    if not window or model_type in _NO_WINDOW_TYPES or config.get("use_sliding_window") is False:
        return (None,) * num_layers
    window = read.size("sliding_window")
    is_local = _local_layers(read, model_type, num_layers)
    return tuple(window if local else None for local in is_local)


def _local_layers(read: _Reader, model_type: str, num_layers: int) -> list[bool]:
    layer_types = read.config.get("layer_types")
    if layer_types is not None:
        if not isinstance(layer_types, list) or len(layer_types) != num_layers:
            read.fail("layer_types", f"must be a list of {num_layers} names")
        return [kind == "sliding_attention" for kind in layer_types]
    layers = range(num_layers)
    if model_type.startswith("gemma3"):
        pattern = read.size(
            "sliding_window_pattern", read.optional_size("_sliding_window_pattern") or 6
        )
        return [(i + 1) % pattern != 0 for i in layers]
    if model_type == "gemma2":
        return [i % 2 == 0 for i in layers]
    if model_type.startswith("qwen"):
        first = read.config.get("max_window_layers", 28)
        return [i >= int(first) for i in layers]
    if model_type == "smollm3":
        return [not has_rope for has_rope in _rope_layers(read, num_layers)]
    return [True] * num_layers


def _rope_layers(read: _Reader, num_layers: int) -> list[bool]:
    """SmolLM3: 1 per layer that rotates q and k."""
    flags = read.config.get("no_rope_layers")
    if flags is None:
        interval = read.size("no_rope_layer_interval", 4)
        return [(i + 1) % interval != 0 for i in range(num_layers)]
    if not isinstance(flags, list) or len(flags) != num_layers:
        read.fail("no_rope_layers", f"must be a list of {num_layers} flags")
    return [bool(flag) for flag in flags]
