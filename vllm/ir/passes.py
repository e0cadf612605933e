"""Rewrites of a graph before it is lowered, and the place of each buffer in one arena.

Decides what is fused: linear + residual add, norm or activation + quantize. Invariant: a pass
changes where values live and how many ops there are, never a value that a later node reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from vllm.ir.graph import Graph
from vllm.ir.ops import OPS
from vllm.ir.values import Buffer, Const, Form, Node, Part, View, Weight


def optimize(graph: Graph, form_of: Callable[[Part], Form]) -> Graph:
    """All passes, in the order in which they build on each other."""
    graph = fuse_residual(graph)
    graph = assign_forms(graph, form_of)
    graph = quantize_inputs(graph)
    graph = fuse_quantize(graph)
    graph.check()
    return graph


# ---- fusing ----------------------------------------------------------------------------------


def fuse_residual(graph: Graph) -> Graph:
    """linear(out=t); add(a=r, b=t)  ->  linear(residual=r), if nobody else reads t."""
    readers = _readers(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        before = nodes[-1] if nodes else None
        if before is not None and _is_residual(before, node, readers):
            alpha = _number(before, "alpha") * _number(node, "alpha")
            nodes[-1] = before.with_args(
                alpha=alpha, residual=node.args["a"], out=node.args["out"]
            )
        else:
            nodes.append(node)
    return graph.with_nodes(nodes)


def _is_residual(linear: Node, add: Node, readers: Mapping[Buffer, int]) -> bool:
    out = linear.view("out")
    return (
        (linear.op, add.op) == ("linear", "add")
        and out is not None
        and out == add.view("b")
        and readers[out.buffer] == 1
        and "residual" not in linear.args
    )


def fuse_quantize(graph: Graph) -> Graph:
    """norm|act(out=x); quantize(x, out_q8)  ->  norm|act(out_q8), `out` kept if x has readers."""
    readers = _readers(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        producer = nodes[-1] if nodes else None
        if (
            producer is None
            or node.op != "quantize"
            or producer.op not in ("norm", "act")
            or producer.view("out") != node.view("x")
        ):
            nodes.append(node)
            continue
        is_only_reader = readers[_view(node, "x").buffer] == 1
        out = None if is_only_reader else producer.args["out"]
        nodes[-1] = producer.with_args(out=out, out_q8=node.args["out_q8"])
    return graph.with_nodes(nodes)


# ---- storage forms ---------------------------------------------------------------------------


def assign_forms(graph: Graph, form_of: Callable[[Part], Form]) -> Graph:
    """Give each weight the form of its parts; parts of different forms become linears of their
    own, which write column ranges of the same buffer."""
    nodes: list[Node] = []
    for node in graph.nodes:
        weight = node.args.get("w")
        if not isinstance(weight, Weight):
            nodes.append(node)
            continue
        runs = _runs(weight, form_of)
        if len(runs) == 1:
            nodes.append(node.with_args(w=runs[0]))
        else:
            nodes.extend(_split_linear(node, runs))
    return graph.with_nodes(nodes)


def _runs(weight: Weight, form_of: Callable[[Part], Form]) -> list[Weight]:
    """Consecutive parts of one form, as weights."""
    runs = [(form, tuple(parts)) for form, parts in groupby(weight.parts, key=form_of)]
    if len(runs) == 1:
        return [replace(weight, form=runs[0][0])]
    return [
        Weight(f"{weight.name}.{index}", parts, weight.k, form)
        for index, (form, parts) in enumerate(runs)
    ]


def _split_linear(node: Node, runs: list[Weight]) -> Iterator[Node]:
    first_row = 0
    for run in runs:
        changes: dict[str, View | Const] = {}
        for name in ("out", "residual"):
            view = node.view(name)
            if view is not None:
                changes[name] = view.buffer.columns(view.first_col + first_row, run.n)
        bias = node.args.get("bias")
        if isinstance(bias, Const):
            changes["bias"] = _slice_const(bias, run)
        yield node.with_args(w=run, **changes)
        first_row += run.n


def _slice_const(bias: Const, run: Weight) -> Const:
    """The parts of a bias that belong to the parts of a run, which have the same module names."""
    modules = {part.name.rpartition(".")[0] for part in run.parts}
    parts = tuple(part for part in bias.parts if part.name.rpartition(".")[0] in modules)
    return Const(f"{run.name}.bias", (run.n,), parts, bias.offset)


def quantize_inputs(graph: Graph) -> Graph:
    """Linears with a quantised weight read q8 rows; each buffer is quantised once per value."""
    nodes: list[Node] = []
    current: dict[str, dict[View, Buffer]] = {}  # by the name of the buffer that is quantised
    for node in graph.nodes:
        weight, x = node.args.get("w"), node.view("x")
        if isinstance(weight, Weight) and x and weight.form and weight.form.is_quantized:
            copies = current.setdefault(x.buffer.name, {})
            if x not in copies:
                copies[x] = Buffer(f"{x}.q8", x.buffer.rows, x.cols, "q8")
                nodes.append(Node("quantize", {"x": x, "out_q8": copies[x].all}))
            node = node.with_args(x=None, x_q8=copies[x].all)
        nodes.append(node)
        for view in OPS[node.op].writes(node):
            current.pop(view.buffer.name, None)
    return graph.with_nodes(nodes)


# ---- memory ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryPlan:
    """Byte offset of each buffer; buffers that live at the same time do not overlap."""

    offsets: Mapping[str, int]
    num_bytes: int


def plan_memory(graph: Graph, buffer_bytes: Callable[[Buffer], int]) -> MemoryPlan:
    """First fit in the order of first use; a buffer's place is free after its last use."""
    last_use = _last_uses(graph)
    offsets: dict[str, int] = {}
    live: list[tuple[int, int, int]] = []  # (start, end, last use), sorted by start
    for index, node in enumerate(graph.nodes):
        live = [place for place in live if place[2] >= index]
        for buffer in _buffers(node):
            if buffer.name in offsets:
                continue
            size = buffer_bytes(buffer)
            start = _first_gap(live, size)
            offsets[buffer.name] = start
            live = sorted([*live, (start, start + size, last_use[buffer.name])])
    ends = [offsets[b.name] + buffer_bytes(b) for b in graph.buffers.values()]
    return MemoryPlan(offsets, max(ends, default=0))


def _last_uses(graph: Graph) -> dict[str, int]:
    last_use = {
        buffer.name: index for index, node in enumerate(graph.nodes) for buffer in _buffers(node)
    }
    return last_use | dict.fromkeys(graph.kept, len(graph.nodes))


def _first_gap(live: list[tuple[int, int, int]], size: int) -> int:
    start = 0
    for used_start, used_end, _ in live:
        if start + size <= used_start:
            break
        start = max(start, used_end)
    return start


# ---- shared ----------------------------------------------------------------------------------


def _buffers(node: Node) -> Iterator[Buffer]:
    for arg in node.args.values():
        if isinstance(arg, View):
            yield arg.buffer


def _readers(graph: Graph) -> dict[Buffer, int]:
    """How many nodes read each buffer; one more for buffers that are kept."""
    count = {buffer: int(buffer.name in graph.kept) for buffer in graph.buffers.values()}
    for node in graph.nodes:
        for view in OPS[node.op].reads(node):
            count[view.buffer] += 1
    return count


def _view(node: Node, name: str) -> View:
    view = node.view(name)
    if view is None:
        raise ValueError(f"{node.op} has no buffer {name}")
    return view


def _number(node: Node, name: str) -> float:
    value = node.args.get(name, 1.0)
    if not isinstance(value, int | float):
        raise ValueError(f"{node.op}: {name} must be a number, is {value!r}")
    return float(value)
