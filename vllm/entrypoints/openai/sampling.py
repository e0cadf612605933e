"""A request's fields -> SamplingParams. Precedence: request, server override, model, default.

The last two of the four come merged from the engine (`get_default_sampling_params`).
"""

from collections.abc import Mapping
from typing import Any

from vllm.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    refuse_unsupported,
)
from vllm.entrypoints.template_budget import words
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind, SamplingParams

MAX_LOGIT_BIAS = 1024
DEFAULT_COMPLETION_TOKENS = 16

_COPIED = words(
    "n seed stop temperature top_p top_k min_p presence_penalty frequency_penalty "
    "repetition_penalty logit_bias stop_token_ids bad_words allowed_token_ids min_tokens "
    "ignore_eos include_stop_str_in_output skip_special_tokens spaces_between_special_tokens "
    "prompt_logprobs logprob_token_ids stream_interval"
)


def chat_sampling_params(
    request: ChatCompletionRequest, defaults: Mapping[str, Any], context: int
) -> SamplingParams:
    """Parameters of a chat request. Raises VLLMValidationError."""
    _check_common(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise VLLMValidationError("top_logprobs needs logprobs to be true.", param="top_logprobs")
    if request.logprob_token_ids and not request.logprobs:
        raise VLLMValidationError(
            "logprob_token_ids needs logprobs to be true.", param="logprob_token_ids"
        )
    field = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    max_tokens = getattr(request, field)
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    try:
        return _build(request, defaults, context, max_tokens, logprobs)
    except VLLMValidationError as error:
        names = {"max_tokens": field, "logprobs": "top_logprobs"}
        raise renamed(error, names) from None


def completion_sampling_params(
    request: CompletionRequest, defaults: Mapping[str, Any], context: int
) -> SamplingParams:
    """Parameters of a completion request; with `max_tokens` 0 it scores the prompt only."""
    _check_common(request)
    if request.suffix:
        raise VLLMValidationError(
            "suffix is not supported: this model can't fill in the middle.", param="suffix"
        )
    if request.logprob_token_ids and request.logprobs is None:
        raise VLLMValidationError("logprob_token_ids needs logprobs.", param="logprob_token_ids")
    max_tokens = request.max_tokens
    if not isinstance(max_tokens, int) and max_tokens is not None:
        max_tokens = DEFAULT_COMPLETION_TOKENS
    if scores_only(request):
        max_tokens = 1
    params = _build(request, defaults, context, max_tokens, request.logprobs)
    if request.echo and request.logprobs is not None:
        wanted = params.prompt_logprobs
        params.prompt_logprobs = max(request.logprobs, wanted or 0) if wanted != -1 else -1
    if scores_only(request) and params.prompt_logprobs is None:
        params.prompt_logprobs = 0
    return params


def scores_only(request: CompletionRequest) -> bool:
    """True if no token is asked for."""
    return request.max_tokens == 0


def renamed(error: VLLMValidationError, names: Mapping[str, str]) -> VLLMValidationError:
    """The error under the name that the request's field has."""
    name = names.get(error.param or "")
    if name is None or name == error.param:
        return error
    message = error.message
    if message.startswith(f"{error.param} "):
        message = name + message[len(error.param or "") :]
    return VLLMValidationError(message, param=name, code=error.code)


def _check_common(request: GenerationRequest) -> None:
    refuse_unsupported(request)
    if request.stream_options is not None and not request.stream:
        raise VLLMValidationError("stream_options needs stream to be true.", param="stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise VLLMValidationError(
            "prompt_logprobs can't be streamed; leave out stream.", param="prompt_logprobs"
        )
    if request.truncation_side == "right" and request.truncate_prompt_tokens is not None:
        raise VLLMValidationError(
            "truncation_side 'right' is not supported; prompts are cut on the left.",
            param="truncation_side",
        )
    if request.logit_bias is not None and len(request.logit_bias) > MAX_LOGIT_BIAS:
        raise VLLMValidationError(
            f"logit_bias has {len(request.logit_bias)} entries; at most {MAX_LOGIT_BIAS} may be.",
            param="logit_bias",
        )


def _build(
    request: GenerationRequest,
    defaults: Mapping[str, Any],
    context: int,
    max_tokens: int | None,
    logprobs: int | None,
) -> SamplingParams:
    if max_tokens is not None and max_tokens > context:
        raise VLLMValidationError(
            f"max_tokens is {max_tokens}; this model's maximum context length is {context} tokens.",
            param="max_tokens",
            code="context_length_exceeded",
        )
    values = dict(defaults)
    if (request.n or 1) > 1 and values.get("temperature") == 0:
        del values["temperature"]   # several answers were asked for: a greedy default can't hold
    values.update(
        {name: value for name in _COPIED if (value := getattr(request, name)) is not None}
    )
    cap = defaults.get("max_tokens")
    values["max_tokens"] = max_tokens if cap is None else min(cap, max_tokens or cap)
    if max_tokens == 0:
        values["max_tokens"] = 0
    if logprobs is not None and not request.logprob_token_ids:
        values["logprobs"] = logprobs
    if request.vllm_xargs:
        values["extra_args"] = request.vllm_xargs
    kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    return SamplingParams(**values, output_kind=kind)
