"""Token ids -> text, as they come, and the search for stop strings in it.

Every token has exact bytes, so the text is the UTF-8 decoding of their concatenation: a character
whose bytes arrive in several tokens is held until it is whole, and U+FFFD appears only for bytes
that no later byte can repair. Of the text, only what may still become part of a stop string is held
back. Time is linear in the output, whatever the stop strings are.
"""

import codecs
from typing import TYPE_CHECKING

from vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vllm.transformers_utils.tokenizer import Tokenizer

_UTF8 = codecs.getincrementaldecoder("utf-8")

SEED_TOKENS = 4
"""A character has at most 4 bytes: this many tokens before the output say how it begins."""


class Detokenizer:
    """The text of one sequence: `append` each token, `take` what may be shown."""

    def __init__(
        self, pieces: "TokenPieces", params: SamplingParams, prompt_token_ids: list[int]
    ) -> None:
        self.num_tokens = 0
        self._pieces = pieces
        self._parts: list[str] = []
        self._utf8 = _UTF8(errors="replace")
        self._stops = [StopString(stop) for stop in params.stop or ()]
        self._min_tokens = params.min_tokens
        self._includes_stop = params.include_stop_str_in_output
        self._strips_space = self._seed(prompt_token_ids)

    @property
    def open_bytes(self) -> bytes:
        """Bytes of a character that is not whole yet."""
        return self._utf8.getstate()[0]

    def append(self, token_id: int) -> str | None:
        """Add one token; returns the stop string that it completes, after cutting the text."""
        self.num_tokens += 1
        data = self._pieces.bytes_of(token_id)
        if self._strips_space and data:
            data = data.removeprefix(b" ")
            self._strips_space = False
        new = self._utf8.decode(data)
        if not new:
            return None
        self._parts.append(new)
        return self._find_stop(new) if self._stops else None

    def take(self) -> str:
        """The text since the last call that no stop string can take back."""
        text = "".join(self._parts)
        if self._includes_stop or not self._stops:
            self._parts = []
            return text
        end = len(text) - max(stop.matched for stop in self._stops)
        self._parts = [text[end:]]
        return text[:end]

    def finish(self) -> None:
        """Nothing follows: release what is held, a broken last character as U+FFFD."""
        self._parts.append(self._utf8.decode(b"", True))
        self._stops = []

    def _find_stop(self, new: str) -> str | None:
        """The stop string that is complete first; the earlier in the list if two are at once."""
        is_ignored = self.num_tokens <= self._min_tokens
        for index, char in enumerate(new):
            complete = [stop for stop in self._stops if stop.feed(char)]
            if complete and not is_ignored:
                self._cut(len(new) - index - 1, complete[0].text)
                return complete[0].text
        return None

    def _cut(self, num_after: int, stop: str) -> None:
        """Drop what follows the stop string, and the stop string if it is not wanted."""
        text = "".join(self._parts)
        self._parts = [text[: len(text) - num_after - (0 if self._includes_stop else len(stop))]]
        self._stops = []
        self._utf8.reset()

    def _seed(self, prompt_token_ids: list[int]) -> bool:
        """Take over a character that the prompt left open; True if the output begins the text.

        A decoder that marks words by a space in front drops the first one of a whole text, so it is
        dropped here only if no text precedes the output.
        """
        tail = [self._pieces.bytes_of(token) for token in prompt_token_ids[-SEED_TOKENS:]]
        self._utf8.decode(open_character(b"".join(tail)))
        if any(tail) or not self._pieces.strips_first_space:
            return False
        return not any(self._pieces.bytes_of(token) for token in prompt_token_ids)


class StopString:
    """Knuth-Morris-Pratt over the output: `matched` characters of `text` end the text so far.

    fallback[i] is the length of the longest proper prefix of `text` that ends text[: i + 1]. It is
    made as far as matches have come, so that a long stop string costs nothing until it is matched.
    """

    __slots__ = ("_fallback", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback: list[int] = []

    def feed(self, char: str) -> bool:
        """Add one character; True if the stop string is complete."""
        matched = self.matched
        while matched and self.text[matched] != char:
            matched = self._fallback[matched - 1]
        if self.text[matched] == char:
            matched += 1
            if matched > len(self._fallback):
                self._extend()
        is_complete = matched == len(self.text)
        self.matched = self._fallback[matched - 1] if is_complete else matched
        return is_complete

    def _extend(self) -> None:
        index = len(self._fallback)
        prefix = self._fallback[-1] if index else 0
        while prefix and self.text[index] != self.text[prefix]:
            prefix = self._fallback[prefix - 1]
        self._fallback.append(prefix + (index > 0 and self.text[index] == self.text[prefix]))


class TokenPieces:
    """Bytes that each token adds to the text; special tokens add none if they are skipped."""

    def __init__(self, tokenizer: "Tokenizer", skips_special_tokens: bool) -> None:
        self.strips_first_space = tokenizer.strips_first_space
        self._token_bytes = tokenizer.token_bytes
        self._known: dict[int, bytes] = (
            dict.fromkeys(tokenizer.all_special_ids, b"") if skips_special_tokens else {}
        )

    def bytes_of(self, token_id: int) -> bytes:
        """What `token_id` adds; remembered, since outputs repeat few tokens."""
        data = self._known.get(token_id)
        if data is None:
            data = self._known[token_id] = self._token_bytes(token_id)
        return data


def open_character(data: bytes) -> bytes:
    """The end of `data` that begins a character and does not finish it; at most 3 bytes."""
    decoder = _UTF8(errors="replace")
    decoder.decode(data)
    return decoder.getstate()[0]


def decode_piece(data: bytes, before: bytes) -> str:
    """Text of one token's bytes if it follows `before`, an open character.

    A token that completes a character shows it whole; one that leaves it open shows nothing of it.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _UTF8(errors="replace").decode(before + data)
