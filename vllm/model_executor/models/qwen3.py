"""Qwen3: Llama with an RMS norm on each head of q and k."""

from dataclasses import replace

from vllm.model_executor.models import llama
from vllm.model_executor.models.hf_config import HfConfig
from vllm.model_executor.models.spec import DecoderSpec


def spec(hf: HfConfig) -> DecoderSpec:
    return replace(llama.spec(hf), qk_norm="per_head")
