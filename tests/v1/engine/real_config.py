"""Real VllmConfigs of tiny models, as they cross to an engine process."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.v1.engine.fake import EOS, VOCAB, write_tokenizer
from vllm.config import VllmConfig
from vllm.transformers_utils.arch import ModelArch
from vllm.transformers_utils.config import load_hf_config

HF_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": EOS,
    "torch_dtype": "float32",
}


def write_model(folder: Path, **hf_config: Any) -> Path:
    """A model folder with a config and the fake's tokenizer; the weights are random (dummy)."""
    (folder / "config.json").write_text(json.dumps({**HF_CONFIG, **hf_config}))
    return write_tokenizer(folder)


def real_config(folder: Path, **overrides: Any) -> VllmConfig:
    """Resolved by hand: small, deterministic, independent of this machine's memory."""
    hf_config = load_hf_config(folder)
    values: dict[str, Any] = {
        "model": str(folder),
        "path": str(folder),
        "tokenizer_path": str(folder),
        "hf_config": hf_config,
        "arch": ModelArch.from_hf(hf_config),
        "dtype": "float32",
        "max_model_len": 512,
        "load_format": "dummy",
        "kv_cache_dtype": "float32",
        "block_size": 16,
        "num_gpu_blocks": 128,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 128,
        "num_threads": 1,
        **overrides,
    }
    config = VllmConfig()
    parts = {}
    for name in vars(config):
        part = getattr(config, name)
        if part is not None:
            fields = {key: values.pop(key) for key in list(values) if hasattr(part, key)}
            parts[name] = replace(part, **fields)
    assert not values, f"unknown fields: {sorted(values)}"
    return replace(config, **parts)
