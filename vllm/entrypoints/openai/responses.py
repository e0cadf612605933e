"""What clients get back: one struct per object of the API, encoded by msgspec.

`UNSET` fields are left out of the JSON; `None` is written as null.
"""

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct):
    """Where prompt tokens came from."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Token counts: a prompt counts once, outputs are summed over choices."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: None = None


class TopLogprob(msgspec.Struct):
    """One alternative at a position."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    """The token of one position, and its alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Logprobs of a chat choice."""

    content: list[ChatLogprob]


class PromptLogprob(msgspec.Struct):
    """One candidate of a prompt position."""

    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobList = list[dict[str, PromptLogprob] | None]


class ChatMessage(msgspec.Struct):
    """What the model said."""

    role: str
    content: str | None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class ChatChoice(msgspec.Struct):
    """One answer of a chat request."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None = None


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The body of a chat answer."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: None = None
    system_fingerprint: str | None
    usage: Usage
    prompt_logprobs: PromptLogprobList | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None
    kv_transfer_params: None = None
    metrics: None = None


class ChatDelta(msgspec.Struct):
    """What a chunk adds to the message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    """What a chunk adds to one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct):
    """One event of a chat stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionLogprobs(msgspec.Struct):
    """Logprobs of a completion choice, one entry per token in each list."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None] | None


class CompletionChoice(msgspec.Struct):
    """One answer of a completion request, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobList | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The body of a completion answer, or one event of its stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str | UnsetType | None = UNSET
    usage: Usage | UnsetType | None = UNSET


class ModelPermission(msgspec.Struct, kw_only=True):
    """Part of a model card that older clients read."""

    id: str
    object: str = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: None = None
    is_blocking: bool = False


class ModelCard(msgspec.Struct, kw_only=True):
    """One served name."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "vllm"
    root: str
    parent: str | None = None
    max_model_len: int | None
    permission: list[ModelPermission]
    default_sampling_params: dict[str, float | int | str | bool | list[int] | None]


class ModelList(msgspec.Struct):
    """GET /v1/models."""

    data: list[ModelCard]
    object: str = "list"


class TokenizeResponse(msgspec.Struct):
    """POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(msgspec.Struct):
    """POST /detokenize."""

    prompt: str
