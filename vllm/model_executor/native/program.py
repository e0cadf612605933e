"""Lowers an ir graph to a native step program: one flat list of calls over one arena.

Decides which buffer, weight and KV tensor ids each op gets. Shapes are checked again by the native
side when an op is added, so a wrong graph can't reach a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm.ir.graph import Graph
from vllm.ir.passes import plan_memory
from vllm.ir.values import Arg, Const, Node, View, Weight
from vllm.kernels.ops import Program, row_bytes
from vllm.model_executor.model import StepLimits
from vllm.model_executor.weights.loader import Loaded
from vllm.model_executor.weights.packing import NativeMatrix
from vllm.v1.messages import KVCacheConfig

# Ops whose native form is told how many columns it works on, and the buffer that says it.
_SIZED_BY = {
    "norm": ("x",),
    "quantize": ("x",),
    "add": ("a",),
    "gather": ("x",),
    "logits": ("x",),
    "act": ("out", "out_q8"),
}

NativeArg = int | float | str | tuple[int, int]


@dataclass(frozen=True)
class KVPlace:
    """Where a layer's keys and values are."""

    tensor: int
    group: int
    kind: str


def kv_places(config: KVCacheConfig, kind: str) -> dict[int, KVPlace]:
    """`layers[i]` of each group lives in KV tensor i."""
    return {
        layer_idx: KVPlace(tensor_idx, group_idx, kind)
        for group_idx, group in enumerate(config.groups)
        for tensor_idx, layer_idx in enumerate(group.layers)
    }


@dataclass(frozen=True)
class Lowered:
    """A program and the ids that its buffers got."""

    program: Program
    buffers: Mapping[str, int]


def lower(
    graph: Graph,
    loaded: Loaded[NativeMatrix],
    limits: StepLimits,
    config: KVCacheConfig,
    kv_kind: str,
) -> Lowered:
    """The program of a graph, its KV cache bound."""
    program = Program(limits.max_tokens, limits.max_logits, limits.max_seqs)
    num_rows = {"tokens": limits.max_tokens, "logits": limits.max_logits}
    plan = plan_memory(graph, lambda b: num_rows[b.rows] * row_bytes(b.cols, b.dtype))
    ids = _Ids(
        {
            name: program.buffer(b.rows, b.cols, b.dtype, plan.offsets[name])
            for name, b in graph.buffers.items()
        },
        {name: program.weight(w.packed) for name, w in loaded.weights.items()},
        {name: program.const(loaded.const(c)) for name, c in graph.consts.items()},
        kv_places(config, kv_kind),
    )
    for node in graph.nodes:
        program.add(node.op, ids.native_args(node))
    program.bind_kv(config.num_blocks, config.block_size, config.num_tensors, len(config.groups))
    return Lowered(program, ids.buffers)


@dataclass(frozen=True)
class _Ids:
    buffers: Mapping[str, int]
    weights: Mapping[str, int]
    consts: Mapping[str, int]
    places: Mapping[int, KVPlace]

    def native_args(self, node: Node) -> dict[str, NativeArg]:
        args = {name: self._value(arg) for name, arg in node.args.items() if name != "layer"}
        layer = node.args.get("layer")
        if isinstance(layer, int):
            place = self.places[layer]
            args |= {"kv_tensor": place.tensor, "group": place.group, "kv_kind": place.kind}
        if node.op in _SIZED_BY:
            args["size"] = _size(node, _SIZED_BY[node.op])
        return args

    def _value(self, arg: Arg) -> NativeArg:
        if isinstance(arg, View):
            buffer = self.buffers[arg.buffer.name]
            return buffer if arg.buffer.dtype == "q8" else (buffer, arg.first_col)
        if isinstance(arg, Weight):
            return self.weights[arg.name]
        if isinstance(arg, Const):
            return self.consts[arg.name]
        return int(arg) if isinstance(arg, bool) else arg


def _size(node: Node, names: Sequence[str]) -> int:
    views = [view for name in names if (view := node.view(name)) is not None]
    return views[0].cols
