"""Checkpoints as they come: sharded, in other dtypes, tied, nested, incomplete, or wrong."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.models.driver import Driver, log_softmax
from tests.models.test_families import options, prompt_of
from tests.models.tiny import randomize, reference_logits, save
from vllm.exceptions import ConfigError, ModelFileError
from vllm.model_executor.build import load_native, load_reference
from vllm.model_executor.models.registry import FAMILIES
from vllm.model_executor.weights.names import canonical_names, is_ignorable

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("llama")
    return folder, save("llama-bias", folder)


@pytest.fixture
def copy(original: tuple[Path, Any], tmp_path: Path) -> Path:
    """The model's folder, to be damaged."""
    return Path(shutil.copytree(original[0], tmp_path / "copy"))


def logprobs(folder: Path, ids: list[int], **changes: Any) -> np.ndarray:
    return log_softmax(Driver(load_native(options(folder, **changes))).prefill(ids))


def edit_weights(folder: Path, edit: Any) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_shards(original: tuple[Path, Any], tmp_path: Path) -> None:
    folder, model = original
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ids = prompt_of(model)
    np.testing.assert_array_equal(logprobs(tmp_path, ids), logprobs(folder, ids))


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_float_types(stored: torch.dtype, dtype: str, copy: Path, original: Any) -> None:
    """The values of the file, held exactly in f32; rounded once if asked to hold fewer bits."""
    edit_weights(copy, lambda t: t.update({k: v.to(stored) for k, v in t.items()}))
    held = getattr(torch, dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(copy, dtype=stored).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(parameter.to(held).float())
    ids = prompt_of(model)
    expected = log_softmax(reference_logits(model, ids))
    assert np.abs(logprobs(copy, ids, dtype=dtype) - expected).max() <= 1e-3


def test_a_head_that_is_missing_is_the_embedding(copy: Path) -> None:
    edit_weights(copy, lambda t: t.pop("lm_head.weight"))
    edit_config(copy, tie_word_embeddings=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(copy).float()
    ids = prompt_of(model)
    expected = log_softmax(reference_logits(model, ids))
    assert np.abs(logprobs(copy, ids) - expected).max() <= 1e-3
    edit_config(copy, tie_word_embeddings=False)
    assert np.abs(logprobs(copy, ids) - expected).max() <= 1e-3


def test_a_tied_head_is_packed_once(copy: Path) -> None:
    untied = load_native(options(copy)).stats()["weight_bytes"]
    edit_config(copy, tie_word_embeddings=True)
    tied = load_native(options(copy)).stats()["weight_bytes"]
    assert untied - tied >= 151 * 72 * 4


def test_missing_tensors_are_named(copy: Path) -> None:
    names = ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"]
    edit_weights(copy, lambda t: [t.pop(name) for name in names])
    with pytest.raises(ModelFileError) as caught:
        load_native(options(copy))
    assert str(copy) in str(caught.value)
    assert all(name in str(caught.value) for name in names)


@pytest.mark.parametrize("name", ["model.layers.2.self_attn.k_proj.weight", "model.norm.weight"])
def test_wrong_shapes_are_named(copy: Path, name: str) -> None:
    right = list(load_file(copy / WEIGHTS)[name].shape)
    wrong = [right[0] + 8, *right[1:]]
    edit_weights(copy, lambda t: t.update({name: torch.zeros(wrong)}))
    with pytest.raises(ModelFileError) as caught:
        load_native(options(copy))
    for text in (str(copy), name, str(right), str(wrong)):
        assert text in str(caught.value)


def test_unused_tensors_are_one_warning(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    extra = {f"model.layers.{i}.self_attn.spare": torch.zeros(3) for i in range(20)}
    silent = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(12)}
    edit_weights(copy, lambda t: t.update({**extra, **silent}))
    with caplog.at_level(logging.WARNING):
        logging.getLogger("vllm").addHandler(caplog.handler)
        load_native(options(copy))
        logging.getLogger("vllm").removeHandler(caplog.handler)
    lines = {record.getMessage() for record in caplog.records}
    assert len(lines) == 1
    assert "model.layers.0.self_attn.spare" in lines.pop()


def test_integers_are_not_weights(copy: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    edit_weights(copy, lambda t: t.update({name: t[name].to(torch.int8)}))
    with pytest.raises(ModelFileError, match=r"up_proj.weight.* has the type i8"):
        load_native(options(copy))


def test_gemma3_with_a_vision_tower(tmp_path: Path) -> None:
    """The text part of a multimodal checkpoint, under today's names and those of older files."""
    text = {
        "vocab_size": 151, "hidden_size": 72, "intermediate_size": 88, "num_hidden_layers": 7,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 24, "sliding_window": 16,
        "query_pre_attn_scalar": 20, "max_position_embeddings": 256,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    config = transformers.Gemma3Config(text_config=text, vision_config=vision)
    config.mm_tokens_per_image = 4
    torch.manual_seed(3)
    model = transformers.Gemma3ForConditionalGeneration(config).float().eval()
    randomize(model)
    model.save_pretrained(tmp_path)
    assert any("vision_tower" in name for name in load_file(tmp_path / WEIGHTS))
    ids = np.random.default_rng(5).integers(3, 140, 96).tolist()
    expected = log_softmax(reference_logits(model, ids))
    assert np.abs(logprobs(tmp_path, ids) - expected).max() <= 1e-3

    def old_names(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            new = name.replace("model.language_model.", "language_model.model.")
            tensors[new] = tensors.pop(name)

    edit_weights(tmp_path, old_names)
    assert np.abs(logprobs(tmp_path, ids) - expected).max() <= 1e-3


def test_names() -> None:
    theirs = [
        "model.layers.0.mlp.up_proj.weight",
        "layers.1.mlp.up_proj.weight",
        "model.language_model.layers.2.mlp.up_proj.weight",
        "language_model.model.layers.3.mlp.up_proj.weight",
        "language_model.lm_head.weight",
        "embed_tokens.weight",
        "norm.weight",
    ]
    assert list(canonical_names(theirs)) == [
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.2.mlp.up_proj.weight",
        "model.layers.3.mlp.up_proj.weight",
        "lm_head.weight",
        "model.embed_tokens.weight",
        "model.norm.weight",
    ]
    renamed = canonical_names(["h.0.up"], [(r"^h\.(\d+)\.up$", r"model.layers.\1.mlp.up_proj")])
    assert renamed == {"model.layers.0.mlp.up_proj": "h.0.up"}
    with pytest.raises(ModelFileError, match="are the same parameter"):
        canonical_names(["norm.weight", "model.norm.weight"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.layers.3.self_attn.rotary_emb.inv_freq", True),
        ("vision_tower.encoder.layers.0.fc1.weight", True),
        ("model.layers.3.self_attn.q_proj.weight", False),
        ("model.layers.3.mlp.experts.0.weight", False),
    ],
)
def test_what_may_be_ignored(name: str, expected: bool) -> None:
    assert is_ignorable(name) is expected


def test_unknown_architecture_lists_what_there_is(copy: Path) -> None:
    edit_config(copy, architectures=["BrandNewForCausalLM"])
    with pytest.raises(ConfigError) as caught:
        load_native(options(copy))
    assert "BrandNewForCausalLM" in str(caught.value)
    assert all(name in str(caught.value) for name in FAMILIES)


def test_quantized_checkpoints_are_refused(copy: Path) -> None:
    edit_config(copy, quantization_config={"quant_method": "awq", "bits": 4})
    with pytest.raises(ConfigError, match=r"config.json: quantization_config.* awq"):
        load_native(options(copy))


def test_dummy_weights(copy: Path) -> None:
    """No weight file is needed; the seed decides the values."""
    (copy / WEIGHTS).unlink()
    ids = list(range(3, 40))
    dummy = {"load_format": "dummy"}
    first = logprobs(copy, ids, **dummy)
    np.testing.assert_array_equal(first, logprobs(copy, ids, **dummy))
    assert np.abs(first - logprobs(copy, ids, **dummy, seed=1)).max() > 1e-3
    assert np.isfinite(first).all()


@pytest.mark.parametrize("load", [load_native, load_reference])
def test_padded_head(original: tuple[Path, Any], load: Any) -> None:
    """Ids beyond the tokenizer have no chance, the others keep their logits."""
    folder, model = original
    ids = prompt_of(model)
    free = Driver(load(options(folder))).prefill(ids)
    limited = load(options(folder))
    limited.limit_tokens(100)
    masked = Driver(limited).prefill(ids)
    assert limited.vocab_size == 151
    assert np.isneginf(masked[:, 100:]).all()
    np.testing.assert_array_equal(masked[:, :100], free[:, :100])
    assert (free[:, 100:].max(axis=1) > free[:, :100].max(axis=1)).any()


def test_files_are_let_go(original: tuple[Path, Any]) -> None:
    """After loading, nothing maps the checkpoint: its pages don't count as ours."""
    model = load_native(options(original[0]))
    assert str(original[0]) not in Path("/proc/self/maps").read_text()
    assert model.vocab_size == 151
