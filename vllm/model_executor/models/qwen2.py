"""Qwen2 and Qwen2.5: Llama with a bias on q, k and v, and windows in the upper layers if asked."""

from dataclasses import replace

from vllm.model_executor.models import llama
from vllm.model_executor.models.hf_config import HfConfig
from vllm.model_executor.models.spec import DecoderSpec


def spec(hf: HfConfig) -> DecoderSpec:
    return replace(llama.spec(hf), qkv_bias=True, o_bias=False)
