"""What each sampling function computes, in numpy: to be read, and to test against.

In-place functions of the native module return the new logits here.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
U32 = 0xFFFFFFFF


def rows_of(offsets: I64, *values: NDArray[Any]) -> list[tuple[NDArray[Any], ...]]:
    """The slices that each row owns of ragged arrays."""
    return [tuple(value[start:end] for value in values) for start, end in pairwise(offsets)]


def argmax(logits: F32) -> I32:
    """The lowest id of the largest logit; -1 where the row has no finite largest value."""
    best = np.argmax(logits, axis=-1).astype(np.int32)
    top = logits.max(axis=-1)
    tokens: I32 = np.where(np.isfinite(top), best, np.int32(-1))
    return tokens


def mask_allowed(logits: F32, offsets: I64, ids: I32) -> F32:
    """-inf everywhere but at the ids of the row; a row without ids is unrestricted."""
    out: F32 = logits.copy()
    for row, (allowed,) in zip(out, rows_of(offsets, ids), strict=True):
        if len(allowed):
            keep = np.zeros(len(row), bool)
            keep[allowed] = True
            row[~keep] = -np.inf
    return out


def mask_banned(logits: F32, offsets: I64, ids: I32) -> F32:
    """-inf at the ids of the row."""
    out: F32 = logits.copy()
    for row, (banned,) in zip(out, rows_of(offsets, ids), strict=True):
        row[banned] = -np.inf
    return out


def apply_bitmask(logits: F32, rows: I32, bitmask: I32) -> F32:
    """Row rows[n] keeps token i if bit i % 32 of bitmask[n, i // 32] is set."""
    out: F32 = logits.copy()
    token = np.arange(logits.shape[1])
    for row, words in zip(rows, bitmask, strict=True):
        kept = (words.view(np.uint32)[token // 32] >> (token % 32).astype(np.uint32)) & 1
        out[row, kept == 0] = -np.inf
    return out


def add_bias(logits: F32, offsets: I64, ids: I32, values: F32) -> F32:
    """Adds a value to the logit of each id."""
    out: F32 = logits.copy()
    for row, (tokens, bias) in zip(out, rows_of(offsets, ids, values), strict=True):
        np.add.at(row, tokens, bias)
    return out


def apply_penalties(
    logits: F32,
    repetition: F32,
    frequency: F32,
    presence: F32,
    prompt_offsets: I64,
    prompt_ids: I32,
    output_offsets: I64,
    output_ids: I32,
) -> F32:
    """Repetition over prompt and output tokens, then frequency and presence over output tokens."""
    out: F32 = logits.copy()
    prompts, outputs = rows_of(prompt_offsets, prompt_ids), rows_of(output_offsets, output_ids)
    for r, row in enumerate(out):
        counts = np.bincount(outputs[r][0], minlength=len(row)).astype(np.float32)
        seen = counts > 0
        seen[prompts[r][0]] = True
        penalised = np.where(row > 0, row / repetition[r], row * repetition[r])
        row[:] = np.where(seen, penalised, row)
        row -= frequency[r] * counts
        row -= presence[r] * (counts > 0)
    return out


def process_logits(
    logits: F32,
    temperature: F32,
    top_k: I32 | None = None,
    top_p: F32 | None = None,
    min_p: F32 | None = None,
) -> F32:
    """Temperature, then min_p, top_k and top_p: removed tokens become -inf."""
    out: F32 = logits.copy()
    for r, row in enumerate(out):
        if temperature[r] == 0:
            continue
        row /= temperature[r]
        if min_p is not None and min_p[r] > 0:
            row[row < row.max() + np.log(min_p[r])] = -np.inf
        if top_k is not None and 0 < top_k[r] < len(row):
            row[row < np.sort(row)[-top_k[r]]] = -np.inf
        if top_p is not None and top_p[r] < 1:
            row[~_nucleus(row, float(top_p[r]))] = -np.inf
    return out


def _nucleus(row: F32, top_p: float) -> NDArray[np.bool_]:
    """The fewest most probable tokens with a mass of at least top_p; equal ones by id."""
    weights = np.exp(row.astype(np.float64) - row.max())
    order = np.argsort(-row, kind="stable")
    mass = np.cumsum(weights[order])
    needed = int(np.searchsorted(mass, top_p * weights.sum())) + 1
    keep = np.zeros(len(row), bool)
    keep[order[:needed]] = True
    return keep


def sample(
    logits: F32,
    temperature: F32,
    top_k: I32 | None,
    top_p: F32 | None,
    min_p: F32 | None,
    seeds: I64,
    positions: I64,
) -> I32:
    """Draws by inverse CDF in the order of token ids; greedy where temperature is 0."""
    processed = process_logits(logits, temperature, top_k, top_p, min_p)
    tokens = argmax(logits)
    uniforms = philox_uniform(seeds, positions)
    for r, row in enumerate(processed):
        if temperature[r] == 0 or tokens[r] < 0:
            continue
        mass = np.cumsum(np.exp(row.astype(np.float64) - row.max()))
        tokens[r] = np.searchsorted(mass, uniforms[r] * mass[-1], side="right")
    return tokens


def log_softmax(logits: F32) -> F32:
    """Over the last axis."""
    x = logits.astype(np.float64)
    top = x.max(axis=-1, keepdims=True)
    total = np.log(np.exp(x - top).sum(axis=-1, keepdims=True))
    values: F32 = (x - top - total).astype(np.float32)
    return values


def logprobs(logits: F32, token_ids: I32, top_n: int) -> tuple[F32, I32, I32, F32]:
    """Log-softmax and rank of one token per row, and the best `top_n`, ties by id."""
    rows = np.arange(len(logits))
    values = log_softmax(logits)
    chosen = logits[rows, token_ids]
    ranks = (logits >= chosen[:, None]).sum(axis=-1).astype(np.int32)
    best = np.argsort(-logits, axis=-1, kind="stable")[:, :top_n].astype(np.int32)
    return values[rows, token_ids], ranks, best, np.take_along_axis(values, best, axis=-1)


def token_logprobs(logits: F32, offsets: I64, ids: I32) -> tuple[F32, I32]:
    """Log-softmax and rank of the given ids of each row."""
    values = log_softmax(logits)
    out, ranks = [], []
    for r, (tokens,) in enumerate(rows_of(offsets, ids)):
        out.append(values[r, tokens])
        ranks.append((logits[r][None, :] >= logits[r, tokens][:, None]).sum(axis=-1))
    return np.concatenate(out).astype(np.float32), np.concatenate(ranks).astype(np.int32)


def philox4x32(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Ten rounds of Philox (Salmon et al., SC 2011): 128 random bits of a counter and a key."""
    (x0, x1, x2, x3), (k0, k1) = counter, key
    for _ in range(10):
        first, second = PHILOX_MULTIPLIERS[0] * x0, PHILOX_MULTIPLIERS[1] * x2
        x0, x1, x2, x3 = (
            (second >> 32) ^ x1 ^ k0,
            second & U32,
            (first >> 32) ^ x3 ^ k1,
            first & U32,
        )
        k0, k1 = (k0 + PHILOX_WEYL[0]) & U32, (k1 + PHILOX_WEYL[1]) & U32
    return x0, x1, x2, x3


def philox_uniform(seeds: I64, positions: I64) -> NDArray[np.float64]:
    """One number of 53 bits in [0, 1) for each (seed, position)."""
    out = np.empty(len(seeds))
    for i, (seed, position) in enumerate(zip(seeds.tolist(), positions.tolist(), strict=True)):
        counter = (position & U32, (position >> 32) & U32, 0, 0)
        bits = philox4x32(counter, (seed & U32, (seed >> 32) & U32))
        out[i] = ((bits[0] >> 5) * 2.0**26 + (bits[1] >> 6)) * 2.0**-53
    return out
