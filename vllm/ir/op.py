"""How an op is declared: its arguments by role, a check of their shapes and a numpy reference.

Decides what a legal node is. Argument names are the field names of the op's struct in kernels.h;
strides, pointers and row counts follow from the buffers and are not arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from vllm.ir.values import Const, DType, Floats, Node, Scalar, View, Weight
from vllm.kernels import reference

Ints = npt.NDArray[np.int32]


class Role(Enum):
    """What an op does with an argument."""

    READ = "read"
    WRITE = "write"
    UPDATE = "update"  # read, then written
    WEIGHT = "weight"
    CONST = "const"
    ATTR = "attr"


@dataclass(frozen=True)
class Param:
    """An argument; a required one has no default, an optional buffer or constant may be absent."""

    role: Role
    dtype: DType = "f32"
    default: Scalar | None = None
    is_required: bool = True


def read(dtype: DType = "f32") -> Param:
    return Param(Role.READ, dtype)


def write(dtype: DType = "f32") -> Param:
    return Param(Role.WRITE, dtype)


def update() -> Param:
    return Param(Role.UPDATE)


def weight() -> Param:
    return Param(Role.WEIGHT)


def const() -> Param:
    return Param(Role.CONST)


def attr(default: Scalar | None = None) -> Param:
    return Param(Role.ATTR, default=default, is_required=default is None)


def optional(param: Param) -> Param:
    return Param(param.role, param.dtype, None, False)


class Step(Protocol):
    """What the references of gather, embedding and attention need to know of a step."""

    token_ids: Ints
    positions: Ints
    query_start: Ints
    seq_lens: Ints
    logits_indices: Ints
    block_tables: list[Ints]
    slot_mapping: list[npt.NDArray[np.int64]]
    block_size: int


@dataclass(frozen=True)
class LayerCache:
    """KV memory of a layer: k [blocks, heads, dim, block], v [blocks, heads, block, dim].

    `round` maps values to the precision of a cache type that numpy does not have.
    """

    group: int
    k: npt.NDArray[Any]
    v: npt.NDArray[Any]
    round: Callable[[Floats], Floats]


@dataclass(frozen=True)
class Context:
    """One step, and the cache of each attention layer."""

    step: Step
    caches: Mapping[int, LayerCache]


_KINDS: dict[Role, type | tuple[type, ...]] = {
    Role.WEIGHT: Weight,
    Role.CONST: Const,
    Role.ATTR: (bool, int, float, str),
}

Arrays = SimpleNamespace  # the arguments of a node as numpy arrays and scalars
ShapeCheck = Callable[[Arrays], None]
Reference = Callable[[Arrays, Context], None]


@dataclass(frozen=True)
class Op:
    """A declared op; `reference` writes its outputs in place."""

    name: str
    params: Mapping[str, Param]
    shapes: ShapeCheck
    reference: Reference

    def check(self, node: Node) -> None:
        """Raises ValueError naming the argument that does not fit."""
        for name, value in node.args.items():
            if name not in self.params:
                raise ValueError(f"{self.name} has no argument {name}")
            self._check_kind(name, value)
        for name, param in self.params.items():
            if param.is_required and name not in node.args:
                raise ValueError(f"{self.name} needs {name}")
        self._check_rows(node)
        self.shapes(self.arguments(node))

    def arguments(self, node: Node) -> Arrays:
        """The node's arguments with defaults filled in; absent ones are None."""
        return Arrays(**{n: node.args.get(n, p.default) for n, p in self.params.items()})

    def reads(self, node: Node) -> Iterator[View]:
        return self._views(node, self._read_names)

    def writes(self, node: Node) -> Iterator[View]:
        return self._views(node, self._written_names)

    @cached_property
    def _read_names(self) -> list[str]:
        return [n for n, p in self.params.items() if p.role in (Role.READ, Role.UPDATE)]

    @cached_property
    def _written_names(self) -> list[str]:
        return [n for n, p in self.params.items() if p.role in (Role.WRITE, Role.UPDATE)]

    def _views(self, node: Node, names: list[str]) -> Iterator[View]:
        for name in names:
            view = node.view(name)
            if view is not None:
                yield view

    def _check_kind(self, name: str, value: object) -> None:
        param = self.params[name]
        if not isinstance(value, _KINDS.get(param.role, View)):
            raise ValueError(f"{self.name}: {name} can't be {value!r}")
        if isinstance(value, View) and value.buffer.dtype != param.dtype:
            raise ValueError(f"{self.name}: {name} must be {param.dtype}, {value} is not")

    def _check_rows(self, node: Node) -> None:
        rows = {v.buffer.rows for v in (*self.reads(node), *self.writes(node))}
        if len(rows) > 1 and self.name != "gather":
            raise ValueError(f"{self.name} mixes token and logits rows")


def expect(what: str, found: object, wanted: object) -> None:
    """The check that most shape functions consist of."""
    if found != wanted:
        raise ValueError(f"{what} is {found}, must be {wanted}")


class Q8Rows:
    """Rows quantised to 16 bits in groups of 32, as arrays of values and of scales."""

    def __init__(self, num_rows: int, cols: int) -> None:
        self.cols = cols
        self.q, self.scale, _ = reference.quantize(np.zeros((num_rows, cols), np.float32))

    def store(self, x: Floats) -> None:
        self.q, self.scale, _ = reference.quantize(np.ascontiguousarray(x))

    def load(self) -> Floats:
        return reference.dequantize(self.q, self.scale, self.cols)
