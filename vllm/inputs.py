"""What a user may pass as a prompt."""

from typing import TypeAlias, TypedDict

from typing_extensions import NotRequired


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids; `prompt` is its text, if the caller has it."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


PromptType: TypeAlias = str | list[int] | TextPrompt | TokensPrompt
