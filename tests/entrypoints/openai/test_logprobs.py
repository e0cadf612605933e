"""Offsets and keys of logprobs, where tokens and characters do not line up."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm.entrypoints.openai.logprobs import (
    LogprobWriter,
    OutputOffsets,
    finite,
    prompt_logprobs,
    prompt_offsets,
)
from vllm.outputs import Logprob


class Pieces:
    """A tokenizer whose token i has the bytes pieces[i]."""

    def __init__(self, pieces: list[bytes], special: list[int] | None = None) -> None:
        self.pieces = pieces
        self.all_special_ids = special or []

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]


def cut(text: str, places: list[int]) -> list[bytes]:
    data = text.encode()
    ends = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(ends)]


@given(text=st.text("aö🌶 \n", max_size=12), places=st.lists(st.integers(0, 40), max_size=8))
def test_offsets_point_to_the_character(text: str, places: list[int]) -> None:
    """The character that holds the token's first byte."""
    pieces = cut(text, places)
    right, position = [], 0
    for piece in pieces:
        right.append(len(text.encode()[:position].decode(errors="ignore")))
        position += len(piece)
    tokenizer: Any = Pieces(pieces)
    ids = list(range(len(pieces)))
    assert prompt_offsets(tokenizer, ids, text) == right
    offsets = OutputOffsets(tokenizer, 5, True)
    assert [o for i in ids for o in offsets.extend([i])] == [5 + o for o in right]


def test_tokens_that_are_not_in_the_text() -> None:
    tokenizer: Any = Pieces([b"<s>", b" Hello", b" world", b"</s>"], [0, 3])
    assert prompt_offsets(tokenizer, [0, 1, 2], "Hello world") == [0, 0, 5]
    assert prompt_offsets(tokenizer, [0, 1], "<s> Hello") == [0, 3]
    assert OutputOffsets(tokenizer, 0, True).extend([1, 3, 2]) == [0, 6, 6]
    assert OutputOffsets(tokenizer, 0, False).extend([1, 3, 2]) == [0, 6, 10]


def entry(*values: float) -> dict[int, Logprob]:
    return {i: Logprob(value, i + 1, f"t{i}") for i, value in enumerate(values)}


def test_infinite_values_can_be_written() -> None:
    assert finite(-math.inf) == -9999.0
    assert finite(math.nan) == -9999.0
    tokenizer: Any = Pieces([b"a", b"b"])
    logprobs = LogprobWriter(tokenizer, 2, False).chat([0], [entry(-math.inf, -1.0)])
    assert logprobs.content[0].logprob == -9999.0
    assert [top.logprob for top in logprobs.content[0].top_logprobs] == [-1.0, -9999.0]
    [first, second] = prompt_logprobs([None, entry(-math.inf)])
    assert first is None and second is not None
    assert second["0"].logprob == -9999.0


@pytest.mark.parametrize(("num_top", "count"), [(0, 0), (1, 1), (2, 2), (None, 3), (-1, 3)])
def test_number_of_alternatives(num_top: int | None, count: int) -> None:
    tokenizer: Any = Pieces([b"a", b"b", b"c"])
    writer = LogprobWriter(tokenizer, num_top, False)
    chat = writer.chat([2], [entry(-1.0, -2.0, -3.0)])
    assert [top.token for top in chat.content[0].top_logprobs] == ["t0", "t1", "t2"][:count]
    assert chat.content[0].logprob == -3.0


def test_keys_of_different_tokens_differ() -> None:
    tokenizer: Any = Pieces([b"\xc3", b"\xb6", b"\xc3\xb6"])
    written = LogprobWriter(tokenizer, 3, False).completion([0], [entry(-1.0, -2.0, -3.0)], [0])
    assert written.top_logprobs == [{"bytes:\\xc3": -1.0, "bytes:\\xb6": -2.0, "ö": -3.0}]
    written = LogprobWriter(tokenizer, 3, True).completion([0], [entry(-1.0, -2.0)], [0])
    assert written.tokens == ["token_id:0"]
