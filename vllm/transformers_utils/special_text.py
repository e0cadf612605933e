"""Encodes text in which control tokens are nothing but text.

A user who writes "<|im_end|>" must not end the turn. Two ways: the whole text is plain, or parts of
it are, marked by `guard` before a chat template put them among real control tokens. Invariant:
no control token comes out for a place that is plain; everywhere else the ids are those of the
ordinary tokenizer.

The mark is U+FDD0, a code point that Unicode keeps out of texts, put inside the spelling of the
token; one that the text itself holds is doubled, so that marking can be undone exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

MARK = "\ufdd0"
_ANY_TEXT = "a 1."


class SpecialText:
    """The plain side of one tokenizer."""

    def __init__(
        self, backend: tokenizers.Tokenizer, bos_token_id: int | None, unk_token_id: int | None
    ) -> None:
        added = backend.get_added_tokens_decoder()
        self._special = {t.content: (i, t) for i, t in added.items() if t.special and t.content}
        self._control_ids = {i for i, _ in self._special.values() if i != unk_token_id}
        longest_first = sorted(self._special, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._backend = backend
        self._bos_token_id = bos_token_id
        self._first = _without_special(backend)
        self._later = _without_prefix(self._first)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of `text`, all of it plain."""
        return self._framed(self._encode_plain(text, is_first=True), add_special_tokens)

    def guard(self, text: str) -> str:
        text = text.replace(MARK, MARK + MARK)
        return self._pattern.sub(_marked, text)

    def unguard(self, text: str) -> str:
        return self._unmark(text)[0]

    def is_guarded(self, text: str) -> bool:
        return MARK in text

    def encode_guarded(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of a text in which marked control tokens are plain and the others are real."""
        clean, marks = self._unmark(text)
        ids: list[int] = []
        position = 0
        for start, end, token_id in self._live_tokens(clean, marks):
            ids += self._encode_plain(clean[position:start], is_first=position == 0)
            ids.append(token_id)
            position = end
        ids += self._encode_plain(clean[position:], is_first=position == 0)
        return self._framed(ids, add_special_tokens)

    def _live_tokens(self, text: str, marks: set[int]) -> Iterator[tuple[int, int, int]]:
        """(start, end, id) of each real control token, blanks that it swallows included."""
        for match in self._pattern.finditer(text):
            token_id, token = self._special[match[0]]
            start, end = match.span()
            # A mark before the token belongs to what precedes it (unless there is no inside).
            if marks.intersection(range(start + (len(match[0]) > 1), end)):
                continue
            if token.lstrip:
                start = len(text[:start].rstrip())
            if token.rstrip:
                end = len(text) - len(text[end:].lstrip())
            yield start, end, token_id

    def _unmark(self, text: str) -> tuple[str, set[int]]:
        """The text without marks, and the positions in it that the marks stood before."""
        parts: list[str] = []
        marks: set[int] = set()
        length = position = 0
        for match in re.finditer(f"{MARK}{MARK}?", text):
            parts.append(text[position : match.start()])
            length += match.start() - position
            position = match.end()
            if len(match[0]) == 2:
                parts.append(MARK)
                length += 1
            else:
                marks.add(length)
        parts.append(text[position:])
        return "".join(parts), marks

    def _encode_plain(self, text: str, is_first: bool) -> list[int]:
        from vllm.transformers_utils.tokenizer import run_encode

        if not text:
            return []
        backend = self._first if is_first else self._later
        ids = run_encode(backend, text, False)
        if self._control_ids.isdisjoint(ids):
            return ids
        # The vocabulary itself spells a control token: keep its first character apart.
        pieces = self._pattern.sub(_marked, text).split(MARK)
        return [i for piece in pieces if piece for i in run_encode(backend, piece, False)]

    def _framed(self, ids: list[int], add_special_tokens: bool) -> list[int]:
        """`ids` between the tokens that the tokenizer puts around a text, BOS once."""
        if not add_special_tokens:
            return ids
        before, after = self._frame
        if ids and before == [ids[0]] == [self._bos_token_id]:
            before = []
        return [*before, *ids, *after]

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        """What is put before and behind a text."""
        encoding = self._backend.encode(_ANY_TEXT, add_special_tokens=True)
        ids, is_frame = encoding.ids, encoding.special_tokens_mask
        if 0 not in is_frame:  # a vocabulary without any of these characters
            return ids, []
        first, last = is_frame.index(0), len(ids) - is_frame[::-1].index(0)
        return ids[:first], ids[last:]


def _marked(match: re.Match[str]) -> str:
    token = match[0]
    return MARK + token if len(token) == 1 else f"{token[0]}{MARK}{token[1:]}"


def _without_special(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A tokenizer with the same model that doesn't look for special tokens."""
    import tokenizers

    plain = tokenizers.Tokenizer(backend.model)  # shares the vocabulary: costs microseconds
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    added = backend.get_added_tokens_decoder()
    plain.add_tokens([token for _, token in sorted(added.items())])
    if plain.get_added_tokens_decoder().keys() != added.keys():
        plain = tokenizers.Tokenizer.from_str(backend.to_str())  # ids with gaps; slow but exact
    plain.encode_special_tokens = True
    return plain


def _without_prefix(plain: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same for text that doesn't begin the prompt: some vocabularies mark only the start."""
    import tokenizers

    splitter = plain.pre_tokenizer
    is_metaspace = isinstance(splitter, tokenizers.pre_tokenizers.Metaspace)
    if not is_metaspace or splitter.prepend_scheme != "first":
        return plain
    later = tokenizers.Tokenizer.from_str(plain.to_str())
    later.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(
        replacement=splitter.replacement, prepend_scheme="never", split=splitter.split
    )
    later.encode_special_tokens = True
    return later
