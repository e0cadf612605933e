"""Every family from GGUF: names, row order, norms and hyper-parameters as converters write them,
and mixed block types inside one fused projection."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models.driver import Driver, log_softmax
from tests.models.gguf_export import Block, export
from tests.models.test_families import options, prompt_of
from tests.models.tiny import make_model, reference_logits
from vllm.ir import passes
from vllm.ir.graph import Graph
from vllm.model_executor.build import load_native, load_reference

# case of `tiny` -> (GGUF architecture, changes that the format can express)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral-nemo": ("llama", {}),
    "llama-linear": ("llama", {}),
    "qwen2": ("qwen2", {"use_sliding_window": False}),
    "qwen2.5-yarn": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 24}),
    "gemma3": ("gemma3", {"query_pre_attn_scalar": 24}),
    "phi3": ("phi3", {}),
    "granite": ("granite", {}),
    "olmo2": ("olmo2", {}),
    "smollm3": ("smollm3", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_families(case: str, tmp_path: Path) -> None:
    arch, changes = CASES[case]
    model, path = make_model(case, **changes), tmp_path / "model.gguf"
    export(model, arch, path)
    ids = prompt_of(model)
    expected = log_softmax(reference_logits(model, ids))
    got = log_softmax(Driver(load_native(options(path))).prefill(ids))
    assert np.abs(got - expected).max() <= 1e-3


MIXES = {
    "q4_0": Block.Q4_0,
    "q4_1": Block.Q4_1,
    "q5_0": Block.Q5_0,
    "q5_1": Block.Q5_1,
    "q8_0": Block.Q8_0,
    "q4_k": Block.Q4_K,
    "q5_k": Block.Q5_K,
    "q6_k": Block.Q6_K,
    "mixed": {
        "token_embd": Block.Q8_0,
        "attn_q": Block.Q4_K,
        "attn_k": Block.Q4_1,
        "attn_v": Block.Q6_K,
        "attn_output": Block.Q5_0,
        "ffn_gate": Block.Q5_K,
        "ffn_up": Block.F32,
        "ffn_down": Block.Q4_0,
        "output": Block.Q6_K,
    },
}


def without_activation_rounding(graph: Graph, form_of: Any) -> Graph:
    """The packed forms, but linears read f32: what the block types mean, exactly."""
    return passes.assign_forms(passes.fuse_residual(graph), form_of)


@pytest.fixture(scope="module", params=MIXES)
def quantized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(name of the mix, file, Transformers model that holds the same values)"""
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return request.param, path, save_quantized(request.param, path)


def save_quantized(mix_name: str, path: Path) -> Any:
    """Writes a small Llama of these block types; returns the model that holds their values."""
    mix = MIXES[mix_name]
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "vocab_size": 160}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 2}
    model = make_model("mistral-nemo", **sizes, **heads)
    if isinstance(mix, dict):
        export(model, "llama", path, lambda name: mix[name.split(".")[-2]])
    else:
        export(model, "llama", path, lambda name: mix)
    return model


def test_block_types_mean_what_gguf_says(quantized: Any) -> None:
    """With exact arithmetic our reading of the blocks is that of the `gguf` package."""
    _, path, model = quantized
    ids = prompt_of(model, 64)
    expected = log_softmax(reference_logits(model, ids))
    exact = load_reference(options(path), without_activation_rounding)
    assert np.abs(log_softmax(Driver(exact).prefill(ids)) - expected).max() <= 1e-3


def test_native_block_types(quantized: Any) -> None:
    """The kernels err no more than the reference with the same rounding of activations.

    They can't be compared number by number: where two f32 sums differ in the last bit, an
    activation may round to the next integer, and later layers amplify that. Packed scales and
    minima are f16: exact for the types that store them so, while the products of the K types are
    rounded (relative error up to 2^-11), which the reference does not do.
    """
    name, path, model = quantized
    ids = prompt_of(model, 64)
    expected = log_softmax(reference_logits(model, ids))
    reference = log_softmax(Driver(load_reference(options(path))).prefill(ids))
    native = log_softmax(Driver(load_native(options(path))).prefill(ids, [1, 16, 5]))
    rounded_scales = name in ("q4_k", "q5_k", "mixed")
    bound = 2.0**-8 if rounded_scales else 1.25 * rms(reference - expected)
    assert rms(native - expected) <= bound
    assert rms(reference - expected) <= 2.0**-11


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x * x)))


def test_mixed_types_are_split(quantized: Any) -> None:
    """q (Q4_K) and k (Q4_1) share a weight; v (Q6_K), gate (Q5_K) and up (F32) have their own."""
    name, path, _ = quantized
    weights = [str(w) for w in load_reference(options(path)).graph.weights.values()]
    first_layer = [w.partition("layers.0.")[2] for w in weights if "layers.0." in w]
    if name != "mixed":
        assert len(first_layer) == 4
        return
    assert first_layer == [
        "self_attn.qkv.0<640x256 q4g32m>",
        "self_attn.qkv.1<128x256 q8g16>",
        "self_attn.o<256x512 q8g32>",
        "mlp.up.0<512x256 q8g32m>",
        "mlp.up.1<512x256 f32>",
        "mlp.down<256x512 q4g32m>",
    ]


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    with torch.no_grad():
        yield
