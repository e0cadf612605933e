"""Builds a tokenizer from the vocabulary inside a GGUF file.

Decides what the file leaves unsaid: how text is split before merging (only named by
`tokenizer.ggml.pre`) and which merges a SentencePiece vocabulary implies. Invariant: the result
encodes and decodes like the tokenizer.json of the model that the file was made from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vllm.exceptions import ModelFileError
from vllm.transformers_utils.files import shown
from vllm.transformers_utils.gguf import GGUFFile
from vllm.transformers_utils.hf_tokenizer import set_frame
from vllm.transformers_utils.spm_merges import merges_by_id, merges_by_length
from vllm.transformers_utils.tokenizer import TokenizerInfo

if TYPE_CHECKING:
    import tokenizers

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_MAX_TOKEN_BYTES = 1 << 16
_SPACE = "\u2581"

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_CASED_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
_CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_TAIL}"
_TEKKEN = rf"{_CASED_WORDS % ('', '')}|\p{{N}}|{_CASED_TAIL}"
_O200K = (
    rf"{_CASED_WORDS % (_CONTRACTIONS + '?', _CONTRACTIONS + '?')}|\p{{N}}{{1,3}}|{_CASED_TAIL}"
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


@dataclass(frozen=True)
class _Splitting:
    """What happens to a text before byte-level merging."""

    patterns: tuple[str, ...] = ()
    """Applied one after the other; empty means the pattern of GPT-2."""
    single_digits: bool = False
    composes: bool = False
    """Unicode normalization form C first."""
    whole_words: bool = False
    """A word that is in the vocabulary is taken without merging."""
    adds_bos: bool = False
    """What to assume if the file doesn't say."""


_GPT2, _DIGITS = _Splitting(), _Splitting(single_digits=True)
_LLAMA3 = _Splitting((_CL100K,), whole_words=True, adds_bos=True)
_QWEN2 = _Splitting((_QWEN,), composes=True)
_SPLITTINGS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "phi-2": _GPT2,
    "olmo": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "codeshell": _DIGITS,
    "command-r": _Splitting(single_digits=True, composes=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "dbrx": _Splitting((_CL100K,)),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _Splitting((_TEKKEN,), whole_words=True, adds_bos=True),
    "gpt-4o": _Splitting((_O200K,)),
    "deepseek-v3": _Splitting(_DEEPSEEK_V3, adds_bos=True),
}


def load_gguf_tokenizer(path: Path) -> tuple[tokenizers.Tokenizer, TokenizerInfo]:
    """The backend and its settings."""
    file = GGUFFile(path)
    try:
        vocabulary = _Vocabulary(file)
        backend = vocabulary.build()
        vocabulary.add_tokens(backend)
        vocabulary.set_frame(backend)
        info = TokenizerInfo(
            source=str(path),
            special_tokens_map=vocabulary.special_tokens(),
            chat_templates=_chat_templates(file),
            extent=(len(vocabulary.tokens), max(map(len, vocabulary.tokens))),
        )
    finally:
        file.close()
    return backend, info


class _Vocabulary:
    """The `tokenizer.ggml.*` entries of one file, checked."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.kind = file.get("tokenizer.ggml.model")
        self.is_gemma = str(file.get("general.architecture")).startswith("gemma")
        self.tokens: list[str] = self._list("tokens", str) or self._missing("tokens")
        self.types: list[int] = self._list("token_type", int) or [_NORMAL] * len(self.tokens)
        if len(self.types) != len(self.tokens):
            self._fail("token_type", f"has {len(self.types)} entries for {len(self.tokens)} tokens")
        self._drop_padding()
        self._check_tokens()
        if self.kind == "llama":
            self._respell_blanks()
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            self._fail("tokens", "contains the same token twice")

    def build(self) -> tokenizers.Tokenizer:
        """The backend without added tokens."""
        builders = {"gpt2": self._byte_level, "llama": self._sentencepiece}
        build = builders.get(self.kind) if isinstance(self.kind, str) else None
        if build is None:
            self._fail("model", f"{shown(self.kind)} is not supported (supported: gpt2, llama)")
        try:
            return build()
        except ModelFileError:
            raise
        except Exception as error:  # the library raises nothing more specific
            self._fail("merges", f"not a usable vocabulary: {shown(str(error), 200)}")

    def add_tokens(self, backend: tokenizers.Tokenizer) -> None:
        """Control tokens as special ones; user-defined ones are matched whole, but are text."""
        from tokenizers import AddedToken

        swallows = self.kind == "llama" and self.file.get("general.architecture") == "phi3"
        special, plain = [], []
        for token, kind in zip(self.tokens, self.types, strict=True):
            if not token:
                continue
            if kind in (_CONTROL, _UNKNOWN):
                # Phi-3's own files let its role tokens swallow the blanks behind them.
                rstrip = swallows and token not in ("<unk>", "<s>", "<|endoftext|>")
                special.append(AddedToken(token, rstrip=rstrip, normalized=False, special=True))
            elif kind == _USER_DEFINED:
                plain.append(AddedToken(token, normalized=False, special=False))
        backend.add_special_tokens(special)
        backend.add_tokens(plain)

    def set_frame(self, backend: tokenizers.Tokenizer) -> None:
        default = self.kind == "llama" or self._splitting().adds_bos
        bos = self._token("bos_token_id") if self._flag("add_bos_token", default) else None
        eos = self._token("eos_token_id") if self._flag("add_eos_token", False) else None
        set_frame(backend, bos, eos)

    def special_tokens(self) -> dict[str, str]:
        names = {
            "bos_token": "bos_token_id",
            "eos_token": "eos_token_id",
            "unk_token": "unknown_token_id",
            "pad_token": "padding_token_id",
        }
        found = {name: self._token(key) for name, key in names.items()}
        return {name: token[0] for name, token in found.items() if token is not None}

    def _byte_level(self) -> tokenizers.Tokenizer:
        from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

        splitting = self._splitting()
        backend = Tokenizer(
            models.BPE(self.ids, self._listed_merges(), ignore_merges=splitting.whole_words)
        )
        steps: list[Any] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated")
            for pattern in splitting.patterns
        ]
        if splitting.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps.append(
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splitting.patterns)
        )
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
        if splitting.composes:
            backend.normalizer = normalizers.NFC()
        backend.decoder = decoders.ByteLevel()
        return backend

    def _sentencepiece(self) -> tokenizers.Tokenizer:
        from tokenizers import Tokenizer, decoders, models, normalizers

        merges = self._listed_merges() if "tokenizer.ggml.merges" in self.file else self._implied()
        unknown = self._token("unknown_token_id") or ("<unk>", self.ids.get("<unk>"))
        has_unknown = unknown[1] is not None
        backend = Tokenizer(
            models.BPE(
                self.ids,
                merges,
                unk_token=unknown[0] if has_unknown else None,
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        steps: list[Any] = [normalizers.Replace(" ", _SPACE)]
        decoding: list[Any] = [
            decoders.Replace(_SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
        ]
        if not self.is_gemma and self._flag("add_space_prefix", True):
            steps.insert(0, normalizers.Prepend(_SPACE))
            decoding.append(decoders.Strip(" ", 1, 0))
        backend.normalizer = normalizers.Sequence(steps)
        backend.decoder = decoders.Sequence(decoding)
        return backend

    def _listed_merges(self) -> list[tuple[str, str]]:
        merges = self._list("merges", str)
        return [tuple(merge.split(" ", 1)) for merge in merges]

    def _implied(self) -> list[tuple[str, str]]:
        """Every way to make a token from two others, the most likely token first.

        User-defined tokens count as certain (score 0); control tokens can't be made.
        """
        scores = self._list("scores", float) or [-float(i) for i in range(len(self.tokens))]
        if len(scores) != len(self.tokens):
            self._fail("scores", f"has {len(scores)} entries for {len(self.tokens)} tokens")
        score_of = {
            token: score if kind == _NORMAL else 0.0
            for token, score, kind in zip(self.tokens, scores, self.types, strict=True)
            if kind in (_NORMAL, _USER_DEFINED)
        }
        is_gemma3 = self.file.get("general.architecture") == "gemma3"
        return merges_by_length(score_of) if is_gemma3 else merges_by_id(score_of, self.ids)

    def _splitting(self) -> _Splitting:
        name = self.file.get("tokenizer.ggml.pre", "default")
        splitting = _SPLITTINGS.get(name) if isinstance(name, str) else None
        if splitting is None:
            known = ", ".join(sorted(_SPLITTINGS))
            self._fail("pre", f"{shown(name)} is not supported (supported: {known})")
        return splitting

    def _drop_padding(self) -> None:
        """Converters fill the vocabulary up to the size of the embedding by [PAD<id>] entries."""
        count = len(self.tokens)
        while count and self.tokens[count - 1] == f"[PAD{count - 1}]":
            count -= 1
        del self.tokens[count:], self.types[count:]

    def _check_tokens(self) -> None:
        longest = max(self.tokens, key=len, default="")
        if len(longest) > _MAX_TOKEN_BYTES:
            self._fail("tokens", f"a token of {len(longest)} characters is impossible")

    def _respell_blanks(self) -> None:
        """User-defined runs of blanks are stored as they look, not in the vocabulary's spelling."""
        for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if kind == _USER_DEFINED and token and not token.strip(" "):
                self.tokens[i] = _SPACE * len(token)

    def _token(self, key: str) -> tuple[str, int] | None:
        token_id = self.file.get(f"tokenizer.ggml.{key}")
        if token_id is None:
            return None
        if type(token_id) is not int or not 0 <= token_id < len(self.tokens):
            self._fail(key, f"{shown(token_id)} is not one of {len(self.tokens)} tokens")
        return self.tokens[token_id], token_id

    def _flag(self, key: str, default: bool) -> bool:
        value = self.file.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, bool):
            self._fail(key, f"must be a boolean, not {shown(value)}")
        return value

    def _list(self, key: str, kind: type) -> list[Any]:
        value = self.file.get(f"tokenizer.ggml.{key}", [])
        if not isinstance(value, list) or (value and type(value[0]) is not kind):
            self._fail(key, f"must be a list of {kind.__name__}, not {shown(value)}")
        return value

    def _missing(self, key: str) -> NoReturn:
        self._fail(key, "missing; pass --tokenizer")

    def _fail(self, key: str, problem: str) -> NoReturn:
        raise ModelFileError(f"{self.file.path}: tokenizer.ggml.{key}: {problem}")


def _chat_templates(file: GGUFFile) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    templates = {}
    for key in file:
        if key == prefix or key.startswith(prefix + "."):
            value = file.get(key)
            if not isinstance(value, str):
                file.fail(f"{key} must be text")
            templates[key[len(prefix) + 1 :] or "default"] = value
    return templates
