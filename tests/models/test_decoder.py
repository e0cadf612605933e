"""Descriptions that no family of today uses in full: sinks, plain MLPs, interleaved rotation.

The native program against the numpy reference on random weights, and the graph's shape.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.models.driver import Driver
from vllm.ir.ops import OPS
from vllm.ir.passes import optimize
from vllm.ir.values import Const, Form
from vllm.model_executor.build import kv_layers
from vllm.model_executor.model import StepLimits
from vllm.model_executor.models.decoder import build_graph
from vllm.model_executor.models.rope import Rope
from vllm.model_executor.models.spec import DecoderSpec, LayerSpec
from vllm.model_executor.native.executor import NativeModel
from vllm.model_executor.reference import ReferenceModel
from vllm.model_executor.weights.dummy import DummyCheckpoint
from vllm.model_executor.weights.loader import NamedTensors, load
from vllm.model_executor.weights.packing import FloatMatrix, NativeMatrix

MAX_LEN = 96
ROPE = Rope(tuple(np.geomspace(1, 0.01, 6).tolist()), scale=1.3)
BASE = DecoderSpec(
    vocab_size=97,
    hidden_size=40,
    intermediate_size=56,
    num_heads=6,
    num_kv_heads=3,
    head_dim=16,
    layers=(LayerSpec(rope=ROPE), LayerSpec(window=11, rope=ROPE), LayerSpec()),
)
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "sinks": {"sinks": True},
    "plain-mlp": {"gated_mlp": False, "activation": "relu2", "mlp_bias": True},
    "gelu": {"activation": "gelu", "gated_mlp": False},
    "interleaved": {"layers": (LayerSpec(rope=replace(ROPE, interleaved=True)),) * 2},
    "softcaps": {"attention_softcap": 3.0, "logits_softcap": 5.0, "logits_scale": 0.7},
    "post": {"norms": "post", "qk_norm": "full", "residual_scale": 0.6},
    "sandwich": {"norms": "sandwich", "qk_norm": "per_head", "norm_offset": 1.0},
    "biases": {"qkv_bias": True, "o_bias": True, "mlp_bias": True, "tied": True},
    "fused": {"fused_qkv": True, "fused_gate_up": True, "qkv_bias": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_native_agrees_with_the_reference(variant: str) -> None:
    spec = replace(BASE, **VARIANTS[variant])
    graph = optimize(build_graph(spec, MAX_LEN), lambda part: Form("f32"))
    # Large enough that every term matters; 0.02 would leave the softmax flat.
    tensors = NamedTensors(DummyCheckpoint(graph, 5, "float32", scale=0.3), "random")
    layers = kv_layers(spec)
    limits = StepLimits(max_tokens=96, max_logits=96, max_seqs=4)
    native = NativeModel(graph, load(graph, tensors, NativeMatrix), layers, limits)
    reference = ReferenceModel(graph, load(graph, tensors, FloatMatrix), layers)
    ids = np.random.default_rng(2).integers(0, 97, 70).tolist()
    expected = Driver(reference, MAX_LEN).prefill(ids)
    got = Driver(native, MAX_LEN).prefill(ids, [13, 1, 29])
    np.testing.assert_allclose(got, expected, atol=2e-3 * np.abs(expected).max())
    assert expected.std() > 0.1


def test_a_variant_changes_the_result() -> None:
    """Guards the test above: no field is read by nobody."""
    graphs = {
        name: build_graph(replace(BASE, **changes), MAX_LEN).dump()
        for name, changes in VARIANTS.items()
    }
    assert len(set(graphs.values())) == len(graphs)


def test_layers_of_one_rotation_share_its_table() -> None:
    graph = build_graph(BASE, MAX_LEN)
    tables = [n.args.get("cos_sin") for n in graph.nodes if n.op == "rope_cache"]
    assert isinstance(tables[0], Const)
    assert tables[0] is tables[1]
    assert tables[2] is None
    assert tables[0].shape == (MAX_LEN, 12)


def test_head_works_on_sampled_rows_only() -> None:
    graph = build_graph(replace(BASE, logits_softcap=9.0), MAX_LEN)
    head = graph.nodes[graph.head :]
    rows = {node.op: [v.buffer.rows for v in OPS[node.op].writes(node)] for node in head}
    assert rows == {op: ["logits"] for op in ("gather", "norm", "linear", "logits")}
