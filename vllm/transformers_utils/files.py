"""Opens the small files of a model folder: JSON, text and memory maps.

Decides what counts as damaged: every failure is one `ModelFileError` line with the file's name.
"""

from __future__ import annotations

import json
import mmap
import re
from pathlib import Path
from typing import Any, NoReturn

from vllm.exceptions import ModelFileError

# tokenizer_config.json with an inlined vocabulary is the largest JSON read here (some MB).
MAX_JSON_BYTES = 64 << 20
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def shown(value: object, limit: int = 80) -> str:
    """`value` as it may appear in an error line: printable, one line, short."""
    text = ascii(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def map_file(path: Path) -> mmap.mmap:
    """A read-only map of the whole file."""
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ModelFileError(f"{path}: the file is empty") from None
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror or error}") from None


def read_text(path: Path, max_bytes: int = MAX_JSON_BYTES) -> str:
    """The file as UTF-8 text."""
    try:
        return read_bytes(path, max_bytes).decode("utf-8")
    except UnicodeDecodeError:
        raise ModelFileError(f"{path}: not valid UTF-8") from None


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """The whole file, if it is not too large."""
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise ModelFileError(f"{path}: {size} bytes is too large (limit {max_bytes})")
        return path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror or error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """The file as one JSON object."""
    return parse_json_object(read_text(path), str(path))


def parse_json_object(text: str, source: str, *, strict: bool = False) -> dict[str, Any]:
    """`text` as one JSON object; `strict` also refuses repeated keys and NaN."""
    pairs = _refuse_repeats if strict else None
    constant = _refuse_constant if strict else None
    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
        if _SURROGATE.search(text):
            _refuse_halves(value)
    except RecursionError:
        raise ModelFileError(f"{source}: JSON is nested too deeply") from None
    except ValueError as error:
        raise ModelFileError(f"{source}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{source}: must hold a JSON object, not {type(value).__name__}")
    return value


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {shown(key)} occurs twice")
            seen.add(key)
    return result


def _refuse_halves(value: Any) -> None:
    """Escapes may spell half a character, which no file name, token or message can hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a string is not valid Unicode") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
