"""`DecoderSpec`: everything that makes one decoder differ from another, as plain data.

Decides what a family file may say; `decoder.py` turns it into a graph. Invariant: a field is used
by two families or is the only difference of one; a different block is an op of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vllm.model_executor.models.rope import Rope

Norms = Literal["pre", "post", "sandwich"]
QkNorm = Literal["none", "per_head", "full"]


@dataclass(frozen=True)
class LayerSpec:
    """What may change from layer to layer."""

    window: int | None = None
    """Positions a token sees, itself included; None: all before it."""
    rope: Rope | None = None
    """None: the layer has no position encoding."""


@dataclass(frozen=True)
class DecoderSpec:
    """A decoder-only transformer. Defaults are those of Llama."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]

    norms: Norms = "pre"
    """Norm before each branch, after it (before the residual add), or both."""
    norm_eps: float = 1e-6
    norm_offset: float = 0.0
    """Added to every norm weight; 1 where checkpoints store w of (1 + w)."""

    qk_norm: QkNorm = "none"
    qkv_bias: bool = False
    o_bias: bool = False
    fused_qkv: bool = False
    """The checkpoint has one tensor qkv_proj: q, k, v rows one below the other."""
    attention_scale: float | None = None
    """Factor of q k; None: 1 / sqrt(head_dim)."""
    attention_softcap: float = 0.0
    sinks: bool = False
    """A learned logit per head in the softmax denominator."""

    activation: str = "silu"
    gated_mlp: bool = True
    mlp_bias: bool = False
    fused_gate_up: bool = False
    """The checkpoint has one tensor gate_up_proj: gate rows, then up rows."""

    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """Factor of each branch before it is added to the residual stream."""
    logits_scale: float = 1.0
    logits_softcap: float = 0.0
    tied: bool = False
    """The output head is the embedding table."""
    renames: tuple[tuple[str, str], ...] = ()
    """(regular expression, replacement) for checkpoint names, first match wins."""

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale
