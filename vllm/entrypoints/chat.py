"""Chat messages -> the prompt: text and token ids, the same on every path (server, LLM.chat).

Decides which template applies and what may be passed to it. Invariant: control tokens come from the
template alone unless the operator allows users to write them.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from vllm.entrypoints.chat_template import ChatTemplate, load_chat_template
from vllm.entrypoints.control_tokens import CONTINUE, ControlTokenGuard
from vllm.entrypoints.messages import Message, normalise_messages
from vllm.entrypoints.template_budget import words
from vllm.exceptions import ConfigError, VLLMValidationError

if TYPE_CHECKING:
    from vllm.transformers_utils.tokenizer import Tokenizer

__all__ = ["ChatOptions", "ChatPrompt", "ChatRenderer", "load_chat_template"]

RESERVED_KWARGS = words(
    "messages tools documents chat_template add_generation_prompt continue_final_message tokenize "
    "add_special_tokens return_tensors return_dict raise_exception strftime_now range namespace "
    "dict bos_token eos_token unk_token pad_token"
)
_MAX_COMPILED = 8


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a conversation becomes a prompt; the defaults are those of the HTTP API."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_chars: int | None = None
    """A longer prompt is refused before it is tokenized."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation."""

    text: str
    token_ids: list[int]


class ChatRenderer:
    """Renders for one model; `render` may be called from any thread."""

    def __init__(
        self,
        tokenizer: "Tokenizer",
        *,
        chat_template: str | None = None,
        content_format: Literal["auto", "string", "openai"] = "auto",
        allow_control_tokens: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._content_format = content_format
        self._guard = None if allow_control_tokens else ControlTokenGuard(tokenizer)
        self._compile = functools.lru_cache(_MAX_COMPILED)(ChatTemplate)
        source = tokenizer.chat_template if chat_template is None else chat_template
        self._default = None if source is None else self._compile(source)

    @property
    def has_template(self) -> bool:
        """False if chat requests must bring their own template."""
        return self._default is not None

    def render(self, messages: Sequence[Message], options: ChatOptions | None = None) -> ChatPrompt:
        """The prompt of one conversation. Raises VLLMValidationError."""
        options = options or ChatOptions()
        template = self._template(options.chat_template)
        user_data = self._user_data(messages, options, template)
        num_chars = _num_chars(user_data)
        if self._guard is not None:
            user_data = self._guard.mark(user_data)
        if options.continue_final_message:
            _mark_end(user_data["messages"][-1])
        text = template.render({**self._tokenizer.special_tokens_map, **user_data}, num_chars)
        if options.continue_final_message:
            text = _cut_at_mark(text)
        return self._encode(text, options)

    def _encode(self, marked: str, options: ChatOptions) -> ChatPrompt:
        if options.max_chars is not None and len(marked) > options.max_chars:
            _fail(
                "messages",
                f"The messages have {len(marked)} characters, more than the model's "
                "context can hold.",
                "context_length_exceeded",
            )
        tokenizer = self._tokenizer
        if self._guard is None:
            return ChatPrompt(marked, tokenizer.encode(marked, options.add_special_tokens))
        token_ids = tokenizer.encode_guarded(marked, options.add_special_tokens)
        return ChatPrompt(tokenizer.unguard(marked), token_ids)

    def _template(self, source: str | None) -> ChatTemplate:
        if source is not None:
            try:
                return self._compile(source)
            except ConfigError as error:
                _fail("chat_template", str(error))
        if self._default is None:
            _fail(
                "messages",
                "This model has no chat template, and a default chat template is no longer "
                "allowed; start the server with --chat-template, or use /v1/completions.",
            )
        return self._default

    def _user_data(
        self, messages: Sequence[Message], options: ChatOptions, template: ChatTemplate
    ) -> dict[str, Any]:
        """The template's variables, apart from the special tokens."""
        if options.add_generation_prompt and options.continue_final_message:
            _fail(
                "continue_final_message",
                "continue_final_message and add_generation_prompt can't both be true.",
            )
        reserved = sorted(RESERVED_KWARGS.intersection(options.kwargs))
        if reserved:
            _fail(
                "chat_template_kwargs",
                f"chat_template_kwargs can't set {', '.join(reserved)}; use the request's fields.",
            )
        content_format = template.content_format
        if self._content_format != "auto":
            content_format = self._content_format
        return {
            **options.kwargs,
            "messages": normalise_messages(messages, content_format),
            "tools": None,
            "documents": options.documents,
            "add_generation_prompt": options.add_generation_prompt,
        }


def _mark_end(message: dict[str, Any]) -> None:
    """Mark where to cut; the space behind tells whether the template strips messages."""
    if isinstance(message["content"], str):
        message["content"] += CONTINUE + " "
    elif message["content"]:
        message["content"][-1]["text"] += CONTINUE + " "


def _cut_at_mark(text: str) -> str:
    """The text up to the mark; if the template strips messages, without the blanks before it."""
    end = text.rfind(CONTINUE)
    if end < 0:
        _fail(
            "continue_final_message",
            "The chat template leaves out the end of the last message, so it can't be continued.",
        )
    kept = text[:end]
    return kept if text.startswith(CONTINUE + " ", end) else kept.rstrip()


def _num_chars(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_num_chars, value.values()))
    return sum(map(_num_chars, value)) if isinstance(value, (list, tuple)) else 0


def _fail(param: str, message: str, code: str | None = None) -> NoReturn:
    raise VLLMValidationError(message, param=param, code=code)
