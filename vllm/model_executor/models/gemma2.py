"""Gemma 2: norms before and after each branch, soft caps, every second layer with a window."""

import math
from dataclasses import replace

import numpy as np

from vllm.model_executor.models import llama
from vllm.model_executor.models.hf_config import HfConfig
from vllm.model_executor.models.spec import DecoderSpec


def spec(hf: HfConfig) -> DecoderSpec:
    return replace(
        llama.spec(hf),
        norms="sandwich",
        norm_offset=0.0 if hf.is_gguf else 1.0,  # GGUF files store 1 + w
        attention_scale=hf.number("query_pre_attn_scalar") ** -0.5,
        attention_softcap=hf.number("attn_logit_softcapping", 0.0),
        logits_softcap=hf.number("final_logit_softcapping", 0.0),
        embedding_scale=_in_dtype(math.sqrt(hf.arch.hidden_size), hf.dtype),
    )


def _in_dtype(value: float, dtype: str) -> float:
    """The scale as training saw it: rounded to the dtype of the model."""
    if dtype == "float16":
        return float(np.float16(value))
    if dtype == "bfloat16":
        bits = np.array(value, np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
        return float(rounded.view(np.float32))
    return value
