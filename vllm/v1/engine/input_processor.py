"""A prompt and its parameters -> EngineCoreRequest. The last place where a request can be refused.

Invariant: what leaves here fits the model: 1 to `context - 1` prompt tokens inside the vocabulary,
at least one token of room, and only token ids that the logits have.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from vllm import envs
from vllm.config.resolved import resolved
from vllm.exceptions import ConfigError, VLLMValidationError
from vllm.inputs import PromptType
from vllm.plugins import LOGITS_PROCESSORS, load_group
from vllm.sampling_params import INT64_MAX, INT64_MIN, SamplingParams
from vllm.utils.dotted import resolve_dotted
from vllm.v1.messages import EngineCoreRequest

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.transformers_utils.tokenizer import Tokenizer

SeedSource = Callable[[], int]
"""Gives the seed of a request that brings none."""

MAX_CACHE_SALT = 1024
_SEED_MASK = (1 << 64) - 1
_LONG_TEXT = 16
"""Characters per token of the context, above which a text is counted before it is encoded whole."""
_TOKENIZATION_KEYS = {"add_special_tokens", "allow_special", "truncate_prompt_tokens"}


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt of any accepted form; `token_ids` is None until it is tokenized."""

    text: str | None
    token_ids: list[int] | None
    cache_salt: str | None


class InputProcessor:
    """Checks and tokenizes; holds no state of any request."""

    def __init__(
        self,
        vllm_config: "VllmConfig",
        get_tokenizer: "Callable[[], Tokenizer | None]",
        next_seed: SeedSource,
        eos_token_ids: list[int],
    ) -> None:
        model = vllm_config.model_config
        if model.arch is None:
            raise ConfigError("the model's config was not read")
        self.context = resolved("max_model_len", model.max_model_len)
        self.vocab_size = model.arch.vocab_size
        self.max_logprobs = model.max_logprobs
        self._logprobs_limit = self.vocab_size if self.max_logprobs == -1 else self.max_logprobs
        self._by_priority = vllm_config.scheduler_config.scheduling_policy == "priority"
        self._eos_token_ids = eos_token_ids
        self._get_tokenizer = get_tokenizer
        self._next_seed = next_seed
        self._logits_processors = [
            *map(resolve_dotted, model.logits_processors or ()),
            *load_group(LOGITS_PROCESSORS).values(),
        ]

    def limit_context(self, max_request_tokens: int) -> None:
        """Learn how many tokens of one request the KV pool can hold."""
        self.context = min(self.context, max_request_tokens)

    def process(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        *,
        arrival_time: float | None = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: dict[str, str] | None = None,
    ) -> tuple[str | None, EngineCoreRequest]:
        """The prompt's text, if it has one, and the engine's request. Raises RequestError."""
        if type(priority) is not int or not INT64_MIN <= priority <= INT64_MAX:
            _fail("priority", f"priority is {priority!r:.40}; it must be an integer of 64 bits.")
        if priority and not self._by_priority:
            _fail("priority", f"priority is {priority}; it needs --scheduling-policy priority.")
        parsed = _parse_prompt(prompt)
        params = params.clone()
        _check_text("prompt", parsed.text, parsed.cache_salt, request_id)
        for field in ("stop", "bad_words"):
            _check_text(field, *getattr(params, field))
        options = _tokenization_options(tokenization_kwargs)
        truncate = options.pop("truncate_prompt_tokens", params.truncate_prompt_tokens)
        token_ids = parsed.token_ids
        if token_ids is None:
            token_ids = self._tokenize(parsed.text or "", options, truncate is not None)
        else:
            self._check_ids("prompt_token_ids", token_ids)
            token_ids = token_ids.copy()  # the caller may change its list while the request runs
        token_ids = self._truncate(token_ids, truncate, params)
        self._fit(token_ids, params)
        self._check_params(params)
        seed = self._next_seed() if params.seed is None else params.seed
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling_params=params,
            arrival_time=time.time() if arrival_time is None else arrival_time,
            eos_token_ids=[] if params.ignore_eos else self._eos_token_ids,
            seed=seed & _SEED_MASK,
            priority=priority,
            cache_salt=parsed.cache_salt,
            trace_headers=trace_headers,
        )
        return parsed.text, request

    def _tokenize(self, text: str, options: dict[str, Any], is_truncated: bool) -> list[int]:
        tokenizer = self._get_tokenizer()
        if tokenizer is None:
            _fail("prompt", "a text prompt needs a tokenizer; pass prompt_token_ids instead.")
        if not is_truncated and len(text) > self.context * tokenizer.max_chars_per_token:
            _too_long(len(text) // tokenizer.max_chars_per_token, self.context, "more than ")
        is_long = len(text) > _LONG_TEXT * self.context
        if is_long and not is_truncated and tokenizer.is_far_longer(text, self.context):
            _too_long(2 * self.context, self.context, "more than ")
        token_ids: list[int] = tokenizer.encode(text, **options)
        return token_ids

    def _truncate(self, ids: list[int], limit: int | None, params: SamplingParams) -> list[int]:
        """Keep the last `limit` tokens; -1 keeps what leaves room for the output."""
        if limit is None:
            return ids
        if limit == -1:
            limit = max(1, self.context - (params.max_tokens or 1))
        if not 1 <= limit < self.context:
            allowed = f"it must be -1, or from 1 to {self.context - 1}"
            _fail("truncate_prompt_tokens", f"truncate_prompt_tokens is {limit}; {allowed}.")
        return ids[-limit:]

    def _fit(self, token_ids: list[int], params: SamplingParams) -> None:
        """Check the length, and give `max_tokens` the room that is left.

        A request that only scores its prompt may fill the context: its one token is never fed back.
        """
        num_prompt = len(token_ids)
        if num_prompt == 0:
            _fail("prompt", "the prompt is empty; it needs at least one token.")
        scores_only = params.prompt_logprobs is not None and params.max_tokens == 1
        room = self.context - num_prompt
        if room < 1 and not (scores_only and room == 0):
            _too_long(num_prompt, self.context)
        room = max(1, room)
        params.max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        if params.min_tokens > params.max_tokens:
            _fail(
                "min_tokens",
                f"min_tokens is {params.min_tokens}; this prompt of {num_prompt} tokens leaves "
                f"room for {params.max_tokens}.",
            )

    def _check_params(self, params: SamplingParams) -> None:
        for field in ("logprobs", "prompt_logprobs"):
            self._check_num_logprobs(params, field)
        listed = params.logprob_token_ids
        if listed is not None and params.logprobs not in (None, len(listed)):
            _fail(
                "logprobs",
                f"logprobs is {params.logprobs} and logprob_token_ids has {len(listed)} ids; "
                "leave logprobs out or make them equal.",
            )
        for field in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            self._check_ids(field, getattr(params, field) or [])
        self._check_ids("logit_bias", list(params.logit_bias or ()))
        if params.stop and self._get_tokenizer() is None:
            _fail("stop", "stop strings need a tokenizer; this server runs without one.")
        if params.bad_words:
            params.bad_words_token_ids = self._spell_bad_words(params.bad_words)
        self._check_something_is_left(params)
        params.top_k = min(params.top_k, self.vocab_size)
        if params.extra_args and not self._logits_processors:
            _fail("extra_args", "extra_args is for custom logits processors; none is loaded.")
        for processor in self._logits_processors:
            _validate_extra(processor, params)

    def _check_something_is_left(self, params: SamplingParams) -> None:
        """Refuse parameters that forbid every token from the start."""
        banned = {word[0] for word in params.bad_words_token_ids or () if len(word) == 1}
        if params.min_tokens:
            banned.update(params.stop_token_ids or ())
            banned.update(() if params.ignore_eos else self._eos_token_ids)
        allowed = params.allowed_token_ids
        if allowed is None and len(banned) < self.vocab_size:
            return
        if allowed is None or banned.issuperset(allowed):
            _fail(
                "min_tokens" if allowed is None else "allowed_token_ids",
                "No token may be generated: bad_words and, while there are fewer than min_tokens, "
                "the tokens that stop forbid all those that are allowed.",
            )

    def _check_num_logprobs(self, params: SamplingParams, field: str) -> None:
        asked = getattr(params, field)
        if asked is None:
            return
        count = self.vocab_size if asked == -1 else asked
        if count > self._logprobs_limit:
            _fail(
                field,
                f"{field} is {asked}; at most {self.max_logprobs} are allowed (--max-logprobs).",
            )
        setattr(params, field, min(count, self.vocab_size))

    def _check_ids(self, field: str, ids: list[int]) -> None:
        if not ids:
            return
        if set(map(type, ids)) != {int}:
            wrong = next(token for token in ids if type(token) is not int)
            _fail(field, f"{field} holds {wrong!r:.40}; token ids are integers.")
        low, high = min(ids), max(ids)
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            _fail(field, f"{field} holds {wrong}; token ids are from 0 to {self.vocab_size - 1}.")

    def _spell_bad_words(self, words: list[str]) -> list[list[int]]:
        """Each word as the tokenizer writes it inside a text, with and without a space before."""
        tokenizer = self._get_tokenizer()
        if tokenizer is None:
            _fail("bad_words", "bad_words needs a tokenizer; this server runs without one.")
        spellings: dict[tuple[int, ...], None] = {}
        for word in words:
            for text in (word, " " + word.lstrip()):
                spelling = tokenizer.encode(text, add_special_tokens=False)
                if spelling:
                    spellings[tuple(spelling)] = None
        total = sum(map(len, spellings))
        if total > envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS:
            limit = envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS
            _fail("bad_words", f"bad_words has {total} tokens; at most {limit} are allowed.")
        result = [list(spelling) for spelling in spellings]
        self._check_ids("bad_words", [token for spelling in result for token in spelling])
        return result


def _parse_prompt(prompt: object) -> _Prompt:
    if isinstance(prompt, str):
        return _Prompt(prompt, None, None)
    if isinstance(prompt, list):
        return _Prompt(None, prompt, None)
    if not isinstance(prompt, Mapping):
        _fail("prompt", f"a prompt is a string, a list of token ids or a dict, not {prompt!r:.40}.")
    unknown = set(prompt) - {"prompt", "prompt_token_ids", "cache_salt"}
    if unknown:
        _fail("prompt", f"this model takes no {', '.join(sorted(map(str, unknown)))} in a prompt.")
    text, ids, salt = (prompt.get(key) for key in ("prompt", "prompt_token_ids", "cache_salt"))
    if text is None and ids is None:
        _fail("prompt", "a prompt dict needs prompt or prompt_token_ids.")
    if text is not None and not isinstance(text, str):
        _fail("prompt", f"prompt is {text!r:.40}; it must be a string.")
    if ids is not None and not isinstance(ids, list):
        _fail("prompt_token_ids", f"prompt_token_ids is {ids!r:.40}; it must be a list.")
    if salt is not None and not (isinstance(salt, str) and 1 <= len(salt) <= MAX_CACHE_SALT):
        _fail("cache_salt", f"cache_salt must be a string of 1 to {MAX_CACHE_SALT} characters.")
    return _Prompt(text, ids, salt)


def _tokenization_options(kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    options = dict(kwargs or {})
    unknown = options.keys() - _TOKENIZATION_KEYS
    if unknown:
        known = ", ".join(sorted(_TOKENIZATION_KEYS))
        _fail("tokenization_kwargs", f"unknown: {', '.join(sorted(unknown))}; known: {known}.")
    return options


def _validate_extra(processor: Any, params: SamplingParams) -> None:
    """A processor's own check; what it raises is the user's error."""
    try:
        processor.validate_params(params)
        msgspec.msgpack.encode(params.extra_args)
    except (ValueError, TypeError, OverflowError) as error:
        _fail("extra_args", f"extra_args can't be used: {error}")


def _check_text(param: str, *texts: str | None) -> None:
    """Lone surrogates are no characters: neither the tokenizer nor the engine can take them."""
    for text in texts:
        if text is None or text.isascii():
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            _fail(param, f"the text holds a lone surrogate at character {error.start}.")


def _too_long(num_prompt: int, context: int, about: str = "") -> NoReturn:
    raise VLLMValidationError(
        f"This model's maximum context length is {context} tokens. However, your prompt has "
        f"{about}{num_prompt} tokens, which leaves no room for output; shorten it.",
        param="prompt",
        code="context_length_exceeded",
    )


def _fail(param: str, message: str) -> NoReturn:
    raise VLLMValidationError(message, param=param)
