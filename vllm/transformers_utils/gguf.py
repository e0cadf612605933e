"""Reads the header of a GGUF file: metadata and tensor places, never the tensor data itself.

Decides whether the file may be trusted. Invariant: every count, length, type and offset is checked
with Python integers (which don't wrap) against the size of the file before it is used, so a lying
file costs neither memory nor time, and all it can cause is `ModelFileError`.

    magic "GGUF" | u32 version | u64 tensor_count | u64 kv_count
    kv_count x     (string key | u32 type | value)
    tensor_count x (string name | u32 n_dims | u64 dims[n_dims] | u32 type | u64 offset)
    padding to `general.alignment` | data
"""

from __future__ import annotations

import contextlib
import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from vllm.exceptions import ModelFileError
from vllm.transformers_utils.files import map_file, shown

# Far above every published model, low enough that reading a file of nothing but header entries
# takes well under a second.
MAX_KVS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_STRINGS = 1 << 22
MAX_STRING_BYTES = 1 << 24
MAX_NAME_BYTES = 1 << 10
MAX_DIMS = 4

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<B"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]


@dataclass(frozen=True)
class BlockType:
    """A tensor storage type: `block_bytes` bytes hold `block_size` consecutive values of a row."""

    name: str
    block_size: int
    block_bytes: int


BLOCK_TYPES: dict[int, BlockType] = {
    0: BlockType("f32", 1, 4),
    1: BlockType("f16", 1, 2),
    2: BlockType("q4_0", 32, 18),
    3: BlockType("q4_1", 32, 20),
    6: BlockType("q5_0", 32, 22),
    7: BlockType("q5_1", 32, 24),
    8: BlockType("q8_0", 32, 34),
    12: BlockType("q4_k", 256, 144),
    13: BlockType("q5_k", 256, 176),
    14: BlockType("q6_k", 256, 210),
    30: BlockType("bf16", 1, 2),
}
_UNSUPPORTED_TYPES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16",
    26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
    40: "NVFP4",
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies. `shape` is row-major: the last dimension is contiguous."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    offset: int
    nbytes: int
    part: int = 0


@dataclass(frozen=True)
class _Array:
    """A metadata array that has been measured but not decoded."""

    type: int
    count: int
    start: int
    end: int


class GGUFFile:
    """One GGUF file or, from its first part, a whole multi-part model. Metadata is lazy."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._parts: list[_Part] = []
        try:
            self._open_parts()
        except BaseException:
            self.close()
            raise
        self._values = self._parts[0].values

    def _open_parts(self) -> None:
        first = _Part(self.path)
        self._parts.append(first)
        for path in _sibling_parts(self.path, first):
            self._parts.append(_Part(path))
        self.tensors: dict[str, TensorInfo] = {}
        for number, part in enumerate(self._parts):
            for info in part.tensors(number):
                if info.name in self.tensors:
                    part.fail(f"tensor {shown(info.name)} occurs twice")
                self.tensors[info.name] = info

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`: int, float, bool, str or a list of those; decoded on each call."""
        value = self._values.get(key, default)
        return self._parts[0].decode(key, value) if isinstance(value, _Array) else value

    def length(self, key: str) -> int:
        """How many elements the array `key` has, without decoding it; 0 if there is none."""
        value = self._values.get(key)
        return value.count if isinstance(value, _Array) else 0

    def map_of(self, info: TensorInfo) -> mmap.mmap:
        """The memory map that holds `info`; offsets are relative to its start."""
        return self._parts[info.part].buffer

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def fail(self, problem: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {problem}")


def _sibling_parts(path: Path, first: _Part) -> Iterator[Path]:
    """The other parts of a split model, in order; none for a single file."""
    count = first.values.get("split.count", 1)
    number = first.values.get("split.no", 0)
    if type(count) is not int or type(number) is not int or not 0 <= number < max(count, 1):
        first.fail(f"split.no {shown(number)} of split.count {shown(count)} makes no sense")
    if count <= 1:
        return
    match = re.fullmatch(r"(.+)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if match is None or int(match[3]) != count or int(match[2]) != number + 1:
        first.fail(
            f"part {number + 1} of {count} must be named like model-"
            f"{number + 1:05d}-of-{count:05d}.gguf"
        )
    if number != 0:
        first.fail(f"pass the first part, {match[1]}-00001-of-{match[3]}.gguf")
    for i in range(2, count + 1):
        sibling = path.with_name(f"{match[1]}-{i:05d}-of-{match[3]}.gguf")
        if not sibling.is_file():
            first.fail(f"part {i} of {count} is missing: {sibling.name}")
        yield sibling


class _Part:
    """One file on disk: the map, a read position, and what the header says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.buffer = map_file(path)
        self.size = len(self.buffer)
        self.pos = 0
        self.num_strings = 0
        try:
            self.values = self._read_header()
        except BaseException:
            self.close()
            raise

    def fail(self, problem: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {problem}")

    def close(self) -> None:
        with contextlib.suppress(BufferError):  # arrays still look into it: it goes with them
            self.buffer.close()

    def _read_header(self) -> dict[str, Any]:
        if self.size < 24 or self.buffer[:4] != b"GGUF":
            self.fail("not a GGUF file (it must start with the four bytes GGUF)")
        self.pos = 4
        version = self.scalar(4, "version")
        if version not in (2, 3):
            swapped = int.from_bytes(int(version).to_bytes(4, "little"), "big") in (1, 2, 3)
            what = "big-endian files are" if swapped else f"version {version} is"
            self.fail(f"{what} not supported (only little-endian versions 2 and 3)")
        self.num_tensors = self._count("tensor count", MAX_TENSORS, smallest=24)
        num_kvs = self._count("metadata count", MAX_KVS, smallest=13)
        values: dict[str, Any] = {}
        for index in range(num_kvs):
            key = self.string(f"metadata key {index}", MAX_NAME_BYTES)
            if key in values:
                self.fail(f"metadata key {shown(key)} occurs twice")
            values[key] = self._value(key)
        return values

    def _count(self, what: str, highest: int, smallest: int) -> int:
        count = int(self.scalar(10, what))
        room = (self.size - self.pos) // smallest
        if count > room or count > highest:
            self.fail(f"{what} {count} is impossible (limit {min(room, highest)})")
        return count

    def scalar(self, type_id: int, what: str) -> Any:
        form = _SCALARS[type_id]
        if self.pos + form.size > self.size:
            self.fail(f"the file ends inside {what}")
        (value,) = form.unpack_from(self.buffer, self.pos)
        self.pos += form.size
        if type_id == _BOOL:
            if value > 1:
                self.fail(f"{what}: {value} is not a boolean")
            return bool(value)
        return value

    def string(self, what: str, highest: int = MAX_STRING_BYTES) -> str:
        length = self.scalar(10, what)
        if length > highest or length > self.size - self.pos:
            limit = min(highest, self.size - self.pos)
            self.fail(f"{what}: a string of {length} bytes is impossible (limit {limit})")
        raw = self.buffer[self.pos : self.pos + length]
        self.pos += length
        return self._text(raw, what)

    def _text(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is not valid UTF-8")

    def _value(self, key: str) -> Any:
        type_id = self.scalar(4, f"the type of {shown(key)}")
        if type_id in _SCALARS:
            return self.scalar(type_id, shown(key))
        if type_id == _STRING:
            return self.string(shown(key))
        if type_id == _ARRAY:
            return self._measure_array(key)
        self.fail(f"{shown(key)} has the unknown value type {type_id}")

    def _measure_array(self, key: str) -> _Array:
        type_id = self.scalar(4, f"the element type of {shown(key)}")
        count = self.scalar(10, f"the length of {shown(key)}")
        if type_id not in _SCALARS and type_id != _STRING:
            self.fail(f"{shown(key)} is an array of the unsupported value type {type_id}")
        element_bytes = 8 if type_id == _STRING else _SCALARS[type_id].size
        room = (self.size - self.pos) // element_bytes
        if count > room:
            self.fail(f"{shown(key)}: an array of {count} elements is impossible (limit {room})")
        start = self.pos
        if type_id == _STRING:
            self.num_strings += count
            if self.num_strings > MAX_STRINGS:
                self.fail(f"{shown(key)}: more than {MAX_STRINGS} strings in the metadata")
            self._skip_strings(key, count)
        else:
            self.pos += count * element_bytes
        return _Array(type_id, count, start, self.pos)

    def _skip_strings(self, key: str, count: int) -> None:
        # Vocabularies make this the hot loop of opening a file: about 0.1 us per string.
        unpack, buffer, pos = _U64.unpack_from, self.buffer, self.pos
        last = self.size - 8
        for _ in range(count):
            if pos > last:
                self.fail(f"the file ends inside {shown(key)}")
            pos += 8 + unpack(buffer, pos)[0]
        if pos > self.size:
            self.fail(f"the file ends inside {shown(key)}")
        self.pos = pos

    def decode(self, key: str, array: _Array) -> list[Any]:
        """All elements of a measured array; strings as `str`."""
        raw = self.buffer[array.start : array.end]
        if array.type != _STRING:
            values = struct.unpack(f"<{array.count}{_SCALARS[array.type].format[1:]}", raw)
            return [bool(v) for v in values] if array.type == _BOOL else list(values)
        unpack, pos, out = _U64.unpack_from, 0, []
        try:
            for _ in range(array.count):
                end = pos + 8 + unpack(raw, pos)[0]
                out.append(raw[pos + 8 : end].decode())
                pos = end
        except UnicodeDecodeError:
            self.fail(f"{shown(key)}: entry {len(out)} is not valid UTF-8")
        return out

    def tensors(self, number: int) -> list[TensorInfo]:
        """Read and check the tensor table. Called once, after the metadata."""
        alignment = self.values.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= 65536 or alignment % 8:
            self.fail(f"general.alignment {shown(alignment)} must be a multiple of 8 up to 65536")
        raw = [self._tensor(i, alignment) for i in range(self.num_tensors)]
        data_start = -(-self.pos // alignment) * alignment
        infos = [self._place(*entry, data_start, number) for entry in raw]
        self._refuse_overlap(infos)
        return infos

    def _tensor(self, index: int, alignment: int) -> tuple[str, list[int], int, int]:
        name = self.string(f"the name of tensor {index}", MAX_NAME_BYTES)
        num_dims = self.scalar(4, f"the shape of {shown(name)}")
        if not 1 <= num_dims <= MAX_DIMS:
            self.fail(f"tensor {shown(name)} has {num_dims} dimensions (allowed: 1 to {MAX_DIMS})")
        dims = [self.scalar(10, f"the shape of {shown(name)}") for _ in range(num_dims)]
        type_id = self.scalar(4, f"the type of {shown(name)}")
        offset = self.scalar(10, f"the offset of {shown(name)}")
        if offset % alignment:
            self.fail(f"tensor {shown(name)}: offset {offset} is not a multiple of {alignment}")
        return name, dims, type_id, offset

    def _place(
        self, name: str, dims: list[int], type_id: int, offset: int, data_start: int, number: int
    ) -> TensorInfo:
        kind = BLOCK_TYPES.get(type_id)
        if kind is None:
            type_name = _UNSUPPORTED_TYPES.get(type_id, f"id {type_id}")
            supported = ", ".join(t.name.upper() for t in BLOCK_TYPES.values())
            self.fail(
                f"tensor {shown(name)} has the unsupported type {type_name} "
                f"(supported: {supported})"
            )
        count = 1
        for dim in dims:
            count *= dim
        if count == 0 or dims[0] % kind.block_size:
            self.fail(
                f"tensor {shown(name)}: shape {dims} does not fit {kind.name.upper()} blocks "
                f"of {kind.block_size}"
            )
        nbytes = count // kind.block_size * kind.block_bytes
        start = data_start + offset
        if start + nbytes > self.size:
            self.fail(
                f"tensor {shown(name)} needs bytes {start} to {start + nbytes} "
                f"but the file has {self.size}"
            )
        return TensorInfo(name, tuple(reversed(dims)), kind, start, nbytes, number)

    def _refuse_overlap(self, infos: list[TensorInfo]) -> None:
        end, owner = 0, ""
        for info in sorted(infos, key=lambda t: t.offset):
            if info.offset < end:
                self.fail(f"tensors {shown(owner)} and {shown(info.name)} overlap")
            end, owner = info.offset + info.nbytes, info.name
