"""Mistral: Llama with a sliding window in every layer (version 0.1) or in none."""

from vllm.model_executor.models import llama
from vllm.model_executor.models.hf_config import HfConfig
from vllm.model_executor.models.spec import DecoderSpec


def spec(hf: HfConfig) -> DecoderSpec:
    """The windows are read with the layers; nothing else differs."""
    return llama.spec(hf)
