"""What each row of the logits asks of the sampler, as columns.

SamplingColumns holds the parameters of every row of the batch; `select` makes the SamplingMetadata
of the rows that sample in a step. None in a column means that nobody asked: the step is skipped.
The part that does not change from step to step is made again only when other rows sample.
"""

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vllm.v1.messages import NewRequestData

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Ragged:
    """Token ids of each row: row r owns ids[offsets[r] : offsets[r + 1]], and so for values."""

    offsets: I64
    ids: I32
    values: F32

    @staticmethod
    def of(rows: "list[I32]", values: "list[F32] | None" = None) -> "Ragged":
        """From one array per row."""
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(ids) for ids in rows], out=offsets[1:])
        return Ragged(
            offsets,
            np.concatenate(rows).astype(np.int32, copy=False),
            np.concatenate(values) if values is not None else _NO_VALUES,
        )


@dataclass(frozen=True, slots=True)
class Penalties:
    """Strengths per row and the tokens that they look at."""

    repetition: F32
    frequency: F32
    presence: F32
    prompt: Ragged
    output: Ragged


@dataclass(frozen=True, slots=True)
class LogprobsRequest:
    """Which rows want logprobs: `num_top` best ones each, or those of `listed` ids."""

    rows: I64
    num_top: list[int]
    listed: "list[I32 | None]"


@dataclass(slots=True)
class SamplingMetadata:
    """One step's rows. `positions` is how many tokens each has generated so far."""

    slots: I64
    positions: I64
    temperature: F32 | None = None
    top_k: I32 | None = None
    top_p: F32 | None = None
    min_p: F32 | None = None
    seeds: I64 | None = None
    allowed: Ragged | None = None
    bias: Ragged | None = None
    banned: Ragged | None = None
    penalties: Penalties | None = None
    logprobs: LogprobsRequest | None = None

    @property
    def all_greedy(self) -> bool:
        """True if no row draws."""
        return self.temperature is None


@dataclass(slots=True)
class _Special:
    """What few requests ask for."""

    allowed: I32
    bias_ids: I32
    bias: F32
    bad_words: list[list[int]]
    min_tokens: int
    stop_ids: I32
    num_logprobs: int | None
    listed_logprobs: I32 | None
    has_penalties: bool
    has_repetition: bool


@dataclass(slots=True)
class _Selection:
    """The step-independent part for one set of rows."""

    slots: I64
    base: SamplingMetadata
    special: list[_Special | None] = field(default_factory=list)
    has_bans: bool = False
    has_penalties: bool = False


class SamplingColumns:
    """Sampling parameters by row of the batch."""

    def __init__(self, max_num_seqs: int) -> None:
        self.temperature: F32 = np.zeros(max_num_seqs, np.float32)
        self.top_k: I32 = np.zeros(max_num_seqs, np.int32)
        self.top_p: F32 = np.ones(max_num_seqs, np.float32)
        self.min_p: F32 = np.zeros(max_num_seqs, np.float32)
        self.seeds: I64 = np.zeros(max_num_seqs, np.int64)
        self.penalties: F32 = np.tile(np.array([1, 0, 0], np.float32), (max_num_seqs, 1))
        self._special: dict[int, _Special] = {}
        self._selection: _Selection | None = None

    def add(self, row: int, request: NewRequestData) -> None:
        """Write a request's parameters into its row."""
        params = request.sampling_params
        self.temperature[row] = params.temperature
        self.top_k[row] = params.top_k
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.seeds[row] = np.uint64(request.seed).astype(np.int64)
        self.penalties[row] = (
            params.repetition_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        )
        special = _read_special(request)
        if special is not None:
            self._special[row] = special
        self._selection = None

    def remove(self, row: int) -> None:
        """Back to neutral values: nothing of the request may reach the next one."""
        self.temperature[row] = 0.0
        self.top_k[row] = 0
        self.top_p[row] = 1.0
        self.min_p[row] = 0.0
        self.seeds[row] = 0
        self.penalties[row] = (1.0, 0.0, 0.0)
        self._special.pop(row, None)
        self._selection = None

    def select(
        self, slots: I64, token_ids: I32, num_tokens: I32, num_prompt_tokens: I32
    ) -> SamplingMetadata:
        """The metadata of a step in which the requests in `slots` sample, in this order.

        `token_ids` [rows, tokens] is the batch's; the counts are those of the selected rows.
        """
        selection = self._selection
        if selection is None or not np.array_equal(selection.slots, slots):
            selection = self._selection = self._make_selection(slots)
        metadata = selection.base
        metadata.positions = (num_tokens - num_prompt_tokens).astype(np.int64)
        if selection.has_bans:
            metadata.banned = _bans(selection.special, slots, token_ids, num_tokens, metadata)
        if selection.has_penalties:
            metadata.penalties = self._penalties(
                selection, token_ids, num_tokens, num_prompt_tokens
            )
        return metadata

    def _make_selection(self, slots: I64) -> _Selection:
        base = SamplingMetadata(slots=slots, positions=slots)
        temperature = self.temperature[slots]
        if temperature.any():
            base.temperature, base.seeds = temperature, self.seeds[slots]
            base.top_k = _unless_all(self.top_k[slots], 0)
            base.top_p = _unless_all(self.top_p[slots], 1.0)
            base.min_p = _unless_all(self.min_p[slots], 0.0)
        selection = _Selection(slots, base)
        if not self._special:
            return selection
        special = [self._special.get(slot) for slot in slots.tolist()]
        given = [one for one in special if one is not None]
        selection.special = special
        selection.has_bans = any(one.bad_words or one.min_tokens for one in given)
        selection.has_penalties = any(one.has_penalties for one in given)
        if any(len(one.allowed) for one in given):
            base.allowed = Ragged.of([_NO_IDS if one is None else one.allowed for one in special])
        if any(len(one.bias) for one in given):
            base.bias = Ragged.of(
                [_NO_IDS if one is None else one.bias_ids for one in special],
                [_NO_VALUES if one is None else one.bias for one in special],
            )
        base.logprobs = _logprobs_request(special)
        return selection

    def _penalties(
        self, selection: _Selection, token_ids: I32, num_tokens: I32, num_prompt_tokens: I32
    ) -> Penalties:
        prompts, outputs = [], []
        lengths = zip(
            selection.slots.tolist(), num_tokens.tolist(), num_prompt_tokens.tolist(), strict=True
        )
        for one, (slot, end, start) in zip(selection.special, lengths, strict=True):
            is_used = one is not None and one.has_penalties
            needs_prompt = one is not None and one.has_repetition
            prompts.append(token_ids[slot, :start] if needs_prompt else _NO_IDS)
            outputs.append(token_ids[slot, start:end] if is_used else _NO_IDS)
        columns = self.penalties[selection.slots]
        repetition, frequency, presence = (np.ascontiguousarray(c) for c in columns.T)
        return Penalties(
            repetition, frequency, presence, Ragged.of(prompts), Ragged.of(outputs)
        )


_NO_IDS: I32 = np.zeros(0, np.int32)
_NO_VALUES: F32 = np.zeros(0, np.float32)


def _read_special(request: NewRequestData) -> _Special | None:
    params = request.sampling_params
    bias = params.logit_bias or {}
    stop_ids = {*(params.stop_token_ids or ())}
    if not params.ignore_eos:
        stop_ids.update(request.eos_token_ids)
    listed = params.logprob_token_ids
    has_repetition = params.repetition_penalty != 1.0
    special = _Special(
        allowed=np.array(sorted(set(params.allowed_token_ids or ())), np.int32),
        bias_ids=np.array(list(bias), np.int32),
        bias=np.array(list(bias.values()), np.float32),
        bad_words=params.bad_words_token_ids or [],
        min_tokens=params.min_tokens if stop_ids else 0,
        stop_ids=np.array(sorted(stop_ids), np.int32),
        num_logprobs=0 if params.logprobs is None and listed is not None else params.logprobs,
        listed_logprobs=None if listed is None else np.array(listed, np.int32),
        has_repetition=has_repetition,
        has_penalties=has_repetition
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0,
    )
    is_plain = not (
        len(special.allowed)
        or bias
        or special.bad_words
        or special.min_tokens
        or special.num_logprobs is not None
        or special.has_penalties
    )
    return None if is_plain else special


def _unless_all(column: "NDArray[Number]", neutral: float) -> "NDArray[Number] | None":
    return None if (column == neutral).all() else column


def _bans(
    special: "list[_Special | None]",
    slots: I64,
    token_ids: I32,
    num_tokens: I32,
    metadata: SamplingMetadata,
) -> Ragged | None:
    """Tokens that would complete a bad word, and tokens that would end a row too early."""
    rows = []
    state = zip(slots.tolist(), num_tokens.tolist(), metadata.positions.tolist(), strict=True)
    for one, (slot, end, num_generated) in zip(special, state, strict=True):
        banned = _NO_IDS
        if one is not None and num_generated < one.min_tokens:
            banned = one.stop_ids
        if one is not None and one.bad_words:
            output = token_ids[slot, end - num_generated : end]
            last = _ends_of_bad_words(one.bad_words, output)
            banned = np.concatenate([banned, np.array(last, np.int32)])
        rows.append(banned)
    return Ragged.of(rows) if any(map(len, rows)) else None


def _ends_of_bad_words(bad_words: list[list[int]], output: I32) -> list[int]:
    """Last token of each bad word whose other tokens end the output."""
    longest = max(map(len, bad_words)) - 1
    tail = output[len(output) - min(longest, len(output)) :].tolist()
    return [
        word[-1]
        for word in bad_words
        if len(word) == 1 or (len(word) - 1 <= len(tail) and tail[1 - len(word) :] == word[:-1])
    ]


def _logprobs_request(special: "list[_Special | None]") -> LogprobsRequest | None:
    asked = [
        (row, one.num_logprobs, one.listed_logprobs)
        for row, one in enumerate(special)
        if one is not None and one.num_logprobs is not None
    ]
    if not asked:
        return None
    rows, num_top, listed = zip(*asked, strict=True)
    return LogprobsRequest(np.array(rows, np.int64), list(num_top), list(listed))
