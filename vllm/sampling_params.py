"""How a request is sampled. Every value is checked here, once, before anything else sees it."""

import math
from collections.abc import Collection
from enum import IntEnum
from typing import Any

import msgspec

from vllm import envs
from vllm.exceptions import VLLMValidationError

GREEDY_EPS = 1e-5
"""Below this temperature sampling is greedy: dividing by it would overflow."""

MIN_TEMPERATURE = 1e-2
"""Temperatures between GREEDY_EPS and this are raised to it."""

MIN_TOP_P = 1e-9
"""A top_p below this is raised to it: both keep one token, and float32 knows no 1e-50."""

REPETITION_RANGE = (1e-6, 1e6)
"""Repetition penalties beyond are moved to these ends, so that logits stay finite as float32."""

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class RequestOutputKind(IntEnum):
    """What each RequestOutput carries: everything so far, what is new, or only the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True, dict=True):
    """Sampling parameters of one request; names, defaults and ranges as users of vLLM know them.

    Raises VLLMValidationError naming the field when a value is not allowed.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    truncate_prompt_tokens: int | None = None
    skip_reading_prefix_cache: bool | None = None
    extra_args: dict[str, Any] | None = None
    bad_words_token_ids: list[list[int]] | None = None
    """Filled by the input processor: every spelling of every bad word as token ids."""

    def __post_init__(self) -> None:
        self._normalise()
        _check_numbers(self)
        _check_tokens(self)
        _check_text(self)
        if self.temperature < GREEDY_EPS:
            if self.n > 1:
                _fail("n", self.n, "1 when sampling is greedy (temperature 0)")
            self.temperature, self.top_p, self.top_k, self.min_p = 0.0, 1.0, 0, 0.0
        elif self.temperature < MIN_TEMPERATURE:
            self.temperature = MIN_TEMPERATURE
        self.top_p = max(self.top_p, MIN_TOP_P)
        low, high = REPETITION_RANGE
        self.repetition_penalty = min(max(self.repetition_penalty, low), high)

    def _normalise(self) -> None:
        self.stop = [self.stop] if isinstance(self.stop, str) else self.stop
        for field in _LISTS:
            setattr(self, field, _list(field, getattr(self, field)))
        for field in _SWITCHES:
            if not isinstance(getattr(self, field), bool):
                _fail(field, getattr(self, field), "true or false")
        for field in ("logit_bias", "extra_args"):
            if not isinstance(getattr(self, field), (dict, type(None))):
                _fail(field, getattr(self, field), "a map, or null")
        if self.output_kind not in tuple(RequestOutputKind):
            _fail("output_kind", self.output_kind, "a RequestOutputKind")
        self.stop, self.bad_words = self.stop or [], self.bad_words or []
        for token in self.stop_token_ids or ():
            _token_id("stop_token_ids", token)
        self.stop_token_ids = list(dict.fromkeys(self.stop_token_ids or ()))
        self.logprobs = 1 if self.logprobs is True else self.logprobs
        self.prompt_logprobs = 1 if self.prompt_logprobs is True else self.prompt_logprobs
        self.seed = None if self.seed == -1 else self.seed
        self.top_k = 0 if self.top_k == -1 else self.top_k
        if self.logit_bias is not None:
            self.logit_bias = {
                _bias_key(key): _finite("logit_bias", bias)
                for key, bias in self.logit_bias.items()
            }

    @property
    def greedy(self) -> bool:
        """True if the most probable token is always taken."""
        return self.temperature == 0.0

    @staticmethod
    def from_optional(**values: Any) -> "SamplingParams":
        """Build from values of which None means 'use the default'."""
        return SamplingParams(**{key: value for key, value in values.items() if value is not None})

    def clone(self) -> "SamplingParams":
        """A deep copy."""
        return msgspec.structs.replace(
            self,
            **{
                name: value.copy()
                for name in self.__struct_fields__
                if isinstance(value := getattr(self, name), (list, dict))
            },
        )


class BeamSearchParams(msgspec.Struct, kw_only=True):
    """Parameters of beam search: `beam_width` sequences are kept at every step."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        if _int("beam_width", self.beam_width) < 1:
            _fail("beam_width", self.beam_width, "an integer of at least 1")
        if _int("max_tokens", self.max_tokens) < 1:
            _fail("max_tokens", self.max_tokens, "an integer of at least 1")
        _between("temperature", self.temperature, 0.0, math.inf)
        _finite("length_penalty", self.length_penalty)


def _fail(field: str, value: object, allowed: str, param: str | None = None) -> None:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    raise VLLMValidationError(f"{field} is {shown}; it must be {allowed}.", param=param or field)


_LISTS = ("stop", "bad_words", "stop_token_ids", "allowed_token_ids", "logprob_token_ids")
_SWITCHES = (
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
)


def _list(field: str, value: object) -> list[Any] | None:
    if value is not None and not isinstance(value, (list, tuple, set, frozenset)):
        _fail(field, value, "a list, or null")
    return None if value is None else list(value)  # type: ignore[call-overload]


def _fail_item(field: str, value: object, allowed: str) -> None:
    """One item of a list or map is at fault: say so, not that the field is this item."""
    _fail(f"an item of {field}", value, allowed, param=field)


def _at_most(field: str, values: Collection[object], limit: int) -> None:
    if len(values) > limit:
        raise VLLMValidationError(
            f"{field} has {len(values)} entries; at most {limit} may be.", param=field
        )


def _token_id(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        _fail_item(field, value, "a token id, an integer of 0 or more")
    elif value > INT64_MAX:
        _fail_item(field, value, "an integer of at most 64 bits")
    return value  # type: ignore[return-value]


def _bias_key(key: object) -> int:
    """Keys of JSON objects are text; only the usual spelling of a number counts as one."""
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20:
        number = int(key)
        if str(number) == key:
            return number
    return _token_id("logit_bias", key)


def _int(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        _fail(field, value, "an integer")
    elif not INT64_MIN <= value <= INT64_MAX:
        _fail(field, value, "an integer of at most 64 bits")
    return value  # type: ignore[return-value]


def _finite(field: str, value: object) -> float:
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            number = float(value)
            if math.isfinite(number):
                return number
    except OverflowError:  # an int that no float can hold
        pass
    _fail(field, value, "a finite number")
    return math.nan


def _between(field: str, value: object, low: float, high: float) -> None:
    if not low <= _finite(field, value) <= high:
        _fail(field, value, f"between {low:g} and {high:g}")


def _check_numbers(p: SamplingParams) -> None:
    if not 1 <= _int("n", p.n) <= envs.VLLM_MAX_N_SEQUENCES:
        _fail("n", p.n, f"an integer from 1 to {envs.VLLM_MAX_N_SEQUENCES}")
    _between("presence_penalty", p.presence_penalty, -2.0, 2.0)
    _between("frequency_penalty", p.frequency_penalty, -2.0, 2.0)
    if _finite("repetition_penalty", p.repetition_penalty) <= 0.0:
        _fail("repetition_penalty", p.repetition_penalty, "greater than 0")
    _between("temperature", p.temperature, 0.0, 2.0)
    if not 0.0 < _finite("top_p", p.top_p) <= 1.0:
        _fail("top_p", p.top_p, "greater than 0 and at most 1")
    if _int("top_k", p.top_k) < 0:
        _fail("top_k", p.top_k, "0 or -1 (off), or a positive integer")
    _between("min_p", p.min_p, 0.0, 1.0)
    if p.seed is not None:
        _int("seed", p.seed)
    if p.max_tokens is not None and _int("max_tokens", p.max_tokens) < 1:
        _fail("max_tokens", p.max_tokens, "an integer of at least 1, or null")
    if _int("min_tokens", p.min_tokens) < 0:
        _fail("min_tokens", p.min_tokens, "0 or more")
    if p.max_tokens is not None and p.min_tokens > p.max_tokens:
        _fail("min_tokens", p.min_tokens, f"at most max_tokens ({p.max_tokens})")
    for field in ("logprobs", "prompt_logprobs", "truncate_prompt_tokens"):
        value = getattr(p, field)
        if value is not None and _int(field, value) < -1:
            _fail(field, value, "-1, or 0 or more")
    if p.stream_interval is not None and _int("stream_interval", p.stream_interval) < 1:
        _fail("stream_interval", p.stream_interval, "1 or more")


def _check_tokens(p: SamplingParams) -> None:
    """Signs and counts; the upper bound (the vocabulary) is known to the input processor."""
    for field in ("allowed_token_ids", "logprob_token_ids"):
        for token in getattr(p, field) or []:
            _token_id(field, token)
    if p.allowed_token_ids is not None and not p.allowed_token_ids:
        _fail("allowed_token_ids", [], "a list of at least one token id, or null")
    _at_most("logprob_token_ids", p.logprob_token_ids or [], 128)
    for bias in (p.logit_bias or {}).values():
        if not -100.0 <= bias <= 100.0:
            _fail_item("logit_bias", bias, "between -100 and 100")


def _check_text(p: SamplingParams) -> None:
    limits = {"stop": envs.VLLM_MAX_STOP_STRINGS, "bad_words": envs.VLLM_MAX_NUM_BAD_WORDS}
    for field, limit in limits.items():
        values = getattr(p, field)
        for value in values:
            if not isinstance(value, str) or not value:
                _fail_item(field, value, "a string that is not empty")
        _at_most(field, values, limit)
    if p.stop and not p.detokenize:
        _fail("stop", p.stop, "empty when detokenize is false: stop strings need the text")
