"""The exact bytes that each token adds to a text.

Decides them from the tokenizer's decoder, the part of it that turns entries of the vocabulary into
text. Invariant: joining the bytes of a sequence and decoding them as UTF-8 gives what `decode`
gives, up to the first space where `strips_first_space` and the spelling of broken bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from vllm.exceptions import ModelFileError

if TYPE_CHECKING:
    import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

Spelling = Callable[[str], bytes]


class TokenBytes:
    """id -> bytes, remembered per id."""

    def __init__(self, backend: tokenizers.Tokenizer, source: str) -> None:
        self._token_of = backend.id_to_token
        self._known: dict[int, bytes] = {}
        self._spell, self.strips_first_space = _read_decoder(backend, source)

    def of(self, token_id: int) -> bytes:
        data = self._known.get(token_id)
        if data is None:
            token = self._token_of(token_id) if token_id >= 0 else None
            data = b"" if token is None else self._spell(token)
            self._known[token_id] = data
        return data


def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary -> that byte.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, get the
    characters from U+0100 on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [b for b in range(256) if b not in visible]
    alphabet = {chr(b): b for b in visible}
    alphabet.update({chr(0x100 + i): b for i, b in enumerate(hidden)})
    return alphabet


def _read_decoder(backend: tokenizers.Tokenizer, source: str) -> tuple[Spelling, bool]:
    """How a token is spelled in bytes, and whether the first space of a text is dropped."""
    decoder = backend.decoder
    if decoder is None:  # the library joins tokens by spaces
        return (lambda token: b" " + token.encode()), True
    steps = list(_flatten(json.loads(decoder.__getstate__())))
    kinds = [step["type"] for step in steps]
    replaced: list[tuple[str, str]] = []
    strips = False
    for step in steps:
        kind = step["type"]
        if kind == "Replace" and "String" in step["pattern"]:
            replaced.append((step["pattern"]["String"], step["content"]))
        elif kind == "Metaspace":
            replaced.append((step["replacement"], " "))
            strips = step.get("prepend_scheme", "always") != "never"
        elif kind == "Strip":
            strips = step["content"] == " " and step["start"] == 1
        elif kind not in ("ByteLevel", "ByteFallback", "Fuse"):
            raise ModelFileError(
                f"{source}: the decoder {kind} is not supported (supported: ByteLevel, "
                "ByteFallback, Fuse, Metaspace, Replace, Strip)"
            )
    if "ByteLevel" in kinds:
        return _byte_level(), strips
    return _pieces(replaced, "ByteFallback" in kinds), strips


def _flatten(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if step["type"] == "Sequence":
        for inner in step["decoders"]:
            yield from _flatten(inner)
    else:
        yield step


def _byte_level() -> Spelling:
    alphabet = byte_alphabet()

    def spell(token: str) -> bytes:
        try:
            return bytes([alphabet[char] for char in token])
        except KeyError:  # an added token, written as it is
            return token.encode()

    return spell


def _pieces(replaced: list[tuple[str, str]], has_byte_tokens: bool) -> Spelling:
    def spell(token: str) -> bytes:
        match = _BYTE_TOKEN.fullmatch(token) if has_byte_tokens else None
        if match is not None:
            return bytes([int(match[1], 16)])
        for old, new in replaced:
            token = token.replace(old, new)
        return token.encode()

    return spell
