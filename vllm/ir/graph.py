"""A model as data: a list of ops over named buffers, weights and constants.

Decides nothing about a device. Invariant (`check`): every argument fits the declaration of its op,
and every column that a node reads was written by a node before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from vllm.ir.ops import OPS
from vllm.ir.values import Arg, Buffer, Const, Node, View, Weight


@dataclass
class Graph:
    """Nodes in the order in which they run; `kept` buffers stay valid after the last node."""

    nodes: list[Node] = field(default_factory=list)
    kept: frozenset[str] = frozenset()

    def add(self, op: str, **args: Arg | None) -> None:
        """Append a node; arguments that are None are absent."""
        node = Node(op, {name: value for name, value in args.items() if value is not None})
        OPS[op].check(node)
        self.nodes.append(node)

    @property
    def head(self) -> int:
        """Index of the first node that works on sampled rows only."""
        return next(i for i, node in enumerate(self.nodes) if node.op == "gather")

    @property
    def buffers(self) -> dict[str, Buffer]:
        """By name, in order of first use."""
        return {a.buffer.name: a.buffer for a in self._args() if isinstance(a, View)}

    @property
    def weights(self) -> dict[str, Weight]:
        return {a.name: a for a in self._args() if isinstance(a, Weight)}

    @property
    def consts(self) -> dict[str, Const]:
        return {a.name: a for a in self._args() if isinstance(a, Const)}

    def with_nodes(self, nodes: Sequence[Node]) -> Graph:
        return Graph(list(nodes), self.kept)

    def check(self) -> None:
        """Raises ValueError naming the node that breaks a rule."""
        written: dict[str, bytearray] = {}  # a flag per column
        for index, node in enumerate(self.nodes):
            try:
                OPS[node.op].check(node)
                for view in OPS[node.op].reads(node):
                    _check_written(view, written.get(view.buffer.name, b""))
            except ValueError as error:
                raise ValueError(f"node {index} ({node}): {error}") from None
            for view in OPS[node.op].writes(node):
                flags = written.setdefault(view.buffer.name, bytearray(view.buffer.cols))
                flags[view.first_col : view.first_col + view.cols] = b"\1" * view.cols

    def dump(self) -> str:
        """The graph as text, one line per buffer and node."""
        lines = [f"{b.name}: {b.rows} x {b.cols} {b.dtype}" for b in self.buffers.values()]
        lines += [f"{index:4} {node}" for index, node in enumerate(self.nodes)]
        return "\n".join(lines)

    def _args(self) -> Iterator[Arg]:
        for node in self.nodes:
            yield from node.args.values()


def _check_written(view: View, flags: bytes | bytearray) -> None:
    seen = flags[view.first_col : view.first_col + view.cols] or b"\0"
    if 0 in seen:
        column = view.first_col + seen.index(0)
        raise ValueError(f"{view} is read before column {column} is written")
