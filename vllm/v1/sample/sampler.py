"""Logits -> token ids and logprobs, in one fixed order.

 1. keep the raw logits of rows that want their logprobs
 2. allowed token ids
 3. bad words, min_tokens
 4. logit bias
 5. custom logits processors
 6. repetition, frequency and presence penalties
 7. the most probable token, or: temperature, min_p, top_k, top_p, draw
 8. gather logprobs, of the raw or of the processed logits

Each row is handled alone and draws from a generator keyed by (seed, number of tokens generated),
so a token depends on its request only, never on the batch.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vllm.kernels import ops
from vllm.v1.messages import TokenLogprobs
from vllm.v1.sample.logits_processors import CustomProcessors
from vllm.v1.sample.logprobs import LogprobsMode, gather_logprobs
from vllm.v1.sample.metadata import SamplingMetadata

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


@dataclass(slots=True)
class SamplerOutput:
    """One token per row; logprobs and errors by row. A row with an error has no valid token."""

    token_ids: I32
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


class Sampler:
    """The pipeline; holds no state of any request."""

    def __init__(self, mode: LogprobsMode, custom: CustomProcessors | None = None) -> None:
        self._mode = mode
        self._custom = custom

    def sample(self, logits: F32, metadata: SamplingMetadata) -> SamplerOutput:
        """Choose a token for each row of `logits` [rows, vocab], which this overwrites."""
        raw = self._keep_raw(logits, metadata)
        logits = self._constrain(logits, metadata)
        if metadata.penalties is not None:
            penalties = metadata.penalties
            ops.apply_penalties(
                logits,
                penalties.repetition,
                penalties.frequency,
                penalties.presence,
                penalties.prompt.offsets,
                penalties.prompt.ids,
                penalties.output.offsets,
                penalties.output.ids,
            )
        logits, temperature = self._heat(logits, metadata)
        output = SamplerOutput(_draw(logits, temperature, metadata))
        self._note_errors(output, logits)
        if metadata.logprobs is not None:
            source = raw
            if source is None:
                source = _processed(logits[metadata.logprobs.rows], temperature, metadata)
            output.logprobs = gather_logprobs(
                source, output.token_ids, metadata.logprobs, self._mode.as_logits
            )
        return output

    def _keep_raw(self, logits: F32, metadata: SamplingMetadata) -> F32 | None:
        """Copy of the rows that want raw logprobs; None if none do."""
        if metadata.logprobs is None or self._mode.is_processed:
            return None
        return logits[metadata.logprobs.rows]

    def _constrain(self, logits: F32, metadata: SamplingMetadata) -> F32:
        if metadata.allowed is not None:
            ops.mask_allowed(logits, metadata.allowed.offsets, metadata.allowed.ids)
        if metadata.banned is not None:
            ops.mask_banned(logits, metadata.banned.offsets, metadata.banned.ids)
        if metadata.bias is not None:
            bias = metadata.bias
            ops.add_bias(logits, bias.offsets, bias.ids, bias.values)
        return logits if self._custom is None else self._custom.apply(logits)

    def _heat(self, logits: F32, metadata: SamplingMetadata) -> tuple[F32, F32 | None]:
        """Processors that keep the most probable token see logits divided by the temperature."""
        temperature = metadata.temperature
        if temperature is None or self._custom is None or not self._custom.has_invariant:
            return logits, temperature
        draws = temperature > 0
        logits /= np.where(draws, temperature, np.float32(1))[:, None]
        return self._custom.apply_invariant(logits), draws.astype(np.float32)

    def _note_errors(self, output: SamplerOutput, logits: F32) -> None:
        if self._custom is not None:
            output.errors.update(self._custom.errors)
        for row in np.flatnonzero(output.token_ids < 0).tolist():
            output.errors.setdefault(row, _explain(logits[row]))
            output.token_ids[row] = 0


def _draw(logits: F32, temperature: F32 | None, metadata: SamplingMetadata) -> I32:
    if temperature is None or metadata.seeds is None:
        return ops.argmax(logits)
    return ops.sample(
        logits,
        temperature,
        metadata.top_k,
        metadata.top_p,
        metadata.min_p,
        metadata.seeds,
        metadata.positions,
    )


def _processed(rows: F32, temperature: F32 | None, metadata: SamplingMetadata) -> F32:
    """The logits that the tokens were drawn from."""
    if temperature is None or metadata.logprobs is None:
        return rows
    chosen = metadata.logprobs.rows
    ops.process_logits(
        rows,
        temperature[chosen],
        None if metadata.top_k is None else metadata.top_k[chosen],
        None if metadata.top_p is None else metadata.top_p[chosen],
        None if metadata.min_p is None else metadata.min_p[chosen],
    )
    return rows


def _explain(logits: F32) -> str:
    if np.isnan(logits).any():
        return "The model computed logits that are not numbers."
    if np.isposinf(logits).any():
        return "The model computed infinite logits."
    return "The request's parameters leave no token that may be generated."
