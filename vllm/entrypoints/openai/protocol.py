"""What clients may send. A field's type is its validation; `null` always means "not given".

Fields of features that are not there yet are listed in UNSUPPORTED with the values that change
nothing: any other value is refused by name, so nothing is accepted and ignored. Fields that are in
no list are unknown and skipped, as clients of many servers send extra ones.
"""

from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from vllm.exceptions import VLLMValidationError

TokenIds = list[int]


class StreamOptions(msgspec.Struct):
    """What a stream tells beside the tokens."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(msgspec.Struct, kw_only=True):
    """What chat and completion requests have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stop_token_ids: TokenIds | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: TokenIds | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: TokenIds | None = None
    stream_interval: int | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_prompt_text: bool | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    user: str | None = None

    # Refused unless neutral; see UNSUPPORTED.
    use_beam_search: Any = None
    length_penalty: Any = None
    best_of: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_decoding_backend: Any = None
    guided_whitespace_pattern: Any = None
    lora_request: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    repetition_detection: Any = None
    thinking_token_budget: Any = None
    routed_experts_prompt_start: Any = None
    prompt_embeds: Any = None
    mm_processor_kwargs: Any = None
    media_io_kwargs: Any = None


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    """POST /v1/chat/completions. Messages are checked where they are rendered."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, str]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )

    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: Any = None
    include_reasoning: Any = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | TokenIds] | None = None
    max_tokens: int | UnsetType | None = UNSET
    logprobs: int | None = None
    suffix: str | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize: a text, or messages as a chat request takes them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    tools: Any = None
    mm_processor_kwargs: Any = None
    media_io_kwargs: Any = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    tokens: TokenIds
    model: str | None = None


UNSUPPORTED: dict[str, tuple[str, tuple[Any, ...]]] = {
    # field: (what it belongs to, values besides null that change nothing)
    "use_beam_search": ("beam search", (False,)),
    "length_penalty": ("beam search", (1.0,)),
    "best_of": ("best_of", (1,)),
    "response_format": ("structured outputs", ({"type": "text"},)),
    "structured_outputs": ("structured outputs", ({},)),
    "guided_json": ("structured outputs", ()),
    "guided_regex": ("structured outputs", ()),
    "guided_choice": ("structured outputs", ()),
    "guided_grammar": ("structured outputs", ()),
    "guided_decoding_backend": ("structured outputs", ()),
    "guided_whitespace_pattern": ("structured outputs", ()),
    "tools": ("tool calling", ([],)),
    "tool_choice": ("tool calling", ("none",)),
    "functions": ("tool calling", ([],)),
    "function_call": ("tool calling", ("none",)),
    "lora_request": ("LoRA adapters", ()),
    "kv_transfer_params": ("KV transfer", ({},)),
    "ec_transfer_params": ("KV transfer", ({},)),
    "repetition_detection": ("repetition detection", ()),
    "thinking_token_budget": ("reasoning", (-1,)),
    "include_reasoning": ("reasoning", (True, False)),
    "routed_experts_prompt_start": ("expert routing", ()),
    "prompt_embeds": ("prompt embeddings", ()),
    "mm_processor_kwargs": ("multimodal input", ({},)),
    "media_io_kwargs": ("multimodal input", ({},)),
    "audio": ("audio output", ()),
    "modalities": ("audio output", (["text"],)),
}


@lru_cache
def _unsupported_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(name for name in kind.__struct_fields__ if name in UNSUPPORTED)


def refuse_unsupported(request: msgspec.Struct) -> None:
    """Raise VLLMValidationError for the first field whose feature does not exist."""
    for name in _unsupported_fields(type(request)):
        value = getattr(request, name)
        if value is None:
            continue
        feature, neutral = UNSUPPORTED[name]
        if not any(type(value) is type(other) and value == other for other in neutral):
            raise VLLMValidationError(
                f"{name} is not supported: this server has no {feature} yet.", param=name
            )
