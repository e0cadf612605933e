"""rope_cache: norms and rotates q and k in place, and writes k and v to their slots."""

from typing import Any

import numpy as np
import pytest

from tests.kernels.paged import from_bf16, stored
from tests.kernels.programs import step
from vllm.kernels import native, reference
from vllm.kernels.native import Program

BLOCK, BLOCKS = 16, 8


def tables(rot_dim: int, positions: int = 100) -> np.ndarray:
    angle = np.arange(positions)[:, None] / 10000 ** (np.arange(rot_dim // 2) / (rot_dim // 2))
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


def run(
    qkv: np.ndarray, positions: np.ndarray, slots: np.ndarray, kv_kind: str, **args: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """qkv after the op, and the K and V caches as float32 (bf16 widened)."""
    tokens = len(qkv)
    program = Program(tokens, 1, 1)
    buffer = program.buffer("tokens", qkv.shape[1])
    args = {k: program.const(v) if isinstance(v, np.ndarray) else v for k, v in args.items()}
    program.add("rope_cache", {"qkv": buffer, "kv_kind": kv_kind, "kv_tensor": 0, **args})
    program.bind_kv(BLOCKS, BLOCK, 1, 1)
    program.array(buffer)[:] = qkv
    table = np.arange(BLOCKS, dtype=np.int32)[None]
    program.run(step(tokens, positions=positions, slot_mapping=[slots], block_tables=[table]))
    k, v = program.kv_arrays(0)
    if kv_kind == "bf16":
        k, v = from_bf16(k), from_bf16(v)
    return program.array(buffer).copy(), k.astype(np.float32), v.astype(np.float32)


@pytest.mark.parametrize("kv_kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("qk_norm", ["none", "per_head", "full"])
@pytest.mark.parametrize(
    ("head_dim", "rot_dim", "interleaved"),
    [
        (64, 64, False),
        (64, 64, True),
        (64, 32, False),
        (40, 10, True),
        (8, 0, False),
        (72, 72, False),
    ],
)
def test_against_reference(
    isa: str, head_dim: int, rot_dim: int, interleaved: bool, qk_norm: str, kv_kind: str
) -> None:
    heads, kv_heads, tokens = 6, 2, 37
    rng = np.random.default_rng(0)
    qkv = rng.standard_normal((tokens, (heads + 2 * kv_heads) * head_dim)).astype(np.float32)
    positions = rng.integers(0, 100, tokens).astype(np.int32)
    slots = rng.permutation(BLOCK * BLOCKS)[:tokens].astype(np.int64)
    shape = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim}
    args: dict[str, Any] = {**shape, "qk_norm": qk_norm}
    if qk_norm != "none":
        q_size, k_size = (heads, kv_heads) if qk_norm == "full" else (1, 1)
        args["q_norm"] = rng.standard_normal(q_size * head_dim).astype(np.float32)
        args["k_norm"] = rng.standard_normal(k_size * head_dim).astype(np.float32)
        args["eps"] = 1e-6
    if rot_dim:
        args |= {"cos_sin": tables(rot_dim), "rot_dim": rot_dim, "interleaved": interleaved}

    out, k_cache, v_cache = run(qkv, positions, slots, kv_kind, **args)
    q, k, v = reference.rope_cache(qkv, positions, **args)
    np.testing.assert_allclose(
        out, np.concatenate([q, k, v], axis=1).reshape(tokens, -1), rtol=1e-5, atol=2e-6
    )
    # The cache holds exactly what the op left in the buffer, rounded, and nothing else.
    k_out = out.reshape(tokens, -1, head_dim)[:, heads : heads + kv_heads]
    want_k, want_v = np.zeros_like(k_cache), np.zeros_like(v_cache)
    reference.write_cache(stored(k_out, kv_kind), stored(v, kv_kind), slots, want_k, want_v)
    np.testing.assert_array_equal(k_cache, want_k)
    np.testing.assert_array_equal(v_cache, want_v)


@pytest.mark.parametrize("qk_norm", ["none", "per_head", "full"])
def test_tokens_do_not_depend_on_the_batch_or_threads(isa: str, qk_norm: str) -> None:
    rng = np.random.default_rng(0)
    qkv = rng.standard_normal((9, 8 * 32)).astype(np.float32)
    positions, slots = np.arange(9, dtype=np.int32), np.arange(9, dtype=np.int64)
    args: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "qk_norm": qk_norm}
    if qk_norm != "none":
        q_size, k_size = (128, 64) if qk_norm == "full" else (32, 32)
        args |= {"q_norm": np.ones(q_size, np.float32), "k_norm": np.ones(k_size, np.float32)}
        args["eps"] = 1e-6
    args |= {"cos_sin": tables(32), "rot_dim": 32}
    alone = [
        run(qkv[i : i + 1], positions[i : i + 1], slots[i : i + 1], "f16", **args) for i in range(9)
    ]
    native.set_num_threads(2)
    out, k_cache, _ = run(qkv, positions, slots, "f16", **args)
    for i in range(9):
        np.testing.assert_array_equal(out[i], alone[i][0][0])
        np.testing.assert_array_equal(k_cache[0, :, :, i], alone[i][1][0, :, :, i])


def test_half_cache_stays_finite(isa: str) -> None:
    qkv = np.full((1, 3 * 8), 1e6, np.float32)
    qkv[0, 8] = -1e6
    shape = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 8}
    _, k_cache, v_cache = run(qkv, np.zeros(1, np.int32), np.zeros(1, np.int64), "f16", **shape)
    assert k_cache[0, 0, 0, 0] == -65504
    assert (k_cache[0, 0, 1:, 0] == 65504).all()
    assert (v_cache[0, 0, 0] == 65504).all()
