"""Every family, tiny and random, against Transformers in f32.

Both executors: the native program and the numpy reference. The sequences are longer than every
sliding window, and chunks begin in the middle of blocks and windows.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.driver import Driver, log_softmax
from tests.models.tiny import CASES, reference_greedy, reference_logits, save
from vllm.model_executor.build import ModelOptions, load_native, load_reference
from vllm.model_executor.model import Model, StepLimits
from vllm.transformers_utils.config import load_hf_config

NUM_POSITIONS = 96
NUM_GREEDY = 40
LOADERS = {"native": load_native, "reference": load_reference}


def options(path: Path, **changes: Any) -> ModelOptions:
    values: dict[str, Any] = {
        "path": str(path),
        "hf_config": load_hf_config(path),
        "dtype": "float32",
        "max_model_len": 128,
        "limits": StepLimits(max_tokens=128, max_logits=128, max_seqs=8),
    }
    return ModelOptions(**{**values, **changes})


@pytest.fixture(scope="module", params=CASES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(case, folder, Transformers model)"""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, save(request.param, folder)


@pytest.fixture(params=LOADERS)
def model(request: pytest.FixtureRequest, family: Any) -> Model:
    return LOADERS[request.param](options(family[1]))


def prompt_of(model: Any, length: int = NUM_POSITIONS) -> list[int]:
    return np.random.default_rng(7).integers(3, model.config.vocab_size, length).tolist()


def test_logprobs(family: Any, model: Model) -> None:
    ids = prompt_of(family[2])
    expected = log_softmax(reference_logits(family[2], ids))
    whole = log_softmax(Driver(model).prefill(ids))
    assert np.abs(whole - expected).max() <= 1e-3
    assert expected.max(axis=1).std() > 0.01, "the oracle says nothing: uniform logits"
    for chunks in ([7, 13, 1, 31], [17]):
        chunked = log_softmax(Driver(model).prefill(ids, chunks))
        assert np.abs(chunked - expected).max() <= 1e-3


def test_greedy(family: Any, model: Model) -> None:
    prompt = prompt_of(family[2], 21)
    expected = reference_greedy(family[2], prompt, NUM_GREEDY)
    assert Driver(model).greedy(prompt, NUM_GREEDY) == expected


def test_windows_agree_with_the_config(family: Any, model: Model) -> None:
    """The memory plan (ModelArch) and the graph must see the same windows as Transformers."""
    config = family[2].config
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if types is None:
        types = ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
    expected = [window if kind == "sliding_attention" else None for kind in types]
    assert [layer.window for layer in model.kv_layers] == expected
