"""The safetensors reader: values against the `safetensors` package, and every kind of lie."""

import json
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vllm.exceptions import ModelFileError
from vllm.model_executor.weights import open_checkpoint

F32_ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def pack(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def refused(tmp_path: Path, data: bytes) -> str:
    file = tmp_path / "model.safetensors"
    file.write_bytes(data)
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(tmp_path)
    elapsed, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert elapsed < 1
    assert peak < 50e6
    message = str(caught.value)
    assert message.startswith(str(file))
    assert "\n" not in message
    return message.removeprefix(str(file))


def entry(**changes: Any) -> dict[str, Any]:
    return {"x": {**F32_ONE, **changes}}


def without(key: str) -> dict[str, Any]:
    return {"x": {k: v for k, v in F32_ONE.items() if k != key}}


DEEP = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "seven bytes": (b"\0" * 7, "too few"),
    "length over file": (pack({}, length=100), "header of 100 bytes is impossible"),
    "length 2^63": (pack({}, length=1 << 63), "header of 9223372036854775808 bytes"),
    "not utf-8": (pack(b'{"\xff":1}'), "not valid UTF-8"),
    "not json": (pack(b"{"), "not valid JSON"),
    "not an object": (pack([1]), "must hold a JSON object"),
    "deep json": (pack(DEEP), "nested too deeply"),
    "long number": (pack(b'{"x":' + b"9" * 10_000 + b"}"), "header"),
    "nan": (pack(b'{"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}'), "NaN"),
    "repeated tensor": (
        pack(b'{"x":%s,"x":%s}' % ((json.dumps(F32_ONE).encode(),) * 2), bytes(4)),
        "key 'x' occurs twice",
    ),
    "repeated field": (
        pack(b'{"x":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
        "key 'dtype' occurs twice",
    ),
    "entry is a list": (pack({"x": []}), "'x' must have exactly"),
    "no shape": (pack(without("shape"), bytes(4)), "'x' must have exactly"),
    "extra field": (pack(entry(y=1), bytes(4)), "'x' must have exactly"),
    "unknown dtype": (pack(entry(dtype="F31"), bytes(4)), "'x' has the unknown dtype 'F31'"),
    "dtype is a list": (pack(entry(dtype=[]), bytes(4)), "'x' has the unknown dtype"),
    "negative dim": (pack(entry(shape=[-1]), bytes(4)), "'x': shape [-1]"),
    "boolean dim": (pack(entry(shape=[True]), bytes(4)), "'x': shape [True]"),
    "float dim": (pack(entry(shape=[1.0]), bytes(4)), "'x': shape [1.0]"),
    "negative offset": (pack(entry(data_offsets=[-4, 0]), bytes(4)), "'x': shape"),
    "one offset": (pack(entry(data_offsets=[0]), bytes(4)), "'x': shape"),
    "offsets swapped": (pack(entry(data_offsets=[4, 0]), bytes(4)), "needs 4 bytes"),
    "size mismatch": (pack(entry(shape=[2]), bytes(4)), "needs 8 bytes"),
    "huge shape": (pack(entry(shape=[1 << 62, 1 << 62]), bytes(4)), "'x': shape"),
    "huge and claimed": (
        pack(entry(shape=[1 << 60], data_offsets=[0, 1 << 62]), bytes(4)), "the file has"
    ),
    "past the end": (pack({"x": F32_ONE}), "'x' ends at byte"),
    "trailing bytes": (pack({"x": F32_ONE}, bytes(5)), "1 bytes follow the last tensor"),
    "gap before": (pack(entry(data_offsets=[4, 8]), bytes(8)), "'x' follows a gap"),
    "gap between": (
        pack({"x": F32_ONE, "y": {**F32_ONE, "data_offsets": [8, 12]}}, bytes(12)),
        "'y' follows a gap",
    ),
    "overlap": (
        pack({"x": {**F32_ONE, "shape": [2], "data_offsets": [0, 8]},
              "y": {**F32_ONE, "data_offsets": [4, 8]}}, bytes(8)),
        "'y' overlaps",
    ),
    "same place": (pack({"x": F32_ONE, "y": F32_ONE}, bytes(4)), "'y' overlaps"),
    "lone surrogate": (pack({"\ud800": F32_ONE}, bytes(4)), "not valid Unicode"),
    "half a byte": (pack(entry(dtype="F4", shape=[1], data_offsets=[0, 0])), "'x': shape"),
    "newline in name": (pack({"a\nb": {**F32_ONE, "shape": [2]}}, bytes(4)), "'a\\nb'"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_by_name(lie: str, tmp_path: Path) -> None:
    data, expected = LIES[lie]
    assert expected in refused(tmp_path, data)


def test_a_header_over_100_mb_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", 100_000_001))
        out.truncate(100_000_100)  # sparse: no disk is used
    with pytest.raises(ModelFileError, match="header of 100000001 bytes is impossible"):
        open_checkpoint(tmp_path)


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "a.weight": torch.randn(3, 5),
        "b.weight": torch.randn(4, 2).to(torch.bfloat16),
        "c.weight": torch.randn(2, 2, 2).to(torch.float16),
        "d.scalar": torch.tensor(1.5),
        "e.empty": torch.zeros(0, 4),
        "f.ids": torch.arange(6, dtype=torch.int64).reshape(2, 3),
    }


def test_values_equal_those_that_were_saved(tmp_path: Path) -> None:
    saved = tensors()
    save_file(saved, tmp_path / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(tmp_path)
    assert sorted(checkpoint.names()) == sorted(saved)
    kinds = {"a.weight": "f32", "b.weight": "bf16", "c.weight": "f16", "d.scalar": "f32"}
    for name, kind in kinds.items():
        tensor = checkpoint.get(name)
        assert (tensor.type, tensor.shape) == (kind, tuple(saved[name].shape))
        assert checkpoint.describe(name) == (tensor.shape, kind)
        np.testing.assert_array_equal(tensor.to_float32(), saved[name].float().numpy())
    assert checkpoint.get("e.empty").to_float32().shape == (0, 4)
    ids = checkpoint.get("f.ids")
    assert ids.data.view(np.int64).tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ModelFileError, match=r"'f.ids' has the type i64"):
        ids.to_float32()


def shards(folder: Path) -> dict[str, Any]:
    saved = tensors()
    names = sorted(saved)
    weight_map = {}
    for number, part in ((1, names[:3]), (2, names[3:])):
        shard = f"model-{number:05d}-of-00002.safetensors"
        save_file({n: saved[n] for n in part}, folder / shard)
        weight_map |= dict.fromkeys(part, shard)
    return {"metadata": {"total_size": 1}, "weight_map": weight_map}


def write_index(folder: Path, index: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    write_index(tmp_path, shards(tmp_path))
    checkpoint = open_checkpoint(tmp_path)
    for name, tensor in tensors().items():
        assert checkpoint.get(name).shape == tuple(tensor.shape)
    assert "a.weight" in checkpoint and "z" not in checkpoint


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_index(tmp_path, shards(tmp_path))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"shard 'model-00002-of-00002.safetensors' is miss"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "shard",
    ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "a\\b.safetensors",
     "x.bin", "\0.safetensors", 5, None],
)  # fmt: skip
def test_an_index_can_not_name_files_elsewhere(shard: Any, tmp_path: Path) -> None:
    index = shards(tmp_path)
    index["weight_map"]["a.weight"] = shard
    write_index(tmp_path, index)
    with pytest.raises(ModelFileError, match=r"index\.json"):
        open_checkpoint(tmp_path)


def test_an_index_must_tell_the_truth(tmp_path: Path) -> None:
    index = shards(tmp_path)
    index["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    write_index(tmp_path, index)
    with pytest.raises(ModelFileError, match="tensor 'ghost' is missing"):
        open_checkpoint(tmp_path)
    for wrong in ({}, {"weight_map": []}, {"weight_map": {}}, []):
        write_index(tmp_path, wrong)
        with pytest.raises(ModelFileError, match=r"index\.json"):
            open_checkpoint(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_file({"x": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ModelFileError, match=r"'x' is also in one\.safetensors"):
        open_checkpoint(tmp_path)
