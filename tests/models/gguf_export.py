"""Writes a tiny Transformers model as a GGUF file, as converters do, with the `gguf` package."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Block = gguf.GGMLQuantizationType
PERMUTED = ("llama", "granite", "smollm3")


def export(
    model: Any, arch_name: str, path: Path, type_of: Callable[[str], Block] | None = None
) -> None:
    """`type_of(tensor name)` is the storage type of matrices; None writes everything as F32.

    Matrices that get a block type are replaced in `model` by what the blocks hold.
    """
    config = model.config
    arch = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch_name)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, arch_name)
    add_metadata(writer, config)
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        base, _, suffix = name.rpartition(".")
        target = f"{names.get_name(base)}.{suffix}"
        values = parameter.detach().numpy()
        if arch_name.startswith("gemma") and base.endswith("norm"):
            values = values + 1
        kind = type_of(target) if type_of and values.ndim == 2 else Block.F32
        if kind == Block.F32:
            writer.add_tensor(target, reordered(target, values, config, arch_name))
            continue
        blocks = random_blocks(kind, values.shape, name)
        writer.add_tensor(target, blocks, raw_dtype=kind)
        held = gguf.quants.dequantize(blocks, kind)
        restored = reordered(target, held, config, arch_name, is_inverse=True)
        parameter.data.copy_(parameter.new_tensor(restored))
    for extra, values in rope_tensors(config).items():
        writer.add_tensor(extra, np.array(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def reordered(
    target: str, values: np.ndarray, config: Any, arch_name: str, is_inverse: bool = False
) -> np.ndarray:
    """Rows of q and k as neighbouring pairs, which is how llama-like converters store halves."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    num_heads = heads.get(target.split(".")[-2])
    if arch_name not in PERMUTED or num_heads is None:
        return values
    half = values.shape[0] // num_heads // 2
    shape = (num_heads, half, 2) if is_inverse else (num_heads, 2, half)
    rows = values.reshape(*shape, *values.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(values.shape))


def random_blocks(kind: Block, shape: tuple[int, int], name: str) -> np.ndarray:
    """Random quants with f16 scales that give the matrix a standard deviation of k ** -0.5."""
    rows, k = shape
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(sum(map(ord, name)))
    blocks = rng.integers(0, 256, (rows, k // block_size, block_bytes), dtype=np.uint8)
    scale_at, offset_at, offset_ratio = _SCALES[kind]
    set_half(blocks, scale_at, np.full(blocks.shape[:2], 1e-3))
    if offset_at is not None:
        set_half(blocks, offset_at, np.full(blocks.shape[:2], 1e-3 * offset_ratio))
    unit = gguf.quants.dequantize(blocks.reshape(rows, -1), kind).std()
    wanted = rng.uniform(0.5, 1.5, blocks.shape[:2]) * 1e-3 * k**-0.5 / unit
    set_half(blocks, scale_at, wanted)
    if offset_at is not None:
        set_half(blocks, offset_at, wanted * offset_ratio)
    return blocks.reshape(rows, -1)


# Byte of the f16 scale, byte of the f16 offset and what centres it (in units of the scale).
_SCALES: dict[Block, tuple[int, int | None, float]] = {
    Block.Q4_0: (0, None, 0.0),
    Block.Q4_1: (0, 2, -7.5),
    Block.Q5_0: (0, None, 0.0),
    Block.Q5_1: (0, 2, -15.5),
    Block.Q8_0: (0, None, 0.0),
    Block.Q4_K: (0, 2, 7.5),
    Block.Q5_K: (0, 2, 15.5),
    Block.Q6_K: (208, None, 0.0),
}


def set_half(blocks: np.ndarray, start: int, values: np.ndarray) -> None:
    blocks[..., start : start + 2] = values.astype(np.float16)[..., None].view(np.uint8)


def add_metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    full = rope.get("full_attention", rope)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * full.get("partial_rotary_factor", 1.0)))
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if full["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(full["rope_type"]))
        writer.add_rope_scaling_factor(full["factor"])
    if full["rope_type"] in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    if config.model_type == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.model_type == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if full["rope_type"] == "longrope":
        factor = config.max_position_embeddings / full["original_max_position_embeddings"]
        original = full["original_max_position_embeddings"]
        scale = math.sqrt(1 + math.log(factor) / math.log(original))
        writer.add_rope_scaling_attn_factors(scale)


def rope_tensors(config: Any) -> dict[str, list[float]]:
    rope = config.rope_parameters
    if rope.get("rope_type") != "longrope":
        return {}
    return {
        "rope_factors_long.weight": rope["long_factor"],
        "rope_factors_short.weight": rope["short_factor"],
    }
