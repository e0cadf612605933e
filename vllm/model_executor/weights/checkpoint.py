"""Opens the weights of a model, whatever format they are stored in.

Decides which reader a path gets. Invariant: pickle files are never opened, only refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from vllm.exceptions import ConfigError, ModelFileError
from vllm.model_executor.weights.raw import RawTensor

LOAD_FORMATS = ("auto", "safetensors", "gguf")


class Checkpoint(Protocol):
    """Named tensors, read lazily from memory-mapped files."""

    def names(self) -> list[str]:
        """Every tensor, in the order of the files."""

    def __contains__(self, name: str) -> bool: ...

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and storage type, without touching the data."""

    def get(self, name: str) -> RawTensor:
        """The tensor; KeyError if there is none of this name."""

    def close(self) -> None:
        """Unmap the files, or let them go with the last array that looks into them."""


def open_checkpoint(path: str | Path, load_format: str = "auto") -> Checkpoint:
    """The weights of a model folder or a .gguf file."""
    if load_format not in LOAD_FORMATS:
        raise ConfigError(
            f"--load-format {load_format} is not supported for files "
            f"(supported: {', '.join(LOAD_FORMATS)})"
        )
    location = Path(path)
    if location.is_file() and location.suffix == ".gguf":
        return _open_gguf(location, load_format)
    if not location.is_dir():
        raise ModelFileError(f"{location}: neither a model folder nor a .gguf file")
    return _open_folder(location, load_format)


def _open_gguf(path: Path, load_format: str) -> Checkpoint:
    if load_format == "safetensors":
        raise ConfigError(f"{path} is a GGUF file, but --load-format is safetensors")
    from vllm.model_executor.weights.gguf import GGUFCheckpoint

    return GGUFCheckpoint(path)


def _open_folder(folder: Path, load_format: str) -> Checkpoint:
    if load_format == "gguf":
        raise ConfigError(f"{folder}: pass the .gguf file itself, not its folder")
    from vllm.model_executor.weights.safetensors import INDEX_NAME, open_safetensors_folder

    if (folder / INDEX_NAME).is_file() or any(folder.glob("*.safetensors")):
        return open_safetensors_folder(folder)
    pickled = sorted(p.name for s in ("*.bin", "*.pt", "*.pth") for p in folder.glob(s))
    if pickled:
        raise ModelFileError(
            f"{folder}: {pickled[0]}: pickle weights are not supported; convert to safetensors"
        )
    if any(folder.glob("*.gguf")):
        raise ModelFileError(f"{folder}: pass the .gguf file itself, not its folder")
    raise ModelFileError(f"{folder}: no .safetensors file here")
