"""Tokenizers of model folders against Transformers, and which file wins."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from tests.transformers_utils.tokenizer_files import (
    CORPUS,
    PRE_TOKENIZERS,
    TEXTS,
    gguf_of,
    sentencepiece_model,
    trained,
    write_folder,
)
from vllm.exceptions import ConfigError, ModelFileError, VLLMValidationError
from vllm.transformers_utils.tokenizer import get_tokenizer


def with_template(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return tokenizer


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_ids_and_text_equal_transformers(pre: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, with_template(trained(pre)), pad_token="<|end|>")
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    ours = get_tokenizer(folder)
    for text in [*TEXTS, *CORPUS[:6]]:
        ids = theirs.encode(text)
        if not text.startswith("<s>"):
            assert ours.encode(text) == ids, text
        assert ours.encode(text, False) == theirs.encode(text, add_special_tokens=False)
        for skips in (True, False):
            assert ours.decode(ids, skips) == theirs.decode(ids, skip_special_tokens=skips)
        assert ours.convert_ids_to_tokens(ids) == theirs.convert_ids_to_tokens(ids)
    assert ours.vocab_size == len(ours) == len(theirs)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.all_special_ids == sorted(theirs.all_special_ids)
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert (ours.bos_token, ours.eos_token) == ("<s>", "</s>")
    ids = (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id)
    assert (ours.bos_token_id, ours.eos_token_id, ours.pad_token_id) == ids


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_sentencepiece_like_files_equal_transformers(architecture: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {} if architecture == "llama" else {"add_dummy_prefix": False}
    spm = sentencepiece_model(tmp_path, **options)
    changes: dict[str, Any] = {} if architecture == "llama" else {"add_space_prefix": False}
    backend = get_tokenizer(
        gguf_of(spm, architecture, **changes).write(tmp_path / "m.gguf")
    ).backend
    folder = write_folder(tmp_path, backend, unk_token="<unk>")
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    ours = get_tokenizer(folder)
    broken = [spm.piece_to_id("<0xE4>"), spm.piece_to_id("<0xB8>"), spm.piece_to_id("<0xFF>")]
    for text in [*TEXTS, *CORPUS[:6]]:
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, False) == ids
        for given in (ids, [1, *ids], [*ids, *broken]):
            for skips in (True, False):
                assert ours.decode(given, skips) == theirs.decode(given, skip_special_tokens=skips)


def test_bos_is_never_doubled(tmp_path: Path) -> None:
    ours = get_tokenizer(write_folder(tmp_path, with_template(trained("llama-bpe"))))
    plain = ours.encode("hello", add_special_tokens=False)
    assert ours.encode("hello") == [0, *plain]
    assert ours.encode("<s>hello") == [0, *plain]
    assert ours.encode("<s>hello", add_special_tokens=False) == [0, *plain]
    assert ours.encode("<s><s>hello", add_special_tokens=False) == [0, 0, *plain]


@pytest.mark.parametrize(
    ("flags", "before", "after"),
    [
        ({}, [], []),
        ({"add_bos_token": True}, [0], []),
        ({"add_bos_token": True, "add_eos_token": True}, [0], [1]),
        ({"add_bos_token": False, "add_eos_token": False}, [], []),
        ({"add_bos_token": True, "bos_token": None}, [], []),
    ],
)
def test_flags_count_where_the_file_is_silent(
    flags: dict[str, Any], before: list[int], after: list[int], tmp_path: Path
) -> None:
    ours = get_tokenizer(write_folder(tmp_path, trained("gpt-2"), **flags))
    plain = ours.encode("hello", add_special_tokens=False)
    assert ours.encode("hello") == [*before, *plain, *after]


def test_tokenizer_json_wins_over_flags_like_in_transformers(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, with_template(trained("gpt-2")), add_bos_token=False)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder).encode("hello")
    assert get_tokenizer(folder).encode("hello") == theirs
    assert theirs[0] == 0


def test_tokens_that_only_the_config_knows(tmp_path: Path) -> None:
    tokenizer = trained("gpt-2")
    size = tokenizer.get_vocab_size()
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    folder = write_folder(
        tmp_path, tokenizer,
        added_tokens_decoder={
            str(size): {"content": "<tool>", "special": False, **flags},
            str(size + 1): {"content": "<|eot|>", "special": True, **flags},
        },
        eos_token={"content": "<|eot|>", "__type": "AddedToken", **flags},
        additional_special_tokens=["<|extra|>"],
    )  # fmt: skip
    ours, theirs = get_tokenizer(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    text = "a<tool>b<|eot|><|extra|>"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.eos_token_id == size + 1 == theirs.eos_token_id
    assert ours.decode(ours.encode(text)) == "a<tool>b"


def test_special_tokens_map_is_the_fallback(tmp_path: Path) -> None:
    write_folder(tmp_path, trained("gpt-2"))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "</s>"}')
    names = {"bos_token": "<s>", "eos_token": {"content": "<|end|>"}, "unk_token": None}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names))
    ours = get_tokenizer(tmp_path)
    assert ours.special_tokens_map == {"bos_token": "</s>", "eos_token": "<|end|>"}


def test_saved_padding_and_truncation_are_off(tmp_path: Path) -> None:
    tokenizer = trained("gpt-2")
    tokenizer.enable_padding(length=64)
    tokenizer.enable_truncation(max_length=2)
    expected = trained("gpt-2").encode("hello hello hello").ids
    assert len(expected) > 2
    assert get_tokenizer(write_folder(tmp_path, tokenizer)).encode("hello hello hello") == expected


def test_chat_templates(tmp_path: Path) -> None:
    write_folder(tmp_path, trained("gpt-2"))
    assert get_tokenizer(tmp_path).chat_template is None
    write_folder(tmp_path, trained("gpt-2"), chat_template="one")
    assert get_tokenizer(tmp_path).chat_template == "one"
    named = [{"name": "default", "template": "two"}, {"name": "tool_use", "template": "tools"}]
    write_folder(tmp_path, trained("gpt-2"), chat_template=named)
    assert get_tokenizer(tmp_path).chat_templates == {"default": "two", "tool_use": "tools"}
    (tmp_path / "chat_template.json").write_text('{"chat_template": "three"}')
    assert get_tokenizer(tmp_path).chat_template == "three"
    (tmp_path / "chat_template.jinja").write_text("fo\u00fcr")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("five")
    ours = get_tokenizer(tmp_path)
    assert ours.chat_template == "fo\u00fcr"
    assert ours.chat_templates == {"default": "fo\u00fcr", "tool_use": "tools", "rag": "five"}
    write_folder(tmp_path, trained("gpt-2"), chat_template=7)
    with pytest.raises(ModelFileError, match="chat_template is neither text nor a list"):
        get_tokenizer(tmp_path)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no tokenizer\.json here; pass --tokenizer"):
        get_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(ModelFileError, match=r"tokenizer\.model alone is not supported; convert"):
        get_tokenizer(tmp_path)
    for text in ("", "{}", "[" * 100_000, '{"model": {"type": "BPE", "vocab": 5}}', "\xff"):
        (tmp_path / "tokenizer.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(ModelFileError, match=r"tokenizer\.json: not a usable tokenizer"):
            get_tokenizer(tmp_path)
    write_folder(tmp_path, trained("gpt-2"), eos_token=["x"])
    with pytest.raises(ModelFileError, match="eos_token must be a string"):
        get_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match="--tokenizer-mode mistral is not supported"):
        get_tokenizer(tmp_path, mode="mistral")


@pytest.mark.parametrize("escaped", [False, True])
def test_a_file_that_would_abort_the_library(escaped: bool, tmp_path: Path) -> None:
    write_folder(tmp_path, trained("gpt-2"))
    file = tmp_path / "tokenizer.json"
    spec = json.loads(file.read_text())
    spec["model"]["continuing_subword_prefix"] = "##"
    text = json.dumps(spec)
    file.write_text(text.replace("subword_prefix", "sub\\u0077ord_prefix") if escaped else text)
    with pytest.raises(ModelFileError, match="continuing_subword_prefix '##' does not begin"):
        get_tokenizer(tmp_path)


def test_an_unknown_token_that_is_none(tmp_path: Path) -> None:
    write_folder(tmp_path, trained("gpt-2"))
    file = tmp_path / "tokenizer.json"
    spec = json.loads(file.read_text())
    spec["model"]["unk_token"] = "nowhere"
    del spec["model"]["vocab"]["\u0120"]
    file.write_text(json.dumps(spec))
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: not a usable tokenizer"):
        get_tokenizer(tmp_path)


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "x" * 5000 + "\ud83d"])
def test_half_characters_are_refused_as_the_callers_fault(text: str, tmp_path: Path) -> None:
    ours = get_tokenizer(write_folder(tmp_path, trained("gpt-2")))
    for allow in (True, False):
        with pytest.raises(VLLMValidationError, match="half a surrogate pair"):
            ours.encode(text, allow_special=allow)
    with pytest.raises(VLLMValidationError, match="half a surrogate pair"):
        ours.encode_guarded(ours.guard("<s>" + text))


def test_code_in_the_folder_is_not_run(tmp_path: Path) -> None:
    write_folder(
        tmp_path, trained("gpt-2"), auto_map={"AutoTokenizer": ["evil.T", None]}
    )  # fmt: skip
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    assert get_tokenizer(tmp_path).encode("hello")


def test_longest_token_bounds_the_text(tmp_path: Path) -> None:
    ours = get_tokenizer(write_folder(tmp_path, trained("gpt-2")))
    for text in [*TEXTS, *CORPUS]:
        assert len(text) <= len(ours.encode(text)) * ours.max_chars_per_token
    assert ours.max_chars_per_token == max(map(len, ours.get_vocab()))
    stripping = trained("gpt-2")
    stripping.add_special_tokens([AddedToken("<r>", rstrip=True, special=True)])
    ours = get_tokenizer(write_folder(tmp_path, stripping))
    assert len(ours.encode("<r>" + " " * 4000)) == 1
    assert ours.max_chars_per_token >= 4003
