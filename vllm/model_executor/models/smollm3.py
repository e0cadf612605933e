"""SmolLM3: Llama in which every fourth layer has no position encoding."""

from dataclasses import replace

from vllm.model_executor.models import llama
from vllm.model_executor.models.hf_config import HfConfig
from vllm.model_executor.models.spec import DecoderSpec


def spec(hf: HfConfig) -> DecoderSpec:
    base = llama.spec(hf)
    layers = tuple(
        layer if has_rope else replace(layer, rope=None)
        for layer, has_rope in zip(base.layers, _has_rope(hf, len(base.layers)), strict=True)
    )
    return replace(base, layers=layers)


def _has_rope(hf: HfConfig, num_layers: int) -> list[bool]:
    flags = hf.values.get("no_rope_layers")  # despite the name, 1 means: rotates
    if flags is None:
        interval = int(hf.number("no_rope_layer_interval", 4))
        return [(i + 1) % interval != 0 for i in range(num_layers)]
    if not isinstance(flags, list) or len(flags) != num_layers:
        hf.fail("no_rope_layers", f"must be a list of {num_layers} flags")
    return [bool(flag) for flag in flags]
