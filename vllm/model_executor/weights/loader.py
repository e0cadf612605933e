"""Fills the parameters of a graph from a checkpoint.

Iterate, rename, fuse, pack; then report. Invariant: when it returns, every parameter was filled
by tensors of exactly the right shapes; what the checkpoint has beyond that is named in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from vllm.exceptions import ModelFileError
from vllm.ir.graph import Graph
from vllm.ir.values import Const, Floats, Weight
from vllm.logger import init_logger
from vllm.model_executor.weights.checkpoint import Checkpoint
from vllm.model_executor.weights.names import canonical_names, is_ignorable
from vllm.model_executor.weights.packing import Packed
from vllm.model_executor.weights.raw import RawTensor
from vllm.transformers_utils.files import shown

logger = init_logger(__name__)

P = TypeVar("P", bound=Packed)
_SHOWN_NAMES = 8


class NamedTensors:
    """A checkpoint under the names that graphs use; remembers what was asked for."""

    def __init__(
        self, checkpoint: Checkpoint, source: str, renames: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._checkpoint = checkpoint
        self._names = canonical_names(checkpoint.names(), renames)
        self._used: set[str] = set()
        self.source = source

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def names(self) -> list[str]:
        return list(self._names)

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and storage type, without touching the data."""
        return self._checkpoint.describe(self._names[name])

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse another shape than the config's sizes give."""
        found = self.describe(name)[0]
        if found != shape:
            raise ModelFileError(
                f"{self.source}: tensor {shown(self._names[name])} has the shape {list(found)}, "
                f"the config asks for {list(shape)}"
            )

    def get(self, name: str) -> RawTensor:
        """The tensor, as it lies in the file."""
        self._used.add(name)
        return self._checkpoint.get(self._names[name])

    def close(self) -> None:
        """Let the files go; nothing that was loaded looks into them."""
        self._checkpoint.close()

    def unused(self) -> list[str]:
        """Checkpoint names of tensors that nobody took; a tied head is as good as taken."""
        used = {*self._used, "lm_head.weight"}
        return [theirs for ours, theirs in self._names.items() if ours not in used]


@dataclass(frozen=True)
class Loaded(Generic[P]):
    """Every weight and checkpoint constant of a graph, by name."""

    weights: Mapping[str, P]
    consts: Mapping[str, Floats]

    def const(self, const: Const) -> Floats:
        """Computed ones (rotary tables may have many MB) are made when asked for, not kept."""
        return const.compute() if const.compute is not None else self.consts[const.name]


def check_parameters(graph: Graph, tensors: NamedTensors) -> None:
    """Refuse a checkpoint that can't fill the graph, naming what is missing or misshapen."""
    shapes = dict(_parameters(graph))
    missing = [name for name in shapes if name not in tensors]
    if missing:
        raise ModelFileError(f"{tensors.source}: missing tensors: {_listed(missing)}")
    for name, shape in shapes.items():
        tensors.check_shape(name, shape)


def load(graph: Graph, tensors: NamedTensors, new_weight: Callable[[Weight], P]) -> Loaded[P]:
    """Fill all weights (packed as `new_weight` does) and constants of a checked graph."""
    weights = {w.name: _load_weight(w, tensors, new_weight) for w in graph.weights.values()}
    consts = {c.name: _load_const(c, tensors) for c in graph.consts.values() if c.parts}
    unused = [name for name in tensors.unused() if not is_ignorable(name)]
    if unused:
        logger.warning("%s: tensors not used: %s", tensors.source, _listed(unused))
    return Loaded(weights, consts)


def _load_weight(weight: Weight, tensors: NamedTensors, new_weight: Callable[[Weight], P]) -> P:
    packed = new_weight(weight)
    first_row = 0
    for part in weight.parts:
        packed.fill(first_row, tensors.get(part.name))
        first_row += part.rows
    return packed


def _load_const(const: Const, tensors: NamedTensors) -> Floats:
    pieces = [tensors.get(part.name).to_float32() for part in const.parts]
    values = np.concatenate(pieces)  # a copy: pieces may be views on the mapped file
    return values + np.float32(const.offset) if const.offset else values


def _parameters(graph: Graph) -> Iterable[tuple[str, tuple[int, ...]]]:
    for weight in graph.weights.values():
        yield from ((part.name, (part.rows, weight.k)) for part in weight.parts)
    for const in graph.consts.values():
        yield from ((part.name, (part.rows,)) for part in const.parts)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(shown(name) for name in names[:_SHOWN_NAMES]) + more
