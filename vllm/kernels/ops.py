"""The only door to compiled kernels: every op by name, with its readable numpy reference.

A step op runs as part of a `Program`; a sampling op is a function of its own. `native` documents
the arguments of both. References that have an in-place counterpart return the result instead.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm.kernels import native, reference, reference_sampling
from vllm.kernels.native import (
    Program,
    Weight,
    add_bias,
    apply_bitmask,
    apply_penalties,
    argmax,
    isa,
    isa_report,
    isas,
    logprobs,
    mask_allowed,
    mask_banned,
    num_threads,
    philox4x32,
    philox_uniform,
    process_logits,
    row_bytes,
    sample,
    set_isa,
    set_num_threads,
    source_row_bytes,
    token_logprobs,
)

__all__ = [
    "OPS",
    "Op",
    "Program",
    "Weight",
    "add_bias",
    "apply_bitmask",
    "apply_penalties",
    "argmax",
    "isa",
    "isa_report",
    "isas",
    "logprobs",
    "mask_allowed",
    "mask_banned",
    "num_threads",
    "philox4x32",
    "philox_uniform",
    "process_logits",
    "row_bytes",
    "sample",
    "set_isa",
    "set_num_threads",
    "source_row_bytes",
    "token_logprobs",
]


@dataclass(frozen=True)
class Op:
    """What computes an op: a native function, or None for an op of the step program."""

    reference: Callable[..., Any]
    native: Callable[..., Any] | None = None


OPS = {
    # Ops of the step program: Program.add(name, args).
    "embedding": Op(reference.embedding),
    "norm": Op(reference.norm),
    "quantize": Op(reference.quantize),
    "linear": Op(reference.linear),
    "rope_cache": Op(reference.rope_cache),
    "attention": Op(reference.attention),
    "act": Op(reference.act),
    "add": Op(reference.add),
    "gather": Op(reference.gather),
    "logits": Op(reference.logits),
    # Functions over logits.
    "argmax": Op(reference_sampling.argmax, native.argmax),
    "mask_allowed": Op(reference_sampling.mask_allowed, native.mask_allowed),
    "mask_banned": Op(reference_sampling.mask_banned, native.mask_banned),
    "apply_bitmask": Op(reference_sampling.apply_bitmask, native.apply_bitmask),
    "add_bias": Op(reference_sampling.add_bias, native.add_bias),
    "apply_penalties": Op(reference_sampling.apply_penalties, native.apply_penalties),
    "process_logits": Op(reference_sampling.process_logits, native.process_logits),
    "sample": Op(reference_sampling.sample, native.sample),
    "logprobs": Op(reference_sampling.logprobs, native.logprobs),
    "token_logprobs": Op(reference_sampling.token_logprobs, native.token_logprobs),
    "philox_uniform": Op(reference_sampling.philox_uniform, native.philox_uniform),
    "philox4x32": Op(reference_sampling.philox4x32, native.philox4x32),
}
