"""Programs of one op, and the inputs of a step, for tests."""

from typing import Any

import numpy as np

from vllm.kernels import native
from vllm.kernels.native import Program

# They keep 16-bit activations as two planes of bytes.
ISAS_WITH_BYTE_DOTS = ("avx512_vnni", "neon_dot")


def step(num_tokens: int, **fields: Any) -> dict[str, Any]:
    """Inputs of a step with one sequence of `num_tokens` tokens; `fields` replace some."""
    inputs: dict[str, Any] = {
        "token_ids": np.zeros(num_tokens, np.int32),
        "positions": np.arange(num_tokens, dtype=np.int32),
        "query_start": np.array([0, num_tokens], np.int32),
        "seq_lens": np.array([num_tokens], np.int32),
        "logits_indices": np.array([num_tokens - 1], np.int32),
        "slot_mapping": [],
        "block_tables": [],
    }
    return {**inputs, **fields}


def run_op(
    op: str,
    inputs: dict[str, np.ndarray],
    outputs: dict[str, tuple[int, str]],
    bits: int = 16,
    **args: Any,
) -> dict[str, np.ndarray]:
    """Runs one op on token rows: `inputs` are its buffers, `outputs` name -> (columns, dtype).

    Constants among the arguments are given as arrays.
    """
    num_tokens = len(next(iter(inputs.values())))
    program = Program(num_tokens + 2, num_tokens + 1, num_tokens, bits)
    buffers = {name: program.buffer("tokens", x.shape[1]) for name, x in inputs.items()}
    made = {name: program.buffer("tokens", *spec) for name, spec in outputs.items()}
    for name, value in args.items():
        if isinstance(value, np.ndarray):
            args[name] = program.const(value)
    program.add(op, {**buffers, **made, **args})
    for name, buffer in buffers.items():
        program.array(buffer)[:num_tokens] = inputs[name]
    program.run(step(num_tokens))
    results = {**buffers, **made}
    return {name: program.array(buffer)[:num_tokens].copy() for name, buffer in results.items()}


def unpack_q8(
    rows: np.ndarray, k: int, bits: int = 16
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integer values, scales and sums of quantised rows (the layout is in kernels.h)."""
    padded = -(-k // 32) * 32
    q = rows[:, :padded].copy().view(np.int8).astype(np.int32)
    if bits == 16 and native.isa() in ISAS_WITH_BYTE_DOTS:
        q = 254 * q + rows[:, padded : 2 * padded].copy().view(np.int8)
    elif bits == 16:
        fours = rows[:, : 2 * padded].copy().view(np.int16).reshape(len(rows), -1, 4)
        q = fours[:, :, [0, 2, 1, 3]].reshape(len(rows), padded).astype(np.int32)
    floats = rows[:, 2 * padded : 2 * padded + padded // 4].copy().view(np.float32)
    return q, floats[:, : padded // 32], floats[:, padded // 32 :]
