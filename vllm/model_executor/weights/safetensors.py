"""Reads safetensors files over a memory map, one file or a sharded set.

Decides whether a file may be trusted. Invariant: before a tensor is handed out, the tensors of its
file are known to tile the data section exactly (no gap, no overlap, no byte left over) and to have
the sizes that shape and type demand.

    u64 header length | JSON header {name: {dtype, shape, data_offsets}} | data
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from vllm.exceptions import ModelFileError
from vllm.model_executor.weights.raw import RawTensor
from vllm.transformers_utils.files import map_file, parse_json_object, read_json, shown

MAX_HEADER_BYTES = 100_000_000
INDEX_NAME = "model.safetensors.index.json"

# Stored type -> our name for it, bits per value.
_DTYPES = {
    "F64": ("f64", 64), "F32": ("f32", 32), "F16": ("f16", 16), "BF16": ("bf16", 16),
    "I64": ("i64", 64), "I32": ("i32", 32), "I16": ("i16", 16), "I8": ("i8", 8),
    "U64": ("u64", 64), "U32": ("u32", 32), "U16": ("u16", 16), "U8": ("u8", 8),
    "BOOL": ("bool", 8), "F8_E4M3": ("f8_e4m3", 8), "F8_E5M2": ("f8_e5m2", 8),
    "F8_E8M0": ("f8_e8m0", 8), "F4": ("f4", 4), "F6_E2M3": ("f6_e2m3", 6),
    "F6_E3M2": ("f6_e3m2", 6), "C64": ("c64", 64),
}  # fmt: skip


@dataclass(frozen=True)
class _Place:
    shape: tuple[int, ...]
    type: str
    start: int
    end: int


class SafetensorsFile:
    """One .safetensors file, checked whole when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: mmap.mmap = map_file(path)
        try:
            self._places = self._read_places()
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        return list(self._places)

    def get(self, name: str) -> RawTensor:
        """The tensor as a view on the map."""
        place = self._places[name]
        data = np.frombuffer(self._map, np.uint8, place.end - place.start, place.start)
        return RawTensor(name, place.shape, place.type, data)

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        place = self._places[name]
        return place.shape, place.type

    def close(self) -> None:
        with contextlib.suppress(BufferError):  # arrays still look into it: it goes with them
            self._map.close()

    def _fail(self, problem: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {problem}")

    def _read_places(self) -> dict[str, _Place]:
        size = len(self._map)
        if size < 8:
            self._fail(f"{size} bytes are too few for a safetensors file")
        length = int.from_bytes(self._map[:8], "little")
        if length > MAX_HEADER_BYTES or length > size - 8:
            limit = min(MAX_HEADER_BYTES, size - 8)
            self._fail(f"a header of {length} bytes is impossible (limit {limit})")
        try:
            text = self._map[8 : 8 + length].decode("utf-8")
        except UnicodeDecodeError:
            self._fail("the header is not valid UTF-8")
        header = parse_json_object(text, f"{self.path}: header", strict=True)
        header.pop("__metadata__", None)
        base = 8 + length
        places = {name: self._place(name, entry, base) for name, entry in header.items()}
        self._check_tiling(places, base, size)
        return places

    def _place(self, name: str, entry: Any, base: int) -> _Place:
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            self._fail(f"tensor {shown(name)} must have exactly dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            self._fail(f"tensor {shown(name)} has the unknown dtype {shown(dtype)}")
        if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
            self._fail(
                f"tensor {shown(name)}: shape {shown(shape)} and data_offsets {shown(offsets)} "
                "must be lists of non-negative integers"
            )
        type_name, bits = _DTYPES[dtype]
        for dim in shape:
            bits *= dim
        start, end = offsets
        if bits % 8 or bits // 8 != end - start:
            self._fail(
                f"tensor {shown(name)}: shape {shown(shape)} of {dtype} needs {shown(bits // 8)} "
                f"bytes, data_offsets {shown(offsets)} give {shown(end - start)}"
            )
        return _Place(tuple(shape), type_name, base + start, base + end)

    def _check_tiling(self, places: dict[str, _Place], base: int, size: int) -> None:
        end = base
        for name, place in sorted(places.items(), key=lambda item: (item[1].start, item[1].end)):
            if place.start != end:
                what = "overlaps the tensor before it" if place.start < end else "follows a gap"
                self._fail(f"tensor {shown(name)} {what}")
            end = place.end
            if end > size:
                self._fail(
                    f"tensor {shown(name)} ends at byte {shown(end)} but the file has {size}"
                )
        if end != size:
            self._fail(f"{size - end} bytes follow the last tensor")


class SafetensorsCheckpoint:
    """The tensors of one file or of all shards of an index."""

    def __init__(self, paths: list[Path], index: dict[str, Path] | None = None) -> None:
        self._files: list[SafetensorsFile] = []
        self._owner: dict[str, SafetensorsFile] = {}
        try:
            for path in paths:
                self._add(SafetensorsFile(path))
            if index is not None:
                self._check_index(index)
        except BaseException:
            self.close()
            raise

    def _add(self, file: SafetensorsFile) -> None:
        self._files.append(file)
        for name in file.names():
            if name in self._owner:
                raise ModelFileError(
                    f"{file.path}: tensor {shown(name)} is also in {self._owner[name].path.name}"
                )
            self._owner[name] = file

    def _check_index(self, index: dict[str, Path]) -> None:
        for name, path in index.items():
            owner = self._owner.get(name)
            if owner is None or owner.path != path:
                raise ModelFileError(
                    f"{path}: tensor {shown(name)} is missing, {INDEX_NAME} says it is here"
                )

    def names(self) -> list[str]:
        return list(self._owner)

    def __contains__(self, name: str) -> bool:
        return name in self._owner

    def get(self, name: str) -> RawTensor:
        return self._owner[name].get(name)

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        return self._owner[name].describe(name)

    def close(self) -> None:
        for file in self._files:
            file.close()


def open_safetensors_folder(folder: Path) -> SafetensorsCheckpoint:
    """All weights of a model folder: the index's shards, else every *.safetensors file."""
    index_path = folder / INDEX_NAME
    if index_path.is_file():
        index = dict(_index_entries(index_path))
        return SafetensorsCheckpoint(sorted(set(index.values())), index)
    single = folder / "model.safetensors"
    paths = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    return SafetensorsCheckpoint(paths)


def _index_entries(index_path: Path) -> Iterator[tuple[str, Path]]:
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{index_path}: weight_map must be an object that is not empty")
    known: dict[str, Path] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str):
            raise ModelFileError(f"{index_path}: weight_map[{shown(name)}] must be a file name")
        if shard not in known:
            known[shard] = _shard_path(index_path, shard)
        yield name, known[shard]


def _shard_path(index_path: Path, shard: str) -> Path:
    plain = shard not in ("", ".", "..") and not set(shard) & {"/", "\\", "\0", ":"}
    if not plain or not shard.endswith(".safetensors"):
        raise ModelFileError(
            f"{index_path}: {shown(shard)} is not the name of a .safetensors file in this folder"
        )
    path = index_path.parent / shard
    if not path.is_file():
        raise ModelFileError(f"{index_path}: the shard {shown(shard)} is missing")
    return path


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)
