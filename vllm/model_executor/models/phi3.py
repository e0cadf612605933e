"""Phi-3, 3.5 and 4-mini: Llama with fused projections in the checkpoint and longrope."""

from dataclasses import replace

from vllm.model_executor.models import llama
from vllm.model_executor.models.hf_config import HfConfig
from vllm.model_executor.models.spec import DecoderSpec


def spec(hf: HfConfig) -> DecoderSpec:
    return replace(llama.spec(hf), fused_qkv=True, fused_gate_up=True)
