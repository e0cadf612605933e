"""Writes GGUF files byte by byte, so that tests can lie in any field."""

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

TYPE_IDS = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 8, "q4_k": 12, "bf16": 30}
FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


@dataclass(frozen=True)
class Typed:
    """A metadata value with an explicit type, or a list of them with an element type."""

    type_id: int
    value: Any


def typed(value: Any) -> Typed:
    """The type that converters usually choose."""
    if isinstance(value, Typed):
        return value
    if isinstance(value, list):
        return Typed(typed(value[0]).type_id if value else 4, value)
    kinds = {bool: 7, int: 4, float: 6, str: STRING, bytes: STRING}
    return Typed(kinds[type(value)], value)


def value_bytes(value: Any) -> bytes:
    entry = typed(value)
    if isinstance(entry.value, list):
        body = b"".join(one(entry.type_id, v) for v in entry.value)
        return struct.pack("<IIQ", ARRAY, entry.type_id, len(entry.value)) + body
    return struct.pack("<I", entry.type_id) + one(entry.type_id, entry.value)


def one(type_id: int, value: Any) -> bytes:
    return string(value) if type_id == STRING else struct.pack("<" + FORMATS[type_id], value)


@dataclass
class GGUF:
    """The parts of a file; `pack` joins them. Any field may be set to a lie."""

    kvs: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, tuple[tuple[int, ...], str, bytes]] = field(default_factory=dict)
    """name -> (row-major shape, type, data)"""
    alignment: int = 32
    magic: bytes = b"GGUF"
    version: int = 3
    kv_count: int | None = None
    tensor_count: int | None = None

    def add(self, name: str, array: np.ndarray) -> "GGUF":
        """A plain float tensor."""
        kind = {"float32": "f32", "float16": "f16"}[array.dtype.name]
        self.tensors[name] = (array.shape, kind, array.tobytes())
        return self

    def head(self) -> bytes:
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        kvs = len(self.kvs) if self.kv_count is None else self.kv_count
        return self.magic + struct.pack("<IQQ", self.version, tensors, kvs)

    def pack(self) -> bytes:
        header = self.head()
        header += b"".join(string(k) + value_bytes(v) for k, v in self.kvs.items())
        data = b""
        for name, (shape, kind, raw) in self.tensors.items():
            header += tensor_entry(name, shape[::-1], TYPE_IDS[kind], len(data))
            data += raw + bytes(-len(raw) % self.alignment)
        return header + bytes(-len(header) % self.alignment) + data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.pack())
        return path


def tensor_entry(name: str | bytes, dims: tuple[int, ...], type_id: int, offset: int) -> bytes:
    return (
        string(name)
        + struct.pack("<I", len(dims))
        + b"".join(struct.pack("<Q", d) for d in dims)
        + struct.pack("<IQ", type_id, offset)
    )


def tiny_llama(num_layers: int = 2, **changes: Any) -> GGUF:
    """A complete tiny Llama; `changes` replace metadata (None removes), keys with `__` for dots."""
    vocab = ["<s>", "</s>", "a", "b", "ab", " "]
    kvs: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": num_layers,
        "llama.context_length": 64,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocab,
        "tokenizer.ggml.token_type": Typed(5, [3, 3, 1, 1, 1, 1]),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    for key, value in changes.items():
        name = key.replace("__", ".")
        if value is None:
            kvs.pop(name, None)
        else:
            kvs[name] = value
    file = GGUF(kvs)
    rng = np.random.default_rng(0)
    for name, shape in tiny_shapes(num_layers, len(vocab)).items():
        file.add(name, rng.standard_normal(shape).astype(np.float32))
    return file


def tiny_shapes(num_layers: int, vocab_size: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab_size, 32),
        "output_norm.weight": (32,),
    }
    layer = {
        "attn_norm": (32,), "attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32),
        "attn_output": (32, 32), "ffn_norm": (32,), "ffn_gate": (64, 32), "ffn_up": (64, 32),
        "ffn_down": (32, 64),
    }  # fmt: skip
    for i in range(num_layers):
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in layer.items()}
    return shapes
