"""Hands out the tensors of a GGUF file under Hugging Face names and in Hugging Face row order.

Invariant: a model can't tell from names or row order which format it was read from; only the
storage types differ (and Gemma's norm weights, which GGUF stores as 1 + w: config key `_gguf`).
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vllm.exceptions import ModelFileError
from vllm.model_executor.weights.raw import RawTensor
from vllm.transformers_utils.files import shown
from vllm.transformers_utils.gguf import GGUFFile, TensorInfo

_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER_OVERRIDES = {
    "gemma2": {"ffn_norm": "pre_feedforward_layernorm"},
    "gemma3": {"ffn_norm": "pre_feedforward_layernorm"},
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
}
# Rope tables are read into the config (rope_scaling), they are not weights of the model.
_CONFIG_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# Converters store q and k of these families for rotation of neighbouring pairs.
_PAIRED_ROPE = ("llama", "granite", "smollm3")


class GGUFCheckpoint:
    """The tensors of one GGUF model (all its parts)."""

    def __init__(self, path: Path) -> None:
        self._file = GGUFFile(path)
        try:
            self._architecture = str(self._file.get("general.architecture"))
            self._infos = self._rename()
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        return list(self._infos)

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        info = self._infos[name]
        return info.shape, info.type.name

    def get(self, name: str) -> RawTensor:
        """The tensor as a view on the map; a copy where rows had to be put in order."""
        info = self._infos[name]
        data = np.frombuffer(self._file.map_of(info), np.uint8, info.nbytes, info.offset)
        tensor = RawTensor(name, info.shape, info.type.name, data)
        key = self._head_count_key(name)
        if key is None:
            return tensor
        order = _halves_order(info.shape[0], self._num_heads(info, key))
        rows = data.reshape(info.shape[0], -1)[order]
        return RawTensor(name, info.shape, info.type.name, rows.reshape(-1))

    def close(self) -> None:
        self._file.close()

    def _rename(self) -> dict[str, TensorInfo]:
        layer_names = _LAYER | _LAYER_OVERRIDES.get(self._architecture, {})
        infos: dict[str, TensorInfo] = {}
        for name, info in self._file.tensors.items():
            if name in _CONFIG_TENSORS:
                continue
            hf_name = _hf_name(name, layer_names)
            if hf_name in infos:
                self._file.fail(f"tensors {shown(name)} and {shown(infos[hf_name].name)} collide")
            infos[hf_name] = info
        return infos

    def _head_count_key(self, name: str) -> str | None:
        """The metadata key that tells how the rows of `name` must be put in order, if they must."""
        if self._architecture not in _PAIRED_ROPE:
            return None
        all_heads = f"{self._architecture}.attention.head_count"
        if ".self_attn.q_proj." in name:
            return all_heads
        if ".self_attn.k_proj." in name:
            return f"{all_heads}_kv" if f"{all_heads}_kv" in self._file else all_heads
        return None

    def _num_heads(self, info: TensorInfo, key: str) -> int:
        value = self._file.get(key)
        num_heads = value[0] if isinstance(value, list) and value else value
        num_rows = info.shape[0]
        is_one_row = info.type.block_size > 1 and len(info.shape) == 1
        if type(num_heads) is not int or num_heads < 1 or num_rows % (2 * num_heads) or is_one_row:
            raise ModelFileError(
                f"{self._file.path}: tensor {shown(info.name)} has {num_rows} rows, which are "
                f"not heads of an even size ({key} is {shown(value)})"
            )
        return num_heads


def _hf_name(name: str, layer_names: dict[str, str]) -> str:
    if name in _TOP_LEVEL:
        return _TOP_LEVEL[name]
    match = re.fullmatch(r"blk\.(\d{1,5})\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in layer_names:
        return name  # the loader reports it as unused
    return f"model.layers.{int(match[1])}.{layer_names[match[2]]}.{match[3]}"


def _halves_order(num_rows: int, num_heads: int) -> npt.NDArray[np.int64]:
    """Row gather from neighbouring pairs (x0 y0 x1 y1 ...) to halves (x0 x1 ... y0 y1 ...)."""
    pairs = np.arange(num_rows, dtype=np.int64).reshape(num_heads, -1, 2)
    order: npt.NDArray[np.int64] = pairs.transpose(0, 2, 1).reshape(-1)
    return order
