"""Text from tokens: every split of the bytes, every stop string, in linear time."""

import itertools
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm.exceptions import ConfigError
from vllm.sampling_params import SamplingParams
from vllm.transformers_utils import tokenizer as tokenizers
from vllm.v1.engine.detokenizer import Detokenizer, TokenPieces


class Bytes:
    """A vocabulary given as the bytes of each token; `special` ones are skipped by default."""

    def __init__(
        self, tokens: list[bytes], special: list[int] = [], strips: bool = False  # noqa: B006
    ) -> None:
        self.tokens = tokens
        self.all_special_ids = special
        self.strips_first_space = strips

    def token_bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id]


def detokenizer(vocabulary: Bytes, prompt: list[int] = [], **params: object) -> Detokenizer:  # noqa: B006
    sampling = SamplingParams(**params)  # type: ignore[arg-type]
    pieces = TokenPieces(vocabulary, sampling.skip_special_tokens)  # type: ignore[arg-type]
    return Detokenizer(pieces, sampling, prompt)


def run(one: Detokenizer, token_ids: list[int]) -> tuple[list[str], str | None]:
    """The text after each token, up to the stop string that was found."""
    parts = []
    for token_id in token_ids:
        stop = one.append(token_id)
        parts.append(one.take())
        if stop is not None:
            return parts, stop
    one.finish()
    parts.append(one.take())
    return parts, None


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


texts = st.text(alphabet=st.sampled_from("aé ďж日🌶👨‍👩‍👧ไทย\n"), max_size=30)


@given(texts, st.lists(st.integers(0, 10_000), max_size=60))
@settings(max_examples=300, deadline=None)
def test_every_split_of_valid_text(text: str, cuts: list[int]) -> None:
    tokens = split(text.encode(), cuts)
    parts, _ = run(detokenizer(Bytes(tokens)), list(range(len(tokens))))
    assert "".join(parts) == text
    assert not any("\ufffd" in part for part in parts)


@given(st.binary(max_size=40), st.lists(st.integers(0, 10_000), max_size=40))
@settings(max_examples=300, deadline=None)
def test_every_split_of_any_bytes(data: bytes, cuts: list[int]) -> None:
    tokens = split(data, cuts)
    parts, _ = run(detokenizer(Bytes(tokens)), list(range(len(tokens))))
    assert "".join(parts) == data.decode("utf-8", "replace")


def expected_stop(
    tokens: list[str], stops: list[str], min_tokens: int, include: bool
) -> tuple[str, str | None]:
    """By brute force: the first end of a stop string, at a character of a late enough token."""
    text = ""
    for number, token in enumerate(tokens, 1):
        for char in token:
            text += char
            found = [stop for stop in stops if text.endswith(stop)]
            # A string that begins inside an occurrence that was ignored still counts.
            if found and number > min_tokens:
                return text if include else text[: -len(found[0])], found[0]
    return text, None


@given(
    st.lists(st.text(alphabet="ab", max_size=4), max_size=12),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=4, unique=True),
    st.integers(0, 3),
    st.booleans(),
)
@settings(max_examples=500, deadline=None)
def test_stop_strings(tokens: list[str], stops: list[str], min_tokens: int, include: bool) -> None:
    one = detokenizer(
        Bytes([token.encode() for token in tokens]),
        stop=stops,
        min_tokens=min_tokens,
        include_stop_str_in_output=include,
    )
    parts, stop = run(one, list(range(len(tokens))))
    assert ("".join(parts), stop) == expected_stop(tokens, stops, min_tokens, include)


def test_stop_string_never_leaks_and_no_more_than_needed_is_held() -> None:
    tokens = ["A", "BC", "DE", "FG", "X", "DEF", "GHI", "J", "K"]
    one = detokenizer(Bytes([token.encode() for token in tokens]), stop="DEFGHIJ")
    parts, stop = run(one, list(range(len(tokens))))
    assert parts == ["A", "BC", "", "", "DEFGX", "", "", ""]
    assert stop == "DEFGHIJ"


def test_overlapping_stops_first_complete_wins_then_list_order() -> None:
    vocabulary = Bytes([b"xabcd"])
    assert run(detokenizer(vocabulary, stop=["bcd", "abc"]), [0]) == (["x"], "abc")
    assert run(detokenizer(vocabulary, stop=["abc", "bc"]), [0]) == (["x"], "abc")
    assert run(detokenizer(vocabulary, stop=["bc", "abc"]), [0]) == (["xa"], "bc")


def test_unfinished_character_before_a_stop_is_not_text() -> None:
    vocabulary = Bytes(["é".encode()[:1], b"stop", "日".encode()[:2]])
    parts, stop = run(detokenizer(vocabulary, stop="stop"), [2, 1])
    assert ("".join(parts), stop) == ("\ufffd", "stop")
    parts, _ = run(detokenizer(vocabulary), [2])
    assert parts == ["", "\ufffd"], "a lone tail is flushed once, at the end"


def test_prompt_that_ends_inside_a_character() -> None:
    chili = "🌶".encode()
    one = detokenizer(Bytes([b"hot ", chili[:3], chili[3:]]), prompt=[0, 1])
    assert run(one, [2, 0]) == (["🌶", "hot ", ""], None)


@pytest.mark.parametrize(
    ("prompt", "text"), [([0], " a"), ([], "a"), ([2], "a"), ([0, 2], " a")]
)
def test_first_space(prompt: list[int], text: str) -> None:
    """Dropped only if the output begins the text: token 2 is special and adds none."""
    vocabulary = Bytes([b"word", b" a", b"<s>"], special=[2], strips=True)
    parts, _ = run(detokenizer(vocabulary, prompt), [1])
    assert "".join(parts) == text


def test_special_tokens() -> None:
    vocabulary = Bytes([b"a", b"<end>"], special=[1])
    assert run(detokenizer(vocabulary), [0, 1, 0])[0] == ["a", "", "a", ""]
    shown = detokenizer(vocabulary, skip_special_tokens=False)
    assert run(shown, [0, 1, 0])[0] == ["a", "<end>", "a", ""]


def test_time_is_linear_in_text_and_stop_string() -> None:
    tokens = Bytes([b"a" * 4])
    seconds = []
    for count in (5_000, 20_000):
        one = detokenizer(tokens, stop=["a" * 10_000 + "b", "ab"])
        start = time.perf_counter()
        for _ in range(count):
            assert one.append(0) is None
        assert len(one.take()) == 4 * count - 10_000
        seconds.append(time.perf_counter() - start)
    assert seconds[1] < 12 * seconds[0] + 0.05


def test_long_stop_strings_cost_nothing_until_they_match() -> None:
    tokens = Bytes([b"ab"])
    stops = ["ab" * 500_000 + str(index) for index in range(4)]
    start = time.perf_counter()
    for _ in range(1_000):
        one = detokenizer(tokens, stop=stops)
        assert one.append(0) is None
    assert time.perf_counter() - start < 1.0


def test_random_text_through_a_real_vocabulary_of_pieces() -> None:
    rng = random.Random(7)
    text = "Grüße, 世界! 👩🏽‍🚀 ไทย " * 20
    data, tokens = text.encode(), []
    while data:
        size = rng.randint(1, 5)
        tokens.append(data[:size])
        data = data[size:]
    parts, _ = run(detokenizer(Bytes(tokens)), list(range(len(tokens))))
    assert "".join(parts) == text


def sentencepiece_like() -> Any:
    """Words begin with a block; characters that are no token are spelled in bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁a", "▁Hello", "Hello", "world", "▁the", "é", "日", ",", "!", "▁▁"]
    backend = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True)
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    backend.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", "</s>")])
    return tokenizers.Tokenizer(backend, tokenizers.TokenizerInfo("test"))


def byte_level() -> Any:
    """The tokenizer of the embedded model."""
    from vllm.transformers_utils.embedded import EMBEDDED_NAME
    from vllm.transformers_utils.hub import resolve_model

    try:
        path = resolve_model(EMBEDDED_NAME)
    except ConfigError:
        pytest.skip("the embedded model is not installed")
    return tokenizers.get_tokenizer(path)


@pytest.mark.parametrize("make", [sentencepiece_like, byte_level])
def test_real_vocabularies(make: Any) -> None:
    """What is streamed after a prompt is what a decoder says of the whole, less the prompt."""
    tokenizer = make()
    rng = random.Random(3)
    pieces = TokenPieces(tokenizer, True)
    num_compared = 0

    def draw(count: int) -> list[int]:
        units = [
            [rng.randrange(tokenizer.vocab_size)]
            if rng.random() < 0.3
            else tokenizer.encode(rng.choice("a é🌶ไ日\n"), add_special_tokens=False)
            for _ in range(count)
        ]
        return [token for unit in units for token in unit]

    for _ in range(600):
        prompt, output = draw(rng.randint(0, 3)), draw(rng.randint(1, 6))
        try:
            before = b"".join(map(pieces.bytes_of, prompt)).decode()
            b"".join(map(pieces.bytes_of, output)).decode()
        except UnicodeDecodeError:
            continue  # decoders disagree on how many U+FFFD broken bytes are worth
        if pieces.strips_first_space:
            before = before.removeprefix(" ")
        parts, _ = run(Detokenizer(pieces, SamplingParams(), prompt), output)
        assert before + "".join(parts) == tokenizer.decode(prompt + output), (prompt, output)
        num_compared += 1
    assert num_compared > 100
