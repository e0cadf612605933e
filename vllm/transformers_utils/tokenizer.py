"""Text <-> token ids, exactly as Hugging Face does it, on the `tokenizers` library alone.

Decides how special tokens inside a text are treated. Invariants: one `Tokenizer` may be used by any
number of threads at once; with `allow_special=False` no text can produce a control token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.exceptions import ConfigError, ModelFileError, VLLMValidationError
from vllm.transformers_utils.special_text import SpecialText
from vllm.transformers_utils.token_bytes import TokenBytes

if TYPE_CHECKING:
    import tokenizers

# Below this many characters `encode` holds the GIL for less than a millisecond; above it the text
# goes through `encode_batch`, which releases it but costs about 20 us more.
_GIL_FREE_LENGTH = 2000
_MODES = ("auto", "hf")
_SLICE_LENGTH, _SLICE_SLACK = 1 << 16, 1024


@dataclass(frozen=True)
class TokenizerInfo:
    """What the files say besides the algorithm."""

    source: str
    special_tokens_map: dict[str, str] = field(default_factory=dict)
    """"bos_token", "eos_token", "unk_token", "pad_token", ... -> text."""
    chat_templates: dict[str, str] = field(default_factory=dict)
    model_max_length: int | None = None
    extent: tuple[int, int] | None = None
    """(highest id + 1, length of the longest token), if known without listing the vocabulary."""


def get_tokenizer(path: str | Path, mode: str = "auto", revision: str | None = None) -> Tokenizer:
    """The tokenizer of a model folder, a .gguf file, an embedded model or a hub id."""
    if mode not in _MODES:
        raise ConfigError(
            f"--tokenizer-mode {mode} is not supported (supported: {', '.join(_MODES)})"
        )
    location = Path(path)
    if not location.exists():
        from vllm.transformers_utils.hub import resolve_tokenizer

        location = Path(resolve_tokenizer(str(path), revision=revision))
    if location.is_file():
        from vllm.transformers_utils.gguf_tokenizer import load_gguf_tokenizer

        return Tokenizer(*load_gguf_tokenizer(location))
    from vllm.transformers_utils.hf_tokenizer import load_hf_tokenizer

    return Tokenizer(*load_hf_tokenizer(location))


class Tokenizer:
    """One vocabulary with its rules. Immutable after construction."""

    def __init__(self, backend: tokenizers.Tokenizer, info: TokenizerInfo) -> None:
        self.backend = backend
        self.info = info
        self.special_tokens_map = dict(info.special_tokens_map)
        self._added = backend.get_added_tokens_decoder()
        self._special = {i: t.content for i, t in self._added.items() if t.special}
        self._bytes = TokenBytes(backend, info.source)
        self.bos_token_id = self._id_of("bos_token")
        self.eos_token_id = self._id_of("eos_token")
        self.pad_token_id = self._id_of("pad_token")
        self.unk_token_id = self._id_of("unk_token")

    # -- text -> ids

    def encode(
        self, text: str, add_special_tokens: bool = True, *, allow_special: bool = True
    ) -> list[int]:
        """Ids of `text`; with `allow_special=False` control tokens in it are ordinary text.

        A text that already begins with BOS gets no second one.
        """
        if not allow_special:
            return self._plain.encode(text, add_special_tokens)
        ids = run_encode(self.backend, text, add_special_tokens)
        bos = self.bos_token_id
        if add_special_tokens and bos is not None and ids[:2] == [bos, bos]:
            return ids[1:]
        return ids

    def is_far_longer(self, text: str, num_tokens: int) -> bool:
        """Whether `text` certainly has more than `num_tokens` tokens, at the cost of those alone.

        A hostile text may have a hundred times the tokens that fit, at 200 bytes of memory each.
        It is cut into slices, whose tokens are counted until there are twice as many as fit: the
        cuts themselves can't account for that. False means: encode it and see.
        """
        count, limit = 0, 2 * num_tokens + _SLICE_SLACK
        for start in range(0, len(text), _SLICE_LENGTH):
            count += len(run_encode(self.backend, text[start : start + _SLICE_LENGTH], False))
            if count > limit:
                return True
            if len(text) - start <= _SLICE_LENGTH:
                break
        return False

    def guard(self, text: str) -> str:
        """`text` with every control token in it marked as ordinary text, for use in a template.

        What a template makes of the result is encoded by `encode_guarded`.
        """
        return self._plain.guard(text)

    def unguard(self, text: str) -> str:
        """The text without the marks that `guard` made."""
        return self._plain.unguard(text)

    def encode_guarded(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Like `encode`, but control tokens that `guard` has marked stay ordinary text."""
        if not self._plain.is_guarded(text):
            return self.encode(text, add_special_tokens)
        return self._plain.encode_guarded(text, add_special_tokens)

    # -- ids -> text

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary entries as they are spelled in the file; "" for unknown ids."""
        return [self.backend.id_to_token(i) or "" for i in ids]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds to a text; b"" for unknown ids."""
        return self._bytes.of(token_id)

    @property
    def strips_first_space(self) -> bool:
        """Whether `decode` drops one space at the very beginning of a text."""
        return self._bytes.strips_first_space

    # -- vocabulary

    def token_to_id(self, token: str) -> int | None:
        result: int | None = self.backend.token_to_id(token)
        return result

    @property
    def vocab_size(self) -> int:
        """One more than the highest id, added tokens included."""
        return self._extent[0]

    def __len__(self) -> int:
        return self.vocab_size

    def get_vocab(self) -> dict[str, int]:
        """Vocabulary entry -> id, added tokens included."""
        return dict(self.backend.get_vocab(with_added_tokens=True))

    @property
    def all_special_ids(self) -> list[int]:
        """The ids that `decode` skips by default, ascending."""
        return sorted(self._special)

    @property
    def all_special_tokens(self) -> list[str]:
        return [self._special[i] for i in self.all_special_ids]

    @cached_property
    def max_chars_per_token(self) -> int:
        """No text of more than `n * max_chars_per_token` characters fits into n tokens."""
        longest = self._extent[1]
        # Unicode normalization joins characters; tokens that swallow blanks have no bound at all,
        # so a generous one stands in for it.
        if any(t.lstrip or t.rstrip for t in self._added.values()):
            return max(4096, longest)
        return longest if self.backend.normalizer is None else 4 * longest

    # -- templates

    @property
    def chat_templates(self) -> dict[str, str]:
        """All named chat templates; the usual one is "default"."""
        return dict(self.info.chat_templates)

    @property
    def chat_template(self) -> str | None:
        return self.info.chat_templates.get("default")

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens_map.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens_map.get("eos_token")

    @cached_property
    def _extent(self) -> tuple[int, int]:
        if self.info.extent is not None:
            return self.info.extent
        vocab = self.get_vocab()
        return max(vocab.values(), default=-1) + 1, max(map(len, vocab), default=1)

    @cached_property
    def _plain(self) -> SpecialText:
        return SpecialText(self.backend, self.bos_token_id, self.unk_token_id)

    def _id_of(self, name: str) -> int | None:
        token = self.special_tokens_map.get(name)
        if token is None:
            return None
        token_id = self.token_to_id(token)
        if token_id is None:
            raise ModelFileError(f"{self.info.source}: {name} {token!r} is not in the vocabulary")
        return token_id


def run_encode(backend: tokenizers.Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    """Ids of `text`; long texts are encoded without holding the GIL."""
    try:
        encoding: Any
        if len(text) < _GIL_FREE_LENGTH:
            encoding = backend.encode(text, add_special_tokens=add_special_tokens)
        else:
            batch = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            encoding = batch[0]
    except (TypeError, UnicodeEncodeError):
        raise VLLMValidationError(_not_unicode(text)) from None
    ids: list[int] = encoding.ids
    return ids


def _not_unicode(text: str) -> str:
    """JSON can spell half of a surrogate pair, which is no character and has no bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"The text is not valid Unicode: character {error.start} is half a surrogate pair."
    return "The text can't be tokenized."
