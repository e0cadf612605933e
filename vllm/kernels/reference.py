"""What each op of the step program computes, in numpy, to be read and to test against.

Arguments are named as in the native ops. Rows are independent. Arithmetic is float64 where a sum
is long, results are float32.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

Q8_GROUP = 32
HIGH_STEP = 254
"""A 16-bit activation is HIGH_STEP * high + low; both are bytes from -127 to 127."""


def embedding(w: F32, token_ids: I32, scale: float = 1.0) -> F32:
    """Row `token_ids[i]` of `w` [n, k], scaled."""
    rows: F32 = w[token_ids] * np.float32(scale)
    return rows


def norm(
    x: F32, *, kind: str, eps: float, weight: F32 | None = None, bias: F32 | None = None
) -> F32:
    """RMSNorm or LayerNorm over the last axis, times weight, plus bias."""
    y = x.astype(np.float64)
    if kind == "layer":
        y = y - y.mean(axis=-1, keepdims=True)
    y = y / np.sqrt((y * y).mean(axis=-1, keepdims=True) + eps)
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    out: F32 = y.astype(np.float32)
    return out


def quantize(x: F32, bits: int = 16) -> tuple[NDArray[np.int32], F32, F32]:
    """Rows as integers with one scale per 32 values; also scale * sum(q) of each group.

    bits: 8 (q from -127 to 127) or 16 (from -127 * 254 to 127 * 254).

    x: [rows, k] -> q [rows, k_pad], scale and sum [rows, k_pad / 32]; the padding is zero.
    """
    rows, k = x.shape
    groups = -(-k // Q8_GROUP)
    padded = np.zeros((rows, groups * Q8_GROUP), np.float32)
    padded[:, :k] = x
    grouped = padded.reshape(rows, groups, Q8_GROUP)
    scale = np.abs(grouped).max(axis=-1) / np.float32(127 if bits == 8 else 127 * HIGH_STEP)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    q = np.rint(grouped * inverse[..., None]).astype(np.int32)
    sums = scale * q.sum(axis=-1, dtype=np.int32).astype(np.float32)
    return q.reshape(rows, -1), scale, sums


def dequantize(q: NDArray[np.int32], scale: F32, k: int) -> F32:
    """The first k columns of what `quantize` made."""
    x = q.reshape(*scale.shape, Q8_GROUP) * scale[..., None]
    return x.reshape(len(q), -1)[:, :k].astype(np.float32)


def linear(
    x: F32, w: F32, bias: F32 | None = None, alpha: float = 1.0, residual: F32 | None = None
) -> F32:
    """alpha * (x W^T + bias) + residual;  x: [rows, k], w: [n, k]."""
    y = x.astype(np.float64) @ w.astype(np.float64).T
    y = y if bias is None else y + bias
    y = alpha * y
    y = y if residual is None else y + residual
    out: F32 = y.astype(np.float32)
    return out


def rope(x: F32, positions: I32, cos_sin: F32, rot_dim: int, interleaved: bool = False) -> F32:
    """Rotates the first `rot_dim` values of each head; x: [tokens, heads, head_dim]."""
    half = rot_dim // 2
    cos = cos_sin[positions, None, :half]
    sin = cos_sin[positions, None, half:]
    first, second = slice(0, half), slice(half, rot_dim)
    if interleaved:
        first, second = slice(0, rot_dim, 2), slice(1, rot_dim, 2)
    out: F32 = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def qk_normed(x: F32, qk_norm: str, weight: F32 | None, eps: float) -> F32:
    """RMSNorm of each head, of the heads together, or not; x: [tokens, heads, head_dim]."""
    if qk_norm == "none":
        return x
    if qk_norm == "per_head":
        return norm(x, kind="rms", eps=eps, weight=weight)
    return norm(x.reshape(len(x), -1), kind="rms", eps=eps, weight=weight).reshape(x.shape)


def rope_cache(
    qkv: F32,
    positions: I32,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    qk_norm: str = "none",
    q_norm: F32 | None = None,
    k_norm: F32 | None = None,
    eps: float = 0.0,
    cos_sin: F32 | None = None,
    rot_dim: int = 0,
    interleaved: bool = False,
) -> tuple[F32, F32, F32]:
    """q, k, v as [tokens, heads, head_dim], q and k normed and rotated."""
    heads = qkv.reshape(len(qkv), num_heads + 2 * num_kv_heads, head_dim)
    q, k, v = np.split(heads, [num_heads, num_heads + num_kv_heads], axis=1)
    q = qk_normed(q, qk_norm, q_norm, eps)
    k = qk_normed(k, qk_norm, k_norm, eps)
    if cos_sin is not None:
        q = rope(q, positions, cos_sin, rot_dim, interleaved)
        k = rope(k, positions, cos_sin, rot_dim, interleaved)
    return q, k, v


def write_cache(
    k: F32, v: F32, slot_mapping: I64, k_cache: NDArray[np.floating], v_cache: NDArray[np.floating]
) -> None:
    """Stores k and v [tokens, kv heads, head_dim] at their slots.

    k_cache: [blocks, kv heads, head_dim, block_size]; v_cache: [.., block_size, head_dim].
    """
    block, offset = np.divmod(slot_mapping, k_cache.shape[3])
    k_cache[block, :, :, offset] = k
    v_cache[block, :, offset, :] = v


def attention(
    q: F32,
    k: F32,
    v: F32,
    positions: I32,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    sinks: F32 | None = None,
) -> F32:
    """One sequence: queries at `positions` over keys 0 .. len(k) - 1.

    q: [queries, heads, head_dim], k and v: [keys, kv heads, head_dim] -> like q. A query sees keys
    up to its own position, with a window only the last `window` of them.
    """
    group = q.shape[1] // k.shape[1]
    keys = np.repeat(k, group, axis=1).astype(np.float64)
    values = np.repeat(v, group, axis=1).astype(np.float64)
    scores = np.einsum("qhd,khd->hqk", q.astype(np.float64), keys) * scale
    if softcap > 0:
        scores = softcap * np.tanh(scores / softcap)
    distance = positions[:, None] - np.arange(len(k))[None, :]
    visible = (distance >= 0) & ((distance < window) if window > 0 else True)
    scores = np.where(visible, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    extra = 0.0
    if sinks is not None:
        top = np.maximum(top, sinks[:, None, None])
        extra = np.exp(sinks[:, None, None] - top)
    weights = np.exp(scores - top)
    weights /= weights.sum(axis=-1, keepdims=True) + extra
    out: F32 = np.einsum("hqk,khd->qhd", weights, values).astype(np.float32)
    return out


def read_cache(
    k_cache: NDArray[np.floating], v_cache: NDArray[np.floating], block_table: I32, seq_len: int
) -> tuple[F32, F32]:
    """The keys and values of one sequence, [seq_len, kv heads, head_dim] each."""
    k = k_cache[block_table].transpose(0, 3, 1, 2)
    v = v_cache[block_table].transpose(0, 2, 1, 3)
    flat = (-1, k.shape[2], k.shape[3])
    return (
        k.reshape(flat)[:seq_len].astype(np.float32),
        v.reshape(flat)[:seq_len].astype(np.float32),
    )


def act(x: F32, *, act: str, gated: bool = False) -> F32:
    """An activation; gated: of the first half of the columns, times the second half."""
    size = x.shape[-1] // 2 if gated else x.shape[-1]
    y = x[..., :size].astype(np.float64)
    y = _ACTIVATIONS[act](y)
    y = y * x[..., size:] if gated else y
    out: F32 = y.astype(np.float32)
    return out


def add(a: F32, b: F32, alpha: float = 1.0) -> F32:
    """a + alpha * b."""
    total: F32 = a + np.float32(alpha) * b
    return total


def gather(x: F32, logits_indices: I32) -> F32:
    """The rows whose logits are wanted."""
    rows: F32 = x[logits_indices]
    return rows


def logits(x: F32, scale: float = 1.0, softcap: float = 0.0) -> F32:
    """Scaled logits, squeezed into (-softcap, softcap) if it is set."""
    y = x.astype(np.float64) * scale
    y = softcap * np.tanh(y / softcap) if softcap > 0 else y
    out: F32 = y.astype(np.float32)
    return out


_erf = np.vectorize(math.erf, otypes=[np.float64])

_ACTIVATIONS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.square(np.maximum(x, 0)),
}
