"""From a `DecoderSpec` to an ir graph, written once for all families.

    embedding -> layers x (attention branch, mlp branch) -> gather sampled rows -> norm -> lm_head

Decides the order of ops and the checkpoint name of every parameter. Invariant: nothing here knows
how weights are stored or on what the graph runs.
"""

from __future__ import annotations

from functools import partial

from vllm.ir.graph import Graph
from vllm.ir.values import Arg, Buffer, Const, Part, View, Weight
from vllm.model_executor.models.rope import Rope
from vllm.model_executor.models.spec import DecoderSpec, LayerSpec

HIDDEN = "hidden"
LOGITS = "logits"
EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"

# Checkpoint names of the norms of a layer, by placement.
_BEFORE = {
    "pre": ("input_layernorm", "post_attention_layernorm"),
    "sandwich": ("input_layernorm", "pre_feedforward_layernorm"),
}
_AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")


def build_graph(spec: DecoderSpec, max_model_len: int) -> Graph:
    """The whole model; rotary tables cover positions below `max_model_len`."""
    return _Decoder(spec, max_model_len).build()


class _Decoder:
    def __init__(self, spec: DecoderSpec, max_model_len: int) -> None:
        self.spec = spec
        self.max_model_len = max_model_len
        self.graph = Graph(kept=frozenset({HIDDEN, LOGITS}))
        self.hidden = Buffer(HIDDEN, "tokens", spec.hidden_size).all
        self.embedding = Weight(
            EMBEDDING, (Part(EMBEDDING, spec.vocab_size),), spec.hidden_size
        )
        self.rope_tables: dict[Rope, Const] = {}

    def build(self) -> Graph:
        scale = self.spec.embedding_scale
        self.graph.add("embedding", w=self.embedding, out=self.hidden, scale=scale)
        for index, layer in enumerate(self.spec.layers):
            self.attention(index, layer)
            self.mlp(index)
        self.head()
        return self.graph

    # ---- branches of a layer ------------------------------------------------------------------

    def attention(self, index: int, layer: LayerSpec) -> None:
        spec, prefix = self.spec, f"model.layers.{index}.self_attn"
        x = self.norm_before(index, 0)
        qkv = self.tokens(f"{index}.qkv", spec.q_size + 2 * spec.kv_size)
        names = ("qkv_proj",) if spec.fused_qkv else ("q_proj", "k_proj", "v_proj")
        sizes = (qkv.cols,) if spec.fused_qkv else (spec.q_size, spec.kv_size, spec.kv_size)
        self.linear(f"{prefix}.qkv", prefix, names, sizes, x, qkv, spec.qkv_bias)
        heads = {
            "num_heads": spec.num_heads,
            "num_kv_heads": spec.num_kv_heads,
            "head_dim": spec.head_dim,
            "layer": index,
        }
        self.graph.add("rope_cache", qkv=qkv, **heads, **self.qk_norm(prefix), **self.rope(layer))
        out = self.tokens(f"{index}.attn", spec.q_size)
        self.graph.add(
            "attention",
            q=qkv.buffer.columns(0, spec.q_size),
            **heads,
            scale=spec.scale,
            softcap=spec.attention_softcap,
            window=layer.window or 0,
            sinks=self.vector(f"{prefix}.sinks", spec.num_heads) if spec.sinks else None,
            out=out,
        )
        branch = self.tokens(f"{index}.attn_out", spec.hidden_size)
        self.linear(f"{prefix}.o", prefix, ("o_proj",), (branch.cols,), out, branch, spec.o_bias)
        self.add_branch(index, 0, branch)

    def mlp(self, index: int) -> None:
        spec, prefix = self.spec, f"model.layers.{index}.mlp"
        x = self.norm_before(index, 1)
        size = spec.intermediate_size
        names: tuple[str, ...] = ("gate_proj", "up_proj") if spec.gated_mlp else ("up_proj",)
        if spec.fused_gate_up:
            names = ("gate_up_proj",)
        width = 2 * size if spec.gated_mlp else size
        up = self.tokens(f"{index}.up", width)
        sizes = (width // len(names),) * len(names)
        self.linear(f"{prefix}.up", prefix, names, sizes, x, up, spec.mlp_bias)
        act = self.tokens(f"{index}.act", size)
        self.graph.add("act", act=spec.activation, gated=spec.gated_mlp, x=up, out=act)
        down = self.tokens(f"{index}.down", spec.hidden_size)
        self.linear(
            f"{prefix}.down", prefix, ("down_proj",), (down.cols,), act, down, spec.mlp_bias
        )
        self.add_branch(index, 1, down)

    def norm_before(self, index: int, branch: int) -> View:
        """The input of a branch."""
        if self.spec.norms == "post":
            return self.hidden
        name = f"model.layers.{index}.{_BEFORE[self.spec.norms][branch]}.weight"
        out = self.tokens(f"{index}.norm{branch}", self.spec.hidden_size)
        self.norm(name, self.hidden, out)
        return out

    def add_branch(self, index: int, branch: int, x: View) -> None:
        """Add a branch to the residual stream, through a norm if there is one after it."""
        if self.spec.norms != "pre":
            name = f"model.layers.{index}.{_AFTER[branch]}.weight"
            out = self.tokens(f"{index}.post_norm{branch}", x.cols)
            self.norm(name, x, out)
            x = out
        scale = self.spec.residual_scale
        self.graph.add("add", a=self.hidden, b=x, alpha=scale, out=self.hidden)

    # ---- head ---------------------------------------------------------------------------------

    def head(self) -> None:
        spec = self.spec
        sampled = Buffer("sampled", "logits", spec.hidden_size).all
        self.graph.add("gather", x=self.hidden, out=sampled)
        normed = Buffer("sampled.norm", "logits", spec.hidden_size).all
        self.norm("model.norm.weight", sampled, normed)
        logits = Buffer(LOGITS, "logits", spec.vocab_size).all
        weight = self.embedding
        if not spec.tied:
            weight = Weight(LM_HEAD, (Part(LM_HEAD, spec.vocab_size),), spec.hidden_size)
        self.graph.add("linear", w=weight, x=normed, out=logits)
        if spec.logits_scale != 1.0 or spec.logits_softcap:
            scale, softcap = spec.logits_scale, spec.logits_softcap
            self.graph.add("logits", x=logits, scale=scale, softcap=softcap)

    # ---- pieces -------------------------------------------------------------------------------

    def tokens(self, name: str, cols: int) -> View:
        return Buffer(name, "tokens", cols).all

    def vector(self, name: str, size: int, offset: float = 0.0) -> Const:
        return Const(name, (size,), (Part(name, size),), offset)

    def norm(self, name: str, x: View, out: View) -> None:
        weight = self.vector(name, x.cols, self.spec.norm_offset)
        self.graph.add("norm", kind="rms", x=x, weight=weight, eps=self.spec.norm_eps, out=out)

    def linear(
        self,
        name: str,
        prefix: str,
        names: tuple[str, ...],
        sizes: tuple[int, ...],
        x: View,
        out: View,
        has_bias: bool,
    ) -> None:
        """One matrix of the checkpoint's matrices `names`, one below the other."""
        pairs = list(zip(names, sizes, strict=True))
        parts = tuple(Part(f"{prefix}.{n}.weight", size) for n, size in pairs)
        bias = None
        if has_bias:
            bias_parts = tuple(Part(f"{prefix}.{n}.bias", size) for n, size in pairs)
            bias = Const(f"{name}.bias", (out.cols,), bias_parts)
        self.graph.add("linear", w=Weight(name, parts, x.cols), x=x, bias=bias, out=out)

    def qk_norm(self, prefix: str) -> dict[str, Arg]:
        spec = self.spec
        if spec.qk_norm == "none":
            return {}
        is_full = spec.qk_norm == "full"
        sizes = (spec.q_size, spec.kv_size) if is_full else (spec.head_dim, spec.head_dim)
        q_norm, k_norm = (
            self.vector(f"{prefix}.{name}.weight", size, spec.norm_offset)
            for name, size in zip(("q_norm", "k_norm"), sizes, strict=True)
        )
        return {
            "qk_norm": spec.qk_norm,
            "q_norm": q_norm,
            "k_norm": k_norm,
            "eps": spec.norm_eps,
        }

    def rope(self, layer: LayerSpec) -> dict[str, Arg]:
        rope = layer.rope
        if rope is None:
            return {}
        if rope not in self.rope_tables:
            name, shape = f"rope{len(self.rope_tables)}", (self.max_model_len, rope.rot_dim)
            compute = partial(rope.table, self.max_model_len)
            self.rope_tables[rope] = Const(name, shape, compute=compute)
        return {
            "cos_sin": self.rope_tables[rope],
            "rot_dim": rope.rot_dim,
            "interleaved": rope.interleaved,
        }
