"""Small graphs to rewrite, and a way to run them on random weights."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from vllm.ir.graph import Graph
from vllm.ir.op import Context, Q8Rows
from vllm.ir.ops import OPS
from vllm.ir.values import Buffer, Const, Part, View, Weight

WIDTH = 64


def branch_graph() -> Graph:
    """embed -> 2 x (norm, fused linear of three parts, act, linear, add) -> gather -> logits."""
    graph = Graph(kept=frozenset({"hidden", "logits"}))
    hidden = Buffer("hidden", "tokens", WIDTH).all
    graph.add("embedding", w=weight("embed", 100), out=hidden, scale=2.0)
    for i in range(2):
        normed, up, act, down = (
            Buffer(f"{i}.{name}", "tokens", cols).all
            for name, cols in (("norm", WIDTH), ("up", 192), ("act", 96), ("down", WIDTH))
        )
        scale = Const(f"{i}.scale", (WIDTH,), (Part(f"{i}.scale", WIDTH),))
        graph.add("norm", kind="rms", x=hidden, weight=scale, eps=1e-6, out=normed)
        parts = tuple(Part(f"{i}.{n}.weight", r) for n, r in (("a", 64), ("b", 32), ("c", 96)))
        bias_parts = tuple(Part(p.name.replace("weight", "bias"), p.rows) for p in parts)
        bias = Const(f"{i}.abc.bias", (192,), bias_parts)
        graph.add("linear", w=Weight(f"{i}.abc", parts, WIDTH), x=normed, bias=bias, out=up)
        graph.add("act", act="silu", gated=True, x=up, out=act)
        graph.add("linear", w=weight(f"{i}.down", WIDTH, 96), x=act, out=down)
        graph.add("add", a=hidden, b=down, alpha=0.5, out=hidden)
    sampled = Buffer("sampled", "logits", WIDTH).all
    graph.add("gather", x=hidden, out=sampled)
    logits = Buffer("logits", "logits", 40).all
    graph.add("linear", w=weight("head", 40), x=sampled, out=logits)
    graph.check()
    return graph


def weight(name: str, rows: int, k: int = WIDTH) -> Weight:
    return Weight(name, (Part(f"{name}.weight", rows),), k)


def run(graph: Graph, num_tokens: int = 5) -> np.ndarray:
    """Logits of two of `num_tokens` tokens; a parameter's values depend on its name alone."""
    ids = np.arange(num_tokens, dtype=np.int32) * 7
    step = SimpleNamespace(token_ids=ids, logits_indices=np.array([1, 4], np.int32))
    rows = {"tokens": num_tokens, "logits": 2}
    arrays: dict[str, Any] = {}

    def value(arg: object) -> object:
        if isinstance(arg, Weight):
            return np.concatenate([_values(p, (p.rows, arg.k)) for p in arg.parts])
        if isinstance(arg, Const):
            return np.concatenate([_values(p, (p.rows,)) for p in arg.parts])
        if not isinstance(arg, View):
            return arg
        b = arg.buffer
        if b.name not in arrays:
            shape = (rows[b.rows], b.cols)
            arrays[b.name] = Q8Rows(*shape) if b.dtype == "q8" else np.full(shape, np.nan, "f4")
        array = arrays[b.name]
        return array if b.dtype == "q8" else array[:, arg.first_col : arg.first_col + arg.cols]

    for node in graph.nodes:
        arguments = vars(OPS[node.op].arguments(node))
        namespace = SimpleNamespace(**{name: value(arg) for name, arg in arguments.items()})
        OPS[node.op].reference(namespace, Context(step, {}))
    return arrays["logits"]


def _values(part: Part, shape: tuple[int, ...]) -> np.ndarray:
    seed = sum(map(ord, part.name))
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * np.float32(0.2)
