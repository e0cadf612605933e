"""Granite 3: Llama with four multipliers."""

from dataclasses import replace

from vllm.model_executor.models import llama
from vllm.model_executor.models.hf_config import HfConfig
from vllm.model_executor.models.spec import DecoderSpec


def spec(hf: HfConfig) -> DecoderSpec:
    return replace(
        llama.spec(hf),
        attention_scale=hf.number("attention_multiplier"),
        embedding_scale=hf.number("embedding_multiplier"),
        residual_scale=hf.number("residual_multiplier"),
        logits_scale=1.0 / hf.number("logits_scaling"),
    )
