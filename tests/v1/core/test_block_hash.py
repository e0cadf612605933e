"""Prefix hashes: what is equal shares, nothing else does; the portable form is plain CBOR."""

import time
from hashlib import sha256

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.v1.core.scheduler_harness import message
from vllm.exceptions import ConfigError
from vllm.v1.core.block_hash import HASH_ALGORITHMS, BlockHasher, cbor
from vllm.v1.request import Request


def request(tokens, salt=None) -> Request:
    return Request.from_message(message("r", tokens, cache_salt=salt), 10**6)


def hashes(hasher, tokens, salt=None) -> list[bytes]:
    made = request(tokens, salt)
    hasher.extend(made, len(tokens) // hasher.block_size)
    return made.block_hashes


# RFC 8949, appendix A.
RFC_EXAMPLES = [
    (0, "00"), (10, "0a"), (23, "17"), (24, "1818"), (100, "1864"), (1000, "1903e8"),
    (1000000, "1a000f4240"), (1000000000000, "1b000000e8d4a51000"),
    (18446744073709551615, "1bffffffffffffffff"), (b"", "40"), (b"\x01\x02\x03\x04", "4401020304"),
    ("", "60"), ("IETF", "6449455446"), ("\u00fc", "62c3bc"), ("\u6c34", "63e6b0b4"), (None, "f6"),
    ([], "80"), ([1, [2, 3], [4, 5]], "8301820203820405"),
    (list(range(1, 26)), "98190102030405060708090a0b0c0d0e0f101112131415161718181819"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "encoded"), RFC_EXAMPLES)
def test_cbor_is_that_of_the_rfc(value, encoded):
    assert cbor(value).hex() == encoded


def test_cbor_refuses_what_it_does_not_know():
    with pytest.raises(TypeError, match="float"):
        cbor(1.5)
    with pytest.raises(OverflowError):
        cbor(2**64)


def test_portable_hash_by_hand():
    first = sha256(bytes.fromhex("835820" + "00" * 32 + "84010203190100" + "f6")).digest()
    second = sha256(bytes.fromhex("835820" + first.hex() + "8405060708" + "f6")).digest()
    hasher = BlockHasher(4, "sha256_cbor")
    assert hashes(hasher, [1, 2, 3, 256, 5, 6, 7, 8]) == [first, second]
    salted = bytes.fromhex(
        "835820" + "00" * 32 + "84010203190100" + "81826a" + b"cache_salt".hex() + "4178"
    )
    assert hashes(hasher, [1, 2, 3, 256], "x") == [sha256(salted).digest()]


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
@given(tokens=st.lists(st.integers(0, 2**32 - 1), min_size=40, max_size=40), data=st.data())
def test_growing_block_by_block_is_the_same_as_at_once(algorithm, tokens, data):
    hasher = BlockHasher(4, algorithm)
    made = request(tokens)
    for stop in sorted(data.draw(st.sets(st.integers(0, 10)))):
        hasher.extend(made, stop)
        assert len(made.block_hashes) == stop
    hasher.extend(made, 10)
    assert made.block_hashes == hashes(hasher, tokens)
    assert {len(digest) for digest in made.block_hashes} == {32}


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
@given(
    tokens=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    other=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    salts=st.tuples(*[st.sampled_from([None, "", "a", "b", "\x00", "\ud800", "\U0001f600"])] * 2),
)
def test_blocks_share_exactly_if_salt_and_all_tokens_before_agree(algorithm, tokens, other, salts):
    hasher = BlockHasher(4, algorithm)
    pairs = zip(hashes(hasher, tokens, salts[0]), hashes(hasher, other, salts[1]), strict=True)
    for i, (a, b) in enumerate(pairs):
        end = 4 * (i + 1)
        assert (a == b) == (tokens[:end] == other[:end] and salts[0] == salts[1])


def test_each_process_has_its_own_hashes_unless_portable():
    tokens = list(range(8))
    assert hashes(BlockHasher(4), tokens) != hashes(BlockHasher(4), tokens)
    portable = [hashes(BlockHasher(4, "sha256_cbor"), tokens) for _ in range(2)]
    assert portable[0] == portable[1]


def test_unknown_algorithm_is_refused():
    with pytest.raises(ConfigError, match="'xxhash'; it must be one of sha256, sha256_cbor"):
        BlockHasher(16, "xxhash")


def test_a_prompt_of_2048_tokens_hashes_in_well_under_a_millisecond():
    hasher, best = BlockHasher(16), float("inf")
    for _ in range(20):
        made = request(list(range(2048)))
        start = time.thread_time()
        hasher.extend(made, 128)
        best = min(best, time.thread_time() - start)
    assert best < 1e-3
