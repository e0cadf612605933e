"""Chained hashes of full blocks: the key under which a block's keys and values are shared.

    hash[i] = H(hash[i - 1], tokens of block i, extras of block i)

Two blocks share only if everything before them is equal too. The full 256-bit digest is the key,
so a hit needs no comparison of tokens: two different chains with one digest would be a collision
of SHA-256. The root is a random secret of the process (nobody can prepare a collision or learn a
digest), except for "sha256_cbor", whose digests are the same in every process and language.

Extras are tagged (`("cache_salt", salt)`) and only in the first block: the chain carries them on.
"""

import os
from array import array
from collections.abc import Sequence
from hashlib import sha256

import msgspec

from vllm.exceptions import ConfigError
from vllm.v1.request import Request

HASH_ALGORITHMS = ("sha256", "sha256_cbor")
TOKEN_TYPE = "I"
"""Unsigned, 4 bytes everywhere CPython runs; a token outside it raises OverflowError."""


class BlockHasher:
    """Extends `request.block_hashes`; only blocks that became full are hashed."""

    def __init__(self, block_size: int, algorithm: str = "sha256") -> None:
        if algorithm not in HASH_ALGORITHMS:
            raise ConfigError(
                f"prefix_caching_hash_algo is {algorithm!r}; it must be one of "
                f"{', '.join(HASH_ALGORITHMS)}."
            )
        self.block_size = block_size
        self._portable = algorithm == "sha256_cbor"
        self._root = bytes(32) if self._portable else os.urandom(32)

    def extend(self, request: Request, num_blocks: int) -> None:
        """Make sure that the first `num_blocks` blocks of the request, all full, have a hash."""
        hashes = request.block_hashes
        first = len(hashes)
        if first >= num_blocks:
            return
        tokens = request.all_token_ids[first * self.block_size : num_blocks * self.block_size]
        if not first:
            extras = extra_keys(request)
            hashes.append(self._hash(self._root, tokens[: self.block_size], extras))
            tokens = tokens[self.block_size :]
        self._extend_chain(hashes, tokens)

    def _extend_chain(self, hashes: list[bytes], tokens: list[int]) -> None:
        if self._portable:
            for start in range(0, len(tokens), self.block_size):
                hashes.append(self._hash(hashes[-1], tokens[start : start + self.block_size], ()))
            return
        raw = array(TOKEN_TYPE, tokens).tobytes()
        step = self.block_size * array(TOKEN_TYPE).itemsize
        digest = hashes[-1]
        for start in range(0, len(raw), step):
            digest = sha256(digest + raw[start : start + step]).digest()
            hashes.append(digest)

    def _hash(self, parent: bytes, tokens: list[int], extras: Sequence[tuple[str, bytes]]) -> bytes:
        if self._portable:
            items = [[tag, value] for tag, value in extras] or None
            return sha256(cbor([parent, tokens, items])).digest()
        # Parent and tokens have a fixed length, so what follows can only be the extras.
        tail = msgspec.msgpack.encode(extras) if extras else b""
        return sha256(parent + array(TOKEN_TYPE, tokens).tobytes() + tail).digest()


def extra_keys(request: Request) -> list[tuple[str, bytes]]:
    """What besides the tokens decides the content of the request's blocks, each with its tag."""
    if request.cache_salt is None:
        return []
    # A JSON string may hold a lone surrogate, which strict UTF-8 refuses.
    return [("cache_salt", request.cache_salt.encode("utf-8", "surrogatepass"))]


def cbor(value: object) -> bytes:
    """Canonical CBOR (RFC 8949 section 4.2) of None, unsigned ints, bytes, text and lists."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _cbor_head(0, value)
    if isinstance(value, bytes):
        return _cbor_head(2, len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        return _cbor_head(3, len(text)) + text
    if isinstance(value, list):
        return _cbor_head(4, len(value)) + b"".join(map(cbor, value))
    raise TypeError(f"no CBOR form for {type(value).__name__}")


def _cbor_head(major: int, number: int) -> bytes:
    major <<= 5
    if number < 24:
        return bytes((major | number,))
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes((major | code,)) + number.to_bytes(size, "big")
    raise OverflowError(f"{number} needs more than 64 bits")
