"""What the nodes of a graph are made of: buffers, views of them, weights, constants, scalars.

Plain frozen data without memory behind it; a lowering decides where the values live.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

Rows = Literal["tokens", "logits"]
DType = Literal["f32", "q8"]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Buffer:
    """A matrix with one row per token (or per sampled token) of the step."""

    name: str
    rows: Rows
    cols: int
    dtype: DType = "f32"

    @property
    def all(self) -> View:
        return View(self, 0, self.cols)

    def columns(self, first_col: int, cols: int) -> View:
        if first_col < 0 or cols < 1 or first_col + cols > self.cols:
            raise ValueError(f"{self.name} has {self.cols} columns, not {first_col}+{cols}")
        return View(self, first_col, cols)


@dataclass(frozen=True)
class View:
    """Columns [first_col, first_col + cols) of a buffer."""

    buffer: Buffer
    first_col: int
    cols: int

    def __str__(self) -> str:
        if self.cols == self.buffer.cols:
            return self.buffer.name
        return f"{self.buffer.name}[{self.first_col}:{self.first_col + self.cols}]"


@dataclass(frozen=True)
class Form:
    """How a weight is packed; the fields mean what they mean in PackedWeight of kernels.h."""

    kind: Literal["f32", "f16", "bf16", "q8", "q4"]
    group: int = 0
    has_min: bool = False

    @property
    def is_quantized(self) -> bool:
        return self.group > 0

    def __str__(self) -> str:
        return f"{self.kind}g{self.group}{'m' * self.has_min}" if self.group else self.kind


@dataclass(frozen=True)
class Part:
    """`rows` consecutive rows (or values) that one checkpoint tensor fills."""

    name: str
    rows: int


@dataclass(frozen=True)
class Weight:
    """A matrix of output rows by k inputs, made of checkpoint tensors one below the other."""

    name: str
    parts: tuple[Part, ...]
    k: int
    form: Form | None = None

    @property
    def n(self) -> int:
        return sum(part.rows for part in self.parts)

    def __str__(self) -> str:
        return f"{self.name}<{self.n}x{self.k}{f' {self.form}' if self.form else ''}>"


@dataclass(frozen=True, eq=False)
class Const:
    """A small f32 array: `parts` of the checkpoint plus `offset`, or what `compute` returns."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...] = ()
    offset: float = 0.0
    compute: Callable[[], Floats] | None = None

    def __str__(self) -> str:
        return f"{self.name}<{'x'.join(map(str, self.shape))}>"


Scalar = bool | int | float | str
Arg = View | Weight | Const | Scalar


@dataclass(frozen=True)
class Node:
    """One call of an op; optional arguments that are not used are absent."""

    op: str
    args: Mapping[str, Arg]

    def with_args(self, **changes: Arg | None) -> Node:
        """A copy with some arguments set, or dropped where the value is None."""
        merged = {**self.args, **changes}
        return replace(self, args={k: v for k, v in merged.items() if v is not None})

    def view(self, name: str) -> View | None:
        value = self.args.get(name)
        return value if isinstance(value, View) else None

    def __str__(self) -> str:
        return f"{self.op:<10} " + ", ".join(f"{name}={arg}" for name, arg in self.args.items())
