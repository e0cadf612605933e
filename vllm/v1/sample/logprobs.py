"""Logprobs of chosen and best tokens, for output and for prompt positions."""

from enum import Enum

import numpy as np
from numpy.typing import NDArray

from vllm.kernels import ops
from vllm.v1.messages import TokenLogprobs
from vllm.v1.sample.metadata import LogprobsRequest, Ragged

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


class LogprobsMode(Enum):
    """--logprobs-mode: before or after all processing, as log-probabilities or as logits."""

    RAW_LOGPROBS = "raw_logprobs"
    RAW_LOGITS = "raw_logits"
    PROCESSED_LOGPROBS = "processed_logprobs"
    PROCESSED_LOGITS = "processed_logits"

    @property
    def is_processed(self) -> bool:
        """True if temperature, masks and the rest count."""
        return self in (LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.PROCESSED_LOGITS)

    @property
    def as_logits(self) -> bool:
        """True if the values are the logits themselves."""
        return self in (LogprobsMode.RAW_LOGITS, LogprobsMode.PROCESSED_LOGITS)


def gather_logprobs(
    logits: F32, token_ids: I32, request: LogprobsRequest, as_logits: bool
) -> dict[int, TokenLogprobs]:
    """By row of the batch; `logits` has one row per row of the request."""
    chosen = np.ascontiguousarray(token_ids[request.rows])
    entries = top_logprobs(logits, chosen, max(request.num_top), as_logits)
    listed_rows = [i for i, ids in enumerate(request.listed) if ids is not None]
    for i, entry in enumerate(entries):
        num_kept = 1 + request.num_top[i]
        del entry.token_ids[num_kept:], entry.logprobs[num_kept:], entry.ranks[num_kept:]
    for i in listed_rows:
        ids = request.listed[i]
        if ids is not None:
            entries[i] = _listed(logits[i : i + 1], int(chosen[i]), ids, as_logits)
    return dict(zip(request.rows.tolist(), entries, strict=True))


def top_logprobs(
    logits: F32, token_ids: I32, num_top: int, as_logits: bool
) -> list[TokenLogprobs]:
    """Per row: the given token, then the `num_top` best ones with ranks 1, 2, ..."""
    values, ranks, top_ids, top_values = ops.logprobs(logits, token_ids, num_top)
    if as_logits:
        values = np.take_along_axis(logits, token_ids[:, None].astype(np.int64), axis=1)[:, 0]
        top_values = np.take_along_axis(logits, top_ids.astype(np.int64), axis=1)
    all_ids = np.concatenate([token_ids[:, None], top_ids], axis=1).tolist()
    all_values = np.concatenate([values[:, None], top_values], axis=1).tolist()
    top_ranks = list(range(1, num_top + 1))
    return [
        TokenLogprobs(ids, row, [rank, *top_ranks])
        for ids, row, rank in zip(all_ids, all_values, ranks.tolist(), strict=True)
    ]


def _listed(logits: F32, chosen: int, ids: I32, as_logits: bool) -> TokenLogprobs:
    """The chosen token and the ids that the user named."""
    tokens = np.concatenate([np.array([chosen], np.int32), ids])
    ragged = Ragged.of([tokens])
    values, ranks = ops.token_logprobs(logits, ragged.offsets, ragged.ids)
    if as_logits:
        values = logits[0, tokens]
    return TokenLogprobs(tokens.tolist(), values.tolist(), ranks.tolist())
