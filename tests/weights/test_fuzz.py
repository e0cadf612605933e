"""Mutated model files are loaded or refused; nothing else ever happens, and it happens soon."""

import json
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.transformers_utils.gguf_builder import tiny_llama
from tests.transformers_utils.tokenizer_files import trained, write_folder
from vllm.exceptions import ConfigError
from vllm.model_executor.weights import open_checkpoint
from vllm.transformers_utils.config import ModelArch, load_hf_config
from vllm.transformers_utils.tokenizer import get_tokenizer

CASES = 300
NUMBERS = [0, 1, 2, 31, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**60, 2**63 - 1, 2**63, 2**64 - 1]


def mutate(data: bytes, header: int, rng: random.Random) -> bytes:
    """One to four edits, most of them in the header."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(header, len(out)) if rng.random() < 0.9 else len(out))
        kind = rng.randrange(6)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.choice([0, 1, 127, 128, 255, 34, 44, 48, 57, 91, 93, 123, 125])
        elif kind == 2:
            out[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
        elif kind == 3:
            out[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS) & 0xFFFFFFFF)
        elif kind == 4:
            del out[at : at + rng.randint(1, 40)]
        else:
            out[at:at] = out[at : at + rng.randint(1, 40)]
        if not out:
            out = bytearray(b"\0")
    return bytes(out)


def count_loaded(cases: list[bytes], path: Path, load: Callable[[], None]) -> int:
    """How many files load; every other one must be refused, by name and within a second."""
    loaded = 0
    for number, data in enumerate(cases):
        path.write_bytes(data)
        start = time.process_time()
        try:
            with np.errstate(all="ignore"):
                load()
            loaded += 1
        except ConfigError as error:
            assert str(path.parent) in str(error), number
            assert "\n" not in str(error), number
        assert time.process_time() - start < 1, number
    return loaded


def read_all_tensors(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    for name in checkpoint.names():
        tensor = checkpoint.get(name)
        assert tensor.rows.size == tensor.data.size
    checkpoint.close()


def test_mutated_gguf_files(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    data = tiny_llama().pack()
    header = data.index(b"token_embd.weight") + 1200
    rng = random.Random(1)

    def load() -> None:
        ModelArch.from_hf(load_hf_config(path))
        read_all_tensors(path)
        tokenizer = get_tokenizer(path)
        tokenizer.decode(tokenizer.encode("ab a\u00e9 <s>"))

    cases = [mutate(data, header, rng) for _ in range(CASES)]
    assert 5 < count_loaded(cases, path, load) < CASES - 50


def test_mutated_safetensors_files(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "model.safetensors"
    shapes = {f"model.layers.{i}.w": (4, i + 1) for i in range(12)}
    save_file({name: torch.randn(shape) for name, shape in shapes.items()}, path)
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    rng = random.Random(2)
    cases = [mutate(data, header, rng) for _ in range(CASES)]
    assert 1 < count_loaded(cases, path, lambda: read_all_tensors(tmp_path)) < CASES - 50


def test_truncated_safetensors_files(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({f"w{i}": torch.randn(4, 4) for i in range(8)}, path)
    data = path.read_bytes()
    cuts = [data[: len(data) * percent // 100] for percent in range(100)]
    assert count_loaded(cuts, path, lambda: read_all_tensors(tmp_path)) == 0


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32,
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 1e4, "torch_dtype": "float32", "tie_word_embeddings": False, "eos_token_id": [2],
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                     "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    "sliding_window": None, "layer_types": None, "quantization_config": None,
}  # fmt: skip
ODD = [None, True, -1, 0, 0.5, 1e400, 2**70, "", "x", "8.0", [], [1], ["a"], {}, {"a": 1}, [[]]]


@pytest.mark.parametrize("seed", range(3))
def test_config_values_of_any_type(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    rng = random.Random(seed)
    cases = []
    for _ in range(CASES):
        config = json.loads(json.dumps(CONFIG))
        for _ in range(rng.randint(1, 2)):
            target = config["rope_scaling"] if rng.random() < 0.3 else config
            if isinstance(target, dict):
                target[rng.choice(list(target))] = rng.choice(ODD)
        cases.append(json.dumps(config).encode())
    assert 5 < count_loaded(cases, path, lambda: config_only(tmp_path)) < CASES


def config_only(folder: Path) -> None:
    arch = ModelArch.from_hf(load_hf_config(folder))
    assert len(arch.attention_windows) == arch.num_layers


def test_mutated_config_files(tmp_path: Path) -> None:
    data = json.dumps(CONFIG).encode()
    rng = random.Random(3)
    cases = [mutate(data, len(data), rng) for _ in range(CASES)]
    count_loaded(cases, tmp_path / "config.json", lambda: config_only(tmp_path))


TOKENIZER_KEYS = [
    "bos_token", "eos_token", "added_tokens_decoder", "extra_special_tokens",
    "additional_special_tokens", "chat_template", "add_bos_token", "model_max_length",
]  # fmt: skip
ODDER = [
    {"x": {}}, {"5": []}, {"5": {"content": 5}}, {"9999999": {"content": "q"}}, ["<s>", {}],
    {"content": "<s>"}, {"content": 7}, "<|none|>", [{"name": "default"}], [{"template": "t"}],
    "\ud800", "\0", "x" * 10_000,
]  # fmt: skip


def use_tokenizer(folder: Path) -> None:
    tokenizer = get_tokenizer(folder)
    tokenizer.decode(tokenizer.encode("hello <s> w\u00e9", allow_special=False))
    assert tokenizer.vocab_size > 0


def test_tokenizer_settings_of_any_type(tmp_path: Path) -> None:
    write_folder(tmp_path, trained("gpt-2"))
    rng = random.Random(4)
    cases = []
    for _ in range(CASES):
        keys = rng.sample(TOKENIZER_KEYS, rng.randint(1, 3))
        cases.append(json.dumps({key: rng.choice(ODD + ODDER) for key in keys}).encode())
    path = tmp_path / "tokenizer_config.json"
    assert 0 < count_loaded(cases, path, lambda: use_tokenizer(tmp_path)) < CASES


def test_mutated_tokenizer_files(tmp_path: Path) -> None:
    write_folder(tmp_path, trained("gpt-2"))
    path = tmp_path / "tokenizer.json"
    data = path.read_bytes()
    rng = random.Random(5)
    cases = [mutate(data, len(data), rng) for _ in range(CASES)]
    assert 0 < count_loaded(cases, path, lambda: use_tokenizer(tmp_path)) < CASES
