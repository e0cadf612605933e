"""Llama 2 and 3, SmolLM, TinyLlama and every checkpoint that calls itself Llama."""

from vllm.model_executor.models.hf_config import HfConfig
from vllm.model_executor.models.spec import DecoderSpec


def spec(hf: HfConfig) -> DecoderSpec:
    """The baseline that other families start from."""
    arch = hf.arch
    return DecoderSpec(
        vocab_size=arch.vocab_size,
        hidden_size=arch.hidden_size,
        intermediate_size=arch.intermediate_size,
        num_heads=arch.num_heads,
        num_kv_heads=arch.num_kv_heads,
        head_dim=arch.head_dim,
        layers=hf.layers(),
        norm_eps=hf.number("rms_norm_eps"),
        qkv_bias=hf.flag("attention_bias"),
        o_bias=hf.flag("attention_bias"),
        mlp_bias=hf.flag("mlp_bias"),
        activation=hf.activation(),
        tied=arch.tie_word_embeddings,
    )
