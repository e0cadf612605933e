"""Hostile and damaged GGUF headers: one line naming file and key, at once, without the memory."""

import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.transformers_utils.gguf_builder import (
    GGUF,
    TYPE_IDS,
    Typed,
    string,
    tensor_entry,
    tiny_llama,
)
from vllm.exceptions import ModelFileError
from vllm.transformers_utils.embedded import find_embedded
from vllm.transformers_utils.gguf import GGUFFile

PADDING = bytes(4096)
ONE = np.ones(32, np.float32)


def refused(path: Path, data: bytes) -> str:
    """The refusal of a file with this content; fails if it is slow, long or hungry."""
    path.write_bytes(data)
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(ModelFileError) as caught:
        GGUFFile(path).close()
    elapsed, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert elapsed < 1
    assert peak < 50e6
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


def raw_kv(key: str, type_id: int, body: bytes) -> bytes:
    return GGUF(kv_count=1).head() + string(key) + struct.pack("<I", type_id) + body + PADDING


def one_tensor(name: str | bytes, dims: tuple[int, ...], type_id: int, offset: int = 0) -> bytes:
    return GGUF(tensor_count=1).head() + tensor_entry(name, dims, type_id, offset) + PADDING


HUGE = struct.pack("<Q", 1 << 63)
LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "not gguf": (b"GGML" + PADDING, "not a GGUF file"),
    "three bytes": (b"GGU", "not a GGUF file"),
    "version 1": (GGUF(version=1).head() + PADDING, "version 1"),
    "version 4": (GGUF(version=4).head() + PADDING, "version 4"),
    "big endian": (GGUF(version=0x03000000).head() + PADDING, "big-endian"),
    "kv count": (GGUF(kv_count=1 << 63).head() + PADDING, "metadata count 9223372036854775808"),
    "tensor count": (GGUF(tensor_count=(1 << 64) - 1).head() + PADDING, "tensor count"),
    "key length": (GGUF(kv_count=1).head() + HUGE + PADDING, "metadata key 0"),
    "string length": (raw_kv("k", 8, HUGE), "'k': a string of 9223372036854775808"),
    "array length": (raw_kv("k", 9, struct.pack("<IQ", 4, 1 << 60)), "'k': an array of 11529215"),
    "string array": (raw_kv("k", 9, struct.pack("<IQ", 8, 1 << 61)), "'k': an array of"),
    "long element": (raw_kv("k", 9, struct.pack("<IQQ", 8, 1, 1 << 62)), "ends inside 'k'"),
    "nested array": (raw_kv("k", 9, struct.pack("<IQ", 9, 1)), "unsupported value type 9"),
    "value type": (raw_kv("k", 13, b""), "'k' has the unknown value type 13"),
    "element type": (raw_kv("k", 9, struct.pack("<IQ", 99, 1)), "unsupported value type 99"),
    "boolean": (raw_kv("k", 7, b"\x02"), "'k': 2 is not a boolean"),
    "key not utf-8": (GGUF(kv_count=1).head() + string(b"\xff") + PADDING, "not valid UTF-8"),
    "value not utf-8": (raw_kv("k", 8, string(b"\xc3\x28")), "'k' is not valid UTF-8"),
    "name not utf-8": (one_tensor(b"\xff\xfe", (32,), 0), "not valid UTF-8"),
    "no dims": (one_tensor("t", (), 0), "'t' has 0 dimensions"),
    "5 dims": (one_tensor("t", (1,) * 5, 0), "'t' has 5 dimensions"),
    "255 dims": (one_tensor("t", (1,) * 255, 0), "'t' has 255 dimensions"),
    "dim 0": (one_tensor("t", (32, 0), 0), "does not fit"),
    "dims product": (one_tensor("t", (1 << 32, 1 << 32, 1 << 32), 0), "'t' needs bytes"),
    "dim 2^64": (one_tensor("t", ((1 << 64) - 32, 1 << 63), TYPE_IDS["q4_0"]), "'t' needs bytes"),
    "half a block": (one_tensor("t", (48,), TYPE_IDS["q4_0"]), "does not fit Q4_0 blocks of 32"),
    "known type": (one_tensor("t", (256,), 10), "'t' has the unsupported type Q2_K"),
    "unknown type": (one_tensor("t", (256,), 1000), "'t' has the unsupported type id 1000"),
    "offset": (one_tensor("t", (32,), 0, 5), "offset 5 is not a multiple of 32"),
    "past the end": (one_tensor("t", (32,), 0, 1 << 40), "'t' needs bytes"),
    "far past the end": (one_tensor("t", (32,), 0, (1 << 64) - 32), "'t' needs bytes"),
    "control in name": (one_tensor("a\nb", (48,), 2), "'a\\nb'"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_by_name(lie: str, tmp_path: Path) -> None:
    data, expected = LIES[lie]
    assert expected in refused(tmp_path / "model.gguf", data)


def two_tensors(edit: Callable[[GGUF], None]) -> bytes:
    file = GGUF().add("x", ONE).add("y", ONE)
    edit(file)
    return file.pack()


def test_repeated_names(tmp_path: Path) -> None:
    data = two_tensors(lambda f: None)
    at = data.rindex(b"\x01\0\0\0\0\0\0\0y")
    doubled = data[: at + 8] + b"x" + data[at + 9 :]
    assert "tensor 'x' occurs twice" in refused(tmp_path / "m.gguf", doubled)
    entry = string("k") + struct.pack("<IB", 7, 1)
    repeated = GGUF(kv_count=2).head() + entry + entry + PADDING
    assert "key 'k' occurs twice" in refused(tmp_path / "m.gguf", repeated)


def test_overlapping_tensors(tmp_path: Path) -> None:
    head = GGUF(tensor_count=2).head()
    entries = tensor_entry("x", (32,), 0, 0) + tensor_entry("y", (32,), 0, 64)
    message = refused(tmp_path / "m.gguf", head + entries + PADDING)
    assert "tensors 'x' and 'y' overlap" in message


@pytest.mark.parametrize("alignment", [0, 1, 12, 1 << 31])
def test_alignment(alignment: int, tmp_path: Path) -> None:
    data = GGUF({"general.alignment": alignment}).add("x", ONE).pack()
    assert "general.alignment" in refused(tmp_path / "m.gguf", data)


def test_a_hundred_thousand_keys_are_too_many(tmp_path: Path) -> None:
    data = GGUF(kv_count=200_000).head() + bytes(13 * 200_000)
    assert "metadata count 200000 is impossible" in refused(tmp_path / "m.gguf", data)


def test_millions_of_empty_strings_are_too_many(tmp_path: Path) -> None:
    count = 5_000_000
    data = raw_kv("k", 9, struct.pack("<IQ", 8, count)) + bytes(8 * count)
    assert "more than" in refused(tmp_path / "m.gguf", data)


def test_truncated_at_every_percent(tmp_path: Path) -> None:
    data = tiny_llama().pack()
    for percent in range(100):
        refused(tmp_path / "m.gguf", data[: len(data) * percent // 100])


def test_version_2_and_other_alignment(tmp_path: Path) -> None:
    file = GGUF({"general.alignment": 64, "n": 7}, alignment=64, version=2)
    file.add("x", ONE).add("y", 2 * ONE)
    read = GGUFFile(file.write(tmp_path / "m.gguf"))
    assert read.get("n") == 7
    info = read.tensors["y"]
    assert info.offset % 64 == 0
    assert np.frombuffer(read.map_of(info), np.float32, 32, info.offset).tolist() == [2.0] * 32


def test_every_value_type_reads_back(tmp_path: Path) -> None:
    values = {
        0: 255, 1: -128, 2: 65535, 3: -32768, 4: 1 << 31, 5: -(1 << 31), 6: 0.5, 7: True,
        8: "naïve ▁", 10: (1 << 64) - 1, 11: -(1 << 63), 12: 1e300,
    }  # fmt: skip
    kvs = {f"v{t}": Typed(t, v) for t, v in values.items()}
    kvs |= {f"a{t}": Typed(t, [v, v]) for t, v in values.items()}
    read = GGUFFile(GGUF({**kvs, "empty": []}).write(tmp_path / "m.gguf"))
    for type_id, value in values.items():
        assert read.get(f"v{type_id}") == value
        assert read.get(f"a{type_id}") == [value, value]
        assert read.length(f"a{type_id}") == 2
    assert read.get("empty") == []
    assert read.get("missing", 5) == 5
    assert "v0" in read and "nope" not in read


def split_parts(folder: Path, count: int) -> list[Path]:
    paths = []
    for i in range(count):
        kvs = {"split.no": Typed(2, i), "split.count": Typed(2, count)}
        file = GGUF({"general.name": "x", **kvs} if i == 0 else kvs).add(f"t{i}", (i + 1) * ONE)
        paths.append(file.write(folder / f"m-{i + 1:05d}-of-{count:05d}.gguf"))
    return paths


def test_parts_are_read_as_one(tmp_path: Path) -> None:
    first = split_parts(tmp_path, 3)[0]
    read = GGUFFile(first)
    assert list(read.tensors) == ["t0", "t1", "t2"]
    for i, info in enumerate(read.tensors.values()):
        values = np.frombuffer(read.map_of(info), np.float32, 32, info.offset)
        assert values.tolist() == [i + 1.0] * 32


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = split_parts(tmp_path, 3)
    paths[1].unlink()
    with pytest.raises(ModelFileError, match=r"part 2 of 3 is missing: m-00002-of-00003.gguf"):
        GGUFFile(paths[0])
    with pytest.raises(ModelFileError, match=r"pass the first part, m-00001-of-00003.gguf"):
        GGUFFile(paths[2])
    renamed = paths[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match=r"must be named like model-00001-of-00003.gguf"):
        GGUFFile(renamed)


@pytest.mark.skipif(find_embedded() is None, reason="the embedded model is not installed")
def test_the_real_model_reads_as_the_gguf_package_reads_it() -> None:
    path = find_embedded()
    assert path is not None
    start = time.process_time()
    ours = GGUFFile(path)
    assert time.process_time() - start < 0.1
    theirs = gguf.GGUFReader(path)
    fields = {k: f for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert list(ours) == list(fields)
    for key, entry in fields.items():
        assert ours.get(key) == entry.contents()
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert (info.type.name, info.nbytes, info.offset) == (
            tensor.tensor_type.name.lower(),
            tensor.n_bytes,
            tensor.data_offset,
        )
