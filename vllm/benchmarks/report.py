"""Tables and files of benchmark results."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

WIDTH = 50
_LABEL = 40


def title(text: str) -> str:
    """A line with the text in its middle."""
    return f" {text} ".center(WIDTH, "=")


def section(text: str) -> str:
    """A smaller heading."""
    return text.center(WIDTH, "-")


def row(label: str, value: float | int | str) -> str:
    """`label: value`; floats with two digits."""
    shown = f"{value:<10.2f}" if isinstance(value, float) else f"{value:<10}"
    return f"{label:<{_LABEL}} {shown}".rstrip()


def percentile(values: Sequence[float], q: float) -> float:
    """Linear between the values, 0 if there are none."""
    return float(np.percentile(values, q)) if len(values) else 0.0


def mean(values: Sequence[float]) -> float:
    """0 if there are no values."""
    return float(np.mean(values)) if len(values) else 0.0


def write_json(path: str, value: Any) -> None:
    """One JSON file, with its folder."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=4) + "\n", encoding="utf-8")
