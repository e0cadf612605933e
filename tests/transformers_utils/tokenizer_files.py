"""Small tokenizers with the rules of published models, as folders and as GGUF vocabularies."""

import json
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, trainers
from tokenizers.pre_tokenizers import ByteLevel

from tests.transformers_utils.gguf_builder import GGUF, Typed

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 12345 times faster, isn't it? I'll see.",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1)\n\n\n",
    "Größe, naïve café, façade; ÀÉÎ. Ответ: сорок два. 東京は日本の首都です。 한국어 텍스트.",
    "HTTPServer2Go parses JSONObjects; 3.14159 and 1,000,000 are numbers!!! Don't you think???",
    "hello hello world world the the of and to in is it that was for on are as with his they",
    "  two  spaces   three\ttabs\t\there \r\n windows lines \r\n",
] * 4
TEXTS = [
    "", " ", "   ", "\n", "\n\n\n\n", "Hello world", " leading space", "trailing   ",
    "a  b   c    d",
    "It's I'LL they'Re don'T", "12345 007 3.14 1,000,000 ½ ²", "\r\n\r\n mixed\r\n\tlines",
    "naïve café façade e\u0301 Å ﬁ", "東京は日本の首都です。한국어", "🤽🏽‍♂️ 👩‍👩‍👧 ok",
    "ไทย ภาษา עברית العربية", "HTTPServer2Go JSONObject AbcDEF", "!!! ??? ... --- ===",
    "def f(x):\n    return x ** 2  # square\n\n\n\n", "https://example.com/a?b=c&d=e_f#g",
    "\u0001\u0000 control \ufeff bom \u200b", "a" * 100, "x\u00a0y\u2003z", "<s>user</s> <|end|>",
    "\U0010ffff \ud7fb",
]  # fmt: skip


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def byte_level(use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex
    }  # fmt: skip


DIGITS = {"type": "Digits", "individual_digits": True}
# The pre-tokenizers of published tokenizer.json files, by the name that GGUF files give them.
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [byte_level(True)],
    "smollm": [DIGITS, byte_level(True)],
    "llama-bpe": [
        split(
            "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
            "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
        ),
        byte_level(False),
    ],
    "qwen2": [
        split(
            "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
            "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
        ),
        byte_level(False),
    ],
    "tekken": [
        split(
            "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*"
            "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?"
            "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}"
            "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
        ),
        byte_level(False),
    ],
    "deepseek-v3": [
        split("\\p{N}{1,3}"),
        split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
        split(
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
            "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+"
            "|\\s+(?!\\S)|\\s+"
        ),
        byte_level(False),
    ],
}
COMPOSES = ("qwen2",)
TAKES_WHOLE_WORDS = ("llama-bpe", "tekken")
SPECIAL = ["<s>", "</s>", "<|end|>"]


def trained(pre: str) -> Tokenizer:
    """A byte-level tokenizer with the rules of `pre`, trained on the corpus."""
    blank = Tokenizer(models.BPE())
    spec = json.loads(blank.to_str())
    spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]}
    spec["normalizer"] = {"type": "NFC"} if pre in COMPOSES else None
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=ByteLevel.alphabet(),
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL],
    )  # fmt: skip
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    spec = json.loads(tokenizer.to_str())
    spec["model"]["ignore_merges"] = pre in TAKES_WHOLE_WORDS
    return Tokenizer.from_str(json.dumps(spec))


def write_folder(folder: Path, tokenizer: Tokenizer, **config: Any) -> Path:
    """A model folder with this tokenizer.json and tokenizer_config.json."""
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, **config}))
    return folder


def gguf_vocabulary(tokenizer: Tokenizer, pre: str, **changes: Any) -> GGUF:
    """What a converter makes of a byte-level tokenizer; `changes` set `tokenizer.ggml.` keys."""
    spec = json.loads(tokenizer.to_str())
    special = {t["id"]: t["special"] for t in spec["added_tokens"]}
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    tokens = sorted(vocab, key=vocab.__getitem__)
    types = [(3 if special[i] else 4) if i in special else 1 for i in range(len(tokens))]
    merges = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
    kvs: dict[str, Any] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": Typed(5, types),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": False,
    }
    return changed(GGUF(kvs), changes)


def changed(file: GGUF, changes: dict[str, Any]) -> GGUF:
    for key, value in changes.items():
        file.kvs.pop(f"tokenizer.ggml.{key}", None)
        if value is not None:
            file.kvs[f"tokenizer.ggml.{key}"] = value
    return file


def sentencepiece_model(folder: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    """A model with the settings of Llama 2, unless `options` say otherwise."""
    settings: dict[str, Any] = {
        "model_type": "bpe", "vocab_size": 700, "byte_fallback": True, "split_digits": True,
        "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True, "character_coverage": 0.99,
        "max_sentence_length": 10_000, "minloglevel": 2,
    }  # fmt: skip
    prefix = folder / "spm"
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(line for text in CORPUS for line in text.split("\n") if line),
        model_prefix=str(prefix), **{**settings, **options},
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")


def gguf_of(spm: sentencepiece.SentencePieceProcessor, architecture: str, **changes: Any) -> GGUF:
    """What a converter makes of it: user-defined pieces are written with real blanks."""
    ids = range(spm.vocab_size())
    types = [
        2 if spm.is_unknown(i) else 3 if spm.is_control(i) else 6 if spm.is_byte(i) else 1
        for i in ids
    ]
    tokens = [spm.id_to_piece(i) for i in ids]
    for i, token in enumerate(tokens):
        if types[i] == 1 and spm.get_score(i) == 0.0 and token in USER_DEFINED:
            types[i] = 4
            tokens[i] = token.replace("\u2581", " ")
    kvs = {
        "general.architecture": architecture,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [spm.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": Typed(5, types),
        "tokenizer.ggml.bos_token_id": spm.bos_id(),
        "tokenizer.ggml.eos_token_id": spm.eos_id(),
        "tokenizer.ggml.unknown_token_id": spm.unk_id(),
    }
    return changed(GGUF(kvs), changes)


USER_DEFINED = ["<table>", *(n * "\n" for n in range(1, 9)), *(n * "\t" for n in range(1, 9))]
USER_DEFINED += [n * "\u2581" for n in range(2, 9)]
