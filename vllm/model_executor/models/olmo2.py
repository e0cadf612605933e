"""OLMo 2: norms after each branch instead of before it, and on the whole of q and k."""

from dataclasses import replace

from vllm.model_executor.models import llama
from vllm.model_executor.models.hf_config import HfConfig
from vllm.model_executor.models.spec import DecoderSpec


def spec(hf: HfConfig) -> DecoderSpec:
    return replace(llama.spec(hf), norms="post", qk_norm="full")
