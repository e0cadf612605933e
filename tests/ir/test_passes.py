"""Passes: what they fuse, that they change no value, and that memory plans hold."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ir.toys import branch_graph, run
from vllm.ir import passes
from vllm.ir.graph import Graph
from vllm.ir.values import Buffer, Form, Part, View

F32 = Form("f32")
Q4 = Form("q4", 32, True)
Q8 = Form("q8", 32)


def one_form(form: Form) -> Callable[[Part], Form]:
    return lambda part: form


def by_name(part: Part) -> Form:
    """Mixed: b is int8, a and c are 4-bit, the rest float."""
    return {"a": Q4, "b": Q8, "c": Q4}.get(part.name.split(".")[1], F32)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_residual_adds_vanish_into_their_linears() -> None:
    graph = branch_graph()
    fused = passes.fuse_residual(graph)
    assert ops(graph).count("add") == 2
    assert "add" not in ops(fused)
    assert "0.down" not in fused.buffers
    down = next(node for node in fused.nodes if "down" in str(node.args.get("w")))
    assert (str(down.args["residual"]), down.args["alpha"]) == ("hidden", 0.5)
    np.testing.assert_allclose(run(fused), run(graph), rtol=1e-5, atol=1e-6)


def test_a_branch_with_another_reader_is_not_fused() -> None:
    graph = branch_graph()
    down = graph.buffers["1.down"].all
    graph.nodes.append(graph.nodes[-3].with_args(a=down, b=down, out=down))
    assert ops(passes.fuse_residual(graph)).count("add") == 2


def test_float_weights_need_no_quantized_input() -> None:
    graph = passes.optimize(branch_graph(), one_form(F32))
    assert "quantize" not in ops(graph)
    assert all(buffer.dtype == "f32" for buffer in graph.buffers.values())


def test_quantize_vanishes_into_norm_and_activation() -> None:
    graph = passes.optimize(branch_graph(), one_form(Q4))
    # What is left: the sampled rows, which come straight out of the gather.
    assert ops(graph).count("quantize") == 1
    norm = next(node for node in graph.nodes if node.op == "norm")
    assert "out" not in norm.args
    assert str(norm.args["out_q8"]) == "0.norm.q8"
    unfused = passes.quantize_inputs(
        passes.assign_forms(passes.fuse_residual(branch_graph()), one_form(Q4))
    )
    assert ops(unfused).count("quantize") == 5
    np.testing.assert_array_equal(run(graph), run(unfused))


def test_mixed_forms_split_a_weight_into_column_ranges() -> None:
    graph = passes.optimize(branch_graph(), by_name)
    first = [node for node in graph.nodes if str(node.args.get("w")).startswith("0.abc")]
    assert [str(node.args["w"]) for node in first] == [
        "0.abc.0<64x64 q4g32m>",
        "0.abc.1<32x64 q8g32>",
        "0.abc.2<96x64 q4g32m>",
    ]
    columns = [str(node.args["out"]) for node in first]
    assert columns == ["0.up[0:64]", "0.up[64:96]", "0.up[96:192]"]
    assert [node.args["bias"].parts for node in first] == [
        (Part("0.a.bias", 64),),
        (Part("0.b.bias", 32),),
        (Part("0.c.bias", 96),),
    ]
    # One quantised copy of the norm's output serves all three.
    assert {str(node.args["x_q8"]) for node in first} == {"0.norm.q8"}


def test_splitting_changes_no_value() -> None:
    split = passes.assign_forms(branch_graph(), by_name)
    np.testing.assert_allclose(run(split), run(branch_graph()), rtol=1e-6)


def test_an_input_that_changes_is_quantized_again() -> None:
    """`hidden` read by two linears with a write between them (as with post-norm models)."""
    graph = Graph(kept=frozenset({"hidden"}))
    hidden = Buffer("hidden", "tokens", 64).all
    template = branch_graph().nodes
    graph.nodes.append(template[0])
    for i in range(2):
        linear = template[4].with_args(x=hidden, out=Buffer(f"{i}", "tokens", 64).all)
        weight = linear.args["w"]
        parts = (Part(f"{i}.weight", 64),)
        linear = linear.with_args(w=type(weight)(f"{i}", parts, 64))
        graph.nodes += [linear, template[5].with_args(b=linear.args["out"], alpha=1.0)]
    quantized = passes.optimize(graph, one_form(Q8))
    assert ops(quantized) == ["embedding", "quantize", "linear", "quantize", "linear"]


@pytest.mark.parametrize("form_of", [one_form(F32), one_form(Q4), by_name])
def test_memory_plan_of_a_model(form_of: Callable[[Part], Form]) -> None:
    graph = passes.optimize(branch_graph(), form_of)
    plan = passes.plan_memory(graph, size_of)
    check_plan(graph, plan)
    naive = sum(size_of(b) for b in graph.buffers.values())
    assert plan.num_bytes < 0.75 * naive


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from([8, 64, 100])),
        min_size=1,
        max_size=40,
    ),
    st.sets(st.integers(0, 9)),
)
def test_memory_plan_of_any_graph(links: list[tuple[int, int, int]], kept: set[int]) -> None:
    """Buffers that are ever needed at the same time don't overlap."""
    graph = Graph(kept=frozenset(f"{i}.{c}" for i in kept for c in (8, 64, 100)))
    for source, target, cols in links:
        x = Buffer(f"{source}.{cols}", "tokens", cols).all
        out = Buffer(f"{target}.{cols}", "tokens", cols).all
        graph.add("add", a=x, b=x, out=out)
    check_plan(graph, passes.plan_memory(graph, size_of))


def check_plan(graph: Graph, plan: passes.MemoryPlan) -> None:
    spans = {}
    for buffer in graph.buffers.values():
        uses = [i for i, node in enumerate(graph.nodes) if uses_buffer(graph, i, buffer)]
        last = len(graph.nodes) if buffer.name in graph.kept else uses[-1]
        start = plan.offsets[buffer.name]
        end = start + size_of(buffer)
        assert start % 64 == 0 and end <= plan.num_bytes
        spans[buffer.name] = (uses[0], last, start, end)
    for (_, a), (_, b) in combinations(spans.items(), 2):
        overlap_in_time = a[0] <= b[1] and b[0] <= a[1]
        overlap_in_space = a[2] < b[3] and b[2] < a[3]
        assert not (overlap_in_time and overlap_in_space)


def uses_buffer(graph: Graph, index: int, buffer: Buffer) -> bool:
    args = graph.nodes[index].args.values()
    return any(isinstance(arg, View) and arg.buffer == buffer for arg in args)


def size_of(buffer: Buffer) -> int:
    rows = 33 if buffer.rows == "tokens" else 5
    return rows * (-(-buffer.cols * (1 if buffer.dtype == "q8" else 4) // 64) * 64)
