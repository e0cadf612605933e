"""Gemma 3 text models: Gemma 2 with a norm on q and k, five window layers to each full one,
and a rotation of their own for the window layers."""

from dataclasses import replace

from vllm.model_executor.models import gemma2
from vllm.model_executor.models.hf_config import HfConfig
from vllm.model_executor.models.spec import DecoderSpec


def spec(hf: HfConfig) -> DecoderSpec:
    if hf.flag("use_bidirectional_attention"):
        hf.fail("use_bidirectional_attention", "bidirectional attention is not supported")
    return replace(gemma2.spec(hf), qk_norm="per_head")
