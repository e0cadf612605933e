"""Logprobs of the engine -> the shapes of the chat and the completions API.

-inf is written as -9999.0, which JSON can hold. `bytes` are the token's own bytes, right even where
a character is split over several tokens.
"""

import codecs
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm.entrypoints.openai.responses import (
    ChatLogprob,
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobList,
    TopLogprob,
)
from vllm.outputs import Logprob, PromptLogprobs, SampleLogprobs

if TYPE_CHECKING:
    from vllm.transformers_utils.tokenizer import Tokenizer

LOWEST = -9999.0


class LogprobWriter:
    """Writes the logprobs of one request; `num_top` alternatives, None for all that there are."""

    def __init__(self, tokenizer: "Tokenizer", num_top: int | None, ids_as_text: bool) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._ids_as_text = ids_as_text

    def chat(self, token_ids: Sequence[int], logprobs: SampleLogprobs) -> ChatLogprobs:
        """The `logprobs` of a chat choice."""
        return ChatLogprobs(
            [
                self._chat_entry(token, entry)
                for token, entry in zip(token_ids, logprobs, strict=True)
            ]
        )

    def _chat_entry(self, token_id: int, entry: dict[int, Logprob]) -> ChatLogprob:
        chosen = entry[token_id]
        top = [
            TopLogprob(self._text(other, item), finite(item.logprob), self._bytes(other))
            for other, item in self._top(entry)
        ]
        text = self._text(token_id, chosen)
        return ChatLogprob(text, finite(chosen.logprob), self._bytes(token_id), top)

    def completion(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[dict[int, Logprob] | None],
        offsets: list[int],
    ) -> CompletionLogprobs:
        """The `logprobs` of a completion choice; the first prompt token has none."""
        values: list[float | None] = []
        alternatives: list[dict[str, float] | None] = []
        for token_id, entry in zip(token_ids, logprobs, strict=True):
            values.append(None if entry is None else finite(entry[token_id].logprob))
            alternatives.append(
                None
                if entry is None
                else {self._key(other): finite(item.logprob) for other, item in self._top(entry)}
            )
        has_top = self._num_top is None or self._num_top != 0
        tokens = [self._key(token_id) for token_id in token_ids]
        return CompletionLogprobs(offsets, values, tokens, alternatives if has_top else None)

    def _key(self, token_id: int) -> str:
        """The token's text as a key: different tokens must not look the same."""
        if self._ids_as_text:
            return f"token_id:{token_id}"
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _top(self, entry: dict[int, Logprob]) -> list[tuple[int, Logprob]]:
        """The best alternatives, best first; the chosen token is among them only by rank."""
        if self._num_top == 0:
            return []
        ranked = sorted(entry.items(), key=lambda pair: -pair[1].logprob)
        return ranked if self._num_top is None or self._num_top < 0 else ranked[: self._num_top]

    def _text(self, token_id: int, item: Logprob) -> str:
        if self._ids_as_text:
            return f"token_id:{token_id}"
        if item.decoded_token is not None:
            return item.decoded_token
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def _bytes(self, token_id: int) -> list[int]:
        return list(self._tokenizer.token_bytes(token_id))


class OutputOffsets:
    """Where in the returned text each output token begins, counted in characters.

    Counted from the tokens' bytes, because text may be held back when its token is reported.
    """

    def __init__(self, tokenizer: "Tokenizer", start: int, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._num_chars = start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._skipped = frozenset(tokenizer.all_special_ids if skip_special_tokens else ())

    def extend(self, token_ids: Sequence[int]) -> list[int]:
        """Offsets of the next tokens."""
        offsets = []
        for token_id in token_ids:
            offsets.append(self._num_chars)
            if token_id not in self._skipped:
                token = self._tokenizer.token_bytes(token_id)
                self._num_chars += len(self._decoder.decode(token))
        return offsets


def prompt_offsets(tokenizer: "Tokenizer", token_ids: Sequence[int], text: str) -> list[int]:
    """Where in the prompt's text its tokens begin.

    Not every token is in the text: the tokenizer may have added special tokens or a first space.
    """
    data = text.encode("utf-8", "surrogatepass")
    offsets, position, num_chars = [], 0, 0
    for token_id in token_ids:
        inside = position < len(data) and data[position] & 0xC0 == 0x80
        offsets.append(num_chars - inside)
        token = tokenizer.token_bytes(token_id)
        if not data.startswith(token, position):
            token = token.lstrip(b" ")
        if data.startswith(token, position):
            position += len(token)
            num_chars += sum(byte & 0xC0 != 0x80 for byte in token)
    return offsets


def prompt_logprobs(values: PromptLogprobs) -> PromptLogprobList:
    """The `prompt_logprobs` of an answer: token id as text -> candidate."""
    return [
        None
        if entry is None
        else {
            str(token_id): PromptLogprob(finite(item.logprob), item.rank, item.decoded_token)
            for token_id, item in entry.items()
        }
        for entry in values
    ]


def finite(value: float) -> float:
    """JSON has no infinity."""
    return value if math.isfinite(value) else LOWEST
