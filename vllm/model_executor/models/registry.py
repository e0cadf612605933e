"""Which module describes an architecture; the module is imported when it is asked for.

Decides nothing but the name. A new family is one file and one row here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from vllm.exceptions import ConfigError
from vllm.model_executor.models.hf_config import HfConfig
from vllm.model_executor.models.spec import DecoderSpec

FAMILIES = {
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
    "GraniteForCausalLM": "granite",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Olmo2ForCausalLM": "olmo2",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "SmolLM3ForCausalLM": "smollm3",
}


def describe(hf: HfConfig) -> DecoderSpec:
    """The description of the first known architecture that the config names."""
    spec: Callable[[HfConfig], DecoderSpec]
    module = import_module(f"vllm.model_executor.models.{family_of(hf.arch.architectures)}")
    spec = module.spec
    return spec(hf)


def family_of(architectures: Sequence[str]) -> str:
    """Name of the family module; ConfigError lists what is supported."""
    for name in architectures:
        if name in FAMILIES:
            return FAMILIES[name]
    raise ConfigError(
        f"architecture {', '.join(architectures)} is not supported "
        f"(supported: {', '.join(sorted(FAMILIES))})"
    )
