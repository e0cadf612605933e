"""The ops that models are made of: arguments, shapes, and what each computes.

Invariant: an op means what its function in `kernels/reference.py` returns; here that is tied to
the buffers of a node. Every executor is right if it agrees with it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vllm.ir.op import (
    Arrays,
    Context,
    Op,
    Param,
    Reference,
    ShapeCheck,
    attr,
    const,
    expect,
    optional,
    read,
    update,
    weight,
    write,
)
from vllm.ir.values import Floats
from vllm.kernels import reference

OPS: dict[str, Op] = {}

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2")


def declare(shapes: ShapeCheck, **params: Param) -> Callable[[Reference], Reference]:
    """Make an op of a function of the same name."""

    def register(function: Reference) -> Reference:
        OPS[function.__name__] = Op(function.__name__, params, shapes, function)
        return function

    return register


# ---- embedding, norm, quantize ---------------------------------------------------------------


def _embedding_shapes(a: Arrays) -> None:
    expect("out columns", a.out.cols, a.w.k)


@declare(_embedding_shapes, w=weight(), out=write(), scale=attr(1.0))
def embedding(a: Arrays, ctx: Context) -> None:
    """Rows of `w` by token id, times `scale`."""
    a.out[:] = reference.embedding(a.w, ctx.step.token_ids, a.scale)


def _same_size(a: Arrays) -> None:
    size = a.x.cols
    for name in ("weight", "bias"):
        if getattr(a, name, None) is not None:
            expect(name, getattr(a, name).shape, (size,))
    for name in ("out", "out_q8"):
        if getattr(a, name, None) is not None:
            expect(f"{name} columns", getattr(a, name).cols, size)


@declare(
    _same_size,
    kind=attr("rms"),
    x=read(),
    weight=optional(const()),
    bias=optional(const()),
    eps=attr(),
    out=optional(write()),
    out_q8=optional(write("q8")),
)
def norm(a: Arrays, ctx: Context) -> None:
    """RMS or layer norm of each row, to f32, q8 or both."""
    _store(a, reference.norm(a.x, kind=a.kind, eps=a.eps, weight=a.weight, bias=a.bias))


@declare(_same_size, x=read(), out_q8=write("q8"))
def quantize(a: Arrays, ctx: Context) -> None:
    """Each row to int8 in groups of 32."""
    a.out_q8.store(a.x)


# ---- linear ----------------------------------------------------------------------------------


def _linear_shapes(a: Arrays) -> None:
    if (a.x is None) == (a.x_q8 is None):
        raise ValueError("linear needs exactly one of x and x_q8")
    expect("input columns", (a.x or a.x_q8).cols, a.w.k)
    expect("out columns", a.out.cols, a.w.n)
    if a.bias is not None:
        expect("bias", a.bias.shape, (a.w.n,))
    if a.residual is not None:
        expect("residual columns", a.residual.cols, a.w.n)


@declare(
    _linear_shapes,
    w=weight(),
    x=optional(read()),
    x_q8=optional(read("q8")),
    bias=optional(const()),
    alpha=attr(1.0),
    residual=optional(read()),
    out=write(),
)
def linear(a: Arrays, ctx: Context) -> None:
    """out = alpha * (x W^T + bias) + residual."""
    x = a.x if a.x_q8 is None else a.x_q8.load()
    a.out[:] = reference.linear(x, a.w, a.bias, a.alpha, a.residual)


# ---- attention -------------------------------------------------------------------------------


def _rope_cache_shapes(a: Arrays) -> None:
    expect("qkv columns", a.qkv.cols, (a.num_heads + 2 * a.num_kv_heads) * a.head_dim)
    if a.qk_norm != "none":
        is_full = a.qk_norm == "full"
        for norm, heads in ((a.q_norm, a.num_heads), (a.k_norm, a.num_kv_heads)):
            size = heads * a.head_dim if is_full else a.head_dim
            expect("a weight of qk_norm", norm and norm.shape, (size,))
    if a.cos_sin is not None:
        expect("cos_sin columns", a.cos_sin.shape[1:], (a.rot_dim,))
        if a.rot_dim % 2 or a.rot_dim > a.head_dim:
            raise ValueError(f"rot_dim is {a.rot_dim}, head_dim {a.head_dim}")


@declare(
    _rope_cache_shapes,
    qkv=update(),
    num_heads=attr(),
    num_kv_heads=attr(),
    head_dim=attr(),
    qk_norm=attr("none"),
    q_norm=optional(const()),
    k_norm=optional(const()),
    eps=attr(1e-6),
    cos_sin=optional(const()),
    rot_dim=attr(0),
    interleaved=attr(False),
    layer=attr(),
)
def rope_cache(a: Arrays, ctx: Context) -> None:
    """Norm and rotate q and k in place, then write k and v to the layer's cache."""
    q, k, v = reference.rope_cache(
        a.qkv,
        ctx.step.positions,
        num_heads=a.num_heads,
        num_kv_heads=a.num_kv_heads,
        head_dim=a.head_dim,
        qk_norm=a.qk_norm,
        q_norm=a.q_norm,
        k_norm=a.k_norm,
        eps=a.eps,
        cos_sin=a.cos_sin,
        rot_dim=a.rot_dim,
        interleaved=a.interleaved,
    )
    a.qkv[:] = np.concatenate([q, k, v], axis=1).reshape(a.qkv.shape)
    cache = ctx.caches[a.layer]
    slots = ctx.step.slot_mapping[cache.group]
    reference.write_cache(cache.round(k), cache.round(v), slots, cache.k, cache.v)


def _attention_shapes(a: Arrays) -> None:
    width = a.num_heads * a.head_dim
    expect("q columns", a.q.cols, width)
    expect("out columns", a.out.cols, width)
    if a.num_heads % a.num_kv_heads:
        raise ValueError(f"{a.num_heads} heads can't share {a.num_kv_heads} KV heads")
    if a.sinks is not None:
        expect("sinks", a.sinks.shape, (a.num_heads,))


@declare(
    _attention_shapes,
    q=read(),
    num_heads=attr(),
    num_kv_heads=attr(),
    head_dim=attr(),
    scale=attr(),
    softcap=attr(0.0),
    window=attr(0),
    sinks=optional(const()),
    layer=attr(),
    out=write(),
)
def attention(a: Arrays, ctx: Context) -> None:
    """Causal attention of each token over its sequence's cache."""
    step, cache = ctx.step, ctx.caches[a.layer]
    for seq, seq_len in enumerate(step.seq_lens):
        rows = slice(step.query_start[seq], step.query_start[seq + 1])
        blocks = step.block_tables[cache.group][seq, : -(-seq_len // step.block_size)]
        k, v = reference.read_cache(cache.k, cache.v, blocks, seq_len)
        out = reference.attention(
            a.q[rows].reshape(-1, a.num_heads, a.head_dim),
            k,
            v,
            step.positions[rows],
            scale=a.scale,
            softcap=a.softcap,
            window=a.window,
            sinks=a.sinks,
        )
        a.out[rows] = out.reshape(len(out), -1)


# ---- elementwise -----------------------------------------------------------------------------


def _act_shapes(a: Arrays) -> None:
    if a.act not in ACTIVATIONS:
        raise ValueError(f"act is {a.act}, must be one of {', '.join(ACTIVATIONS)}")
    for out in (a.out, a.out_q8):
        if out is not None:
            expect("out columns", out.cols * (2 if a.gated else 1), a.x.cols)


@declare(
    _act_shapes,
    act=attr("silu"),
    gated=attr(True),
    x=read(),
    out=optional(write()),
    out_q8=optional(write("q8")),
)
def act(a: Arrays, ctx: Context) -> None:
    """Gated: act(left half) * right half; else act(x)."""
    _store(a, reference.act(a.x, act=a.act, gated=a.gated))


def _add_shapes(a: Arrays) -> None:
    expect("b columns", a.b.cols, a.a.cols)
    expect("out columns", a.out.cols, a.a.cols)


@declare(_add_shapes, a=read(), b=read(), alpha=attr(1.0), out=write())
def add(a: Arrays, ctx: Context) -> None:
    """out = a + alpha * b."""
    a.out[:] = reference.add(a.a, a.b, a.alpha)


@declare(_same_size, x=read(), out=write())
def gather(a: Arrays, ctx: Context) -> None:
    """The rows of the sampled tokens."""
    a.out[:] = reference.gather(a.x, ctx.step.logits_indices)


@declare(lambda a: None, x=update(), scale=attr(1.0), softcap=attr(0.0))
def logits(a: Arrays, ctx: Context) -> None:
    """x = scale * x, then softcap * tanh(x / softcap) if there is a cap."""
    a.x[:] = reference.logits(a.x, a.scale, a.softcap)


def _store(a: Arrays, y: Floats) -> None:
    if a.out is not None:
        a.out[:] = y
    if a.out_q8 is not None:
        a.out_q8.store(y)
