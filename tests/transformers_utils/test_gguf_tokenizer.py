"""GGUF vocabularies against the tokenizers they were made from, and against SentencePiece."""

import time
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.transformers_utils.gguf_builder import Typed, tiny_llama
from tests.transformers_utils.tokenizer_files import (
    CORPUS,
    PRE_TOKENIZERS,
    TEXTS,
    USER_DEFINED,
    changed,
    gguf_of,
    gguf_vocabulary,
    sentencepiece_model,
    trained,
)
from vllm.exceptions import ModelFileError
from vllm.transformers_utils.embedded import find_embedded
from vllm.transformers_utils.tokenizer import get_tokenizer


@pytest.fixture(scope="module", params=list(PRE_TOKENIZERS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(the published kind of tokenizer, ours from its GGUF form)"""
    reference = trained(request.param)
    path = tmp_path_factory.mktemp("vocab") / "m.gguf"
    return reference, get_tokenizer(gguf_vocabulary(reference, request.param).write(path))


def test_byte_level_ids_and_text_are_equal(pair: Any) -> None:
    reference, ours = pair
    for text in [*TEXTS, *CORPUS[:6]]:
        expected = reference.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == expected, text
        for skips in (True, False):
            assert ours.decode(expected, skips) == reference.decode(expected, skips)
        data = b"".join(map(ours.token_bytes, expected))
        assert data.decode("utf-8", "replace") == reference.decode(expected, False)
    assert ours.all_special_ids == [0, 1, 2]
    assert ours.vocab_size == reference.get_vocab_size(with_added_tokens=True)


def test_llama_vocabulary_equals_sentencepiece(tmp_path: Path) -> None:
    spm = sentencepiece_model(tmp_path)
    ours = get_tokenizer(gguf_of(spm, "llama").write(tmp_path / "m.gguf"))
    for text in [*TEXTS, *CORPUS[:6]]:
        if "<s>" in text:  # SentencePiece itself never makes control tokens from text
            assert ours.encode(text, False, allow_special=False) == spm.encode(text)
            continue
        ids = spm.encode(text)
        assert ours.encode(text, add_special_tokens=False) == ids, text
        assert ours.encode(text) == [spm.bos_id(), *ids]
        assert ours.decode(ids) == text
        data = b"".join(map(ours.token_bytes, ids))
        assert data.decode() == (f" {text}" if text else "")
    assert ours.strips_first_space


def test_gemma_vocabulary_equals_sentencepiece(tmp_path: Path) -> None:
    spm = sentencepiece_model(
        tmp_path, add_dummy_prefix=False, user_defined_symbols=USER_DEFINED, pad_id=3
    )
    for architecture in ("gemma2", "gemma3"):
        file = gguf_of(spm, architecture, add_space_prefix=False)
        ours = get_tokenizer(file.write(tmp_path / "m.gguf"))
        for text in [*TEXTS, *CORPUS[:6], "<table>  x\n\n\n\n\t\t\ty"]:
            if "<s>" in text:
                continue
            ids = spm.encode(text)
            assert ours.encode(text) == [spm.bos_id(), *ids], text
            assert ours.decode(ids) == text
        assert not ours.strips_first_space


def test_bos_and_eos_as_the_file_says(tmp_path: Path) -> None:
    reference = trained("gpt-2")
    ids = reference.encode("hello").ids

    def encode(pre: str = "gpt-2", **changes: Any) -> list[int]:
        path = gguf_vocabulary(reference, pre, **changes).write(tmp_path / "m.gguf")
        return get_tokenizer(path).encode("hello")

    assert encode() == ids
    assert encode(add_bos_token=True) == [0, *ids]
    assert encode(add_bos_token=True, add_eos_token=True) == [0, *ids, 1]
    assert encode(add_bos_token=None) == ids
    assert encode("llama-bpe", add_bos_token=None)[0] == 0


def test_vocabulary_padding_is_no_token(tmp_path: Path) -> None:
    reference = trained("gpt-2")
    file = gguf_vocabulary(reference, "gpt-2")
    tokens, types = file.kvs["tokenizer.ggml.tokens"], file.kvs["tokenizer.ggml.token_type"].value
    size = len(tokens)
    tokens += [f"[PAD{size + i}]" for i in range(5)]
    types += [5] * 5
    ours = get_tokenizer(file.write(tmp_path / "m.gguf"))
    assert ours.vocab_size == size
    assert ours.decode([size]) == ""


def test_phi3_roles_swallow_blanks(tmp_path: Path) -> None:
    spm = sentencepiece_model(tmp_path, control_symbols=["<|user|>", "<|end|>"])
    ours = get_tokenizer(gguf_of(spm, "phi3").write(tmp_path / "m.gguf"))
    user = spm.piece_to_id("<|user|>")
    assert ours.encode("<|user|>\nhi", False) == [user, *spm.encode("hi")]
    llama = get_tokenizer(gguf_of(spm, "llama").write(tmp_path / "m.gguf"))
    assert llama.encode("<|user|>\nhi", False) == [user, *spm.encode("\nhi")]


def test_templates_and_special_tokens(tmp_path: Path) -> None:
    file = gguf_vocabulary(trained("gpt-2"), "gpt-2", unknown_token_id=2, padding_token_id=1)
    file.kvs["tokenizer.chat_template"] = "{{ messages }}"
    file.kvs["tokenizer.chat_template.tool_use"] = "{{ tools }}"
    ours = get_tokenizer(file.write(tmp_path / "m.gguf"))
    assert ours.chat_template == "{{ messages }}"
    assert ours.chat_templates == {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
    assert ours.special_tokens_map == {
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<|end|>", "pad_token": "</s>"
    }  # fmt: skip
    assert (ours.bos_token_id, ours.eos_token_id, ours.pad_token_id) == (0, 1, 1)
    assert get_tokenizer(tiny_llama(1).write(tmp_path / "n.gguf")).chat_template is None


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no tokens": ({"tokens": None}, "tokens: missing; pass --tokenizer"),
    "empty": ({"tokens": [], "token_type": None}, "tokens: missing"),
    "numbers": ({"tokens": [1, 2], "token_type": None}, "tokens: must be a list of str"),
    "model": ({"model": "t5"}, "model: 't5' is not supported (supported: gpt2, llama)"),
    "no model": ({"model": None}, "model: None is not supported"),
    "pre": ({"pre": "klingon"}, "pre: 'klingon' is not supported (supported: "),
    "types": ({"token_type": Typed(5, [1, 1])}, "token_type: has 2 entries for"),
    "twice": ({"tokens": ["a", "a"], "token_type": None}, "tokens: contains the same token twice"),
    "bos": ({"bos_token_id": 10**6}, "bos_token_id: 1000000 is not one of"),
    "eos": ({"eos_token_id": Typed(5, -1)}, "eos_token_id: -1 is not one of"),
    "merge of one": ({"merges": ["ab"]}, "merges: not a usable vocabulary"),
    "merge of strangers": ({"merges": ["\u4e16 \u4e17"]}, "merges: not a usable vocabulary"),
    "flag": ({"add_bos_token": 1}, "add_bos_token: must be a boolean"),
    "giant": ({"tokens": ["a", "b" * 70_000], "token_type": None}, "a token of 70000 characters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_file_and_key(name: str, tmp_path: Path) -> None:
    changes, expected = REFUSED[name]
    file = changed(gguf_vocabulary(trained("gpt-2"), "gpt-2"), changes)
    path = file.write(tmp_path / "m.gguf")
    with pytest.raises(ModelFileError) as caught:
        get_tokenizer(path)
    assert str(caught.value).startswith(f"{path}: tokenizer.ggml.")
    assert expected in str(caught.value)


# SmolLM2's published tokenizer.json splits digits one by one, then like GPT-2.
SMOLLM2 = {
    "<|im_start|>user\nHello there 1234<|im_end|>\n": [
        1, 4093, 198, 19556, 665, 216, 33, 34, 35, 36, 2, 198
    ],
}  # fmt: skip


@pytest.mark.skipif(find_embedded() is None, reason="the embedded model is not installed")
def test_the_real_tokenizer() -> None:
    path = find_embedded()
    assert path is not None
    best = 1.0
    for _ in range(3):
        start = time.process_time()
        ours = get_tokenizer(path)
        best = min(best, time.process_time() - start)
    assert best < 0.15
    for text, ids in SMOLLM2.items():
        assert ours.encode(text) == ids
        assert ours.decode(ids, skip_special_tokens=False) == text
    reference = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        if not any(char.isdigit() for char in text):  # which Transformers doesn't split here
            assert ours.encode(text) == reference.encode(text), text
            assert ours.decode(ours.encode(text)) == reference.decode(
                reference.encode(text), skip_special_tokens=True
            )
    assert ours.chat_template is not None and "SmolLM" in ours.chat_template
    assert ours.all_special_ids == list(range(17))
