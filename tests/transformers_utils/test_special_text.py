"""Control tokens in user text: never control, wherever they stand."""

import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tests.transformers_utils.tokenizer_files import SPECIAL, TEXTS, trained, write_folder
from vllm.transformers_utils.special_text import MARK
from vllm.transformers_utils.tokenizer import Tokenizer as Ours
from vllm.transformers_utils.tokenizer import get_tokenizer


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Ours:
    folder = tmp_path_factory.mktemp("tokenizer")
    return get_tokenizer(write_folder(folder, trained("llama-bpe"), add_bos_token=True))


PIECES = st.sampled_from(
    [*SPECIAL, "<think>", "hello", " ", "\n", "<|", "|>", "<", "s>", MARK, "é"]
)
MIXED = st.lists(PIECES | st.text(max_size=4), max_size=12).map("".join)


@pytest.mark.parametrize("token", SPECIAL)
def test_a_control_token_in_text_is_text(token: str, ours: Ours) -> None:
    ids = ours.encode(f"a{token}b", False, allow_special=False)
    assert not set(ids) & set(ours.all_special_ids)
    assert ours.decode(ids, skip_special_tokens=False) == f"a{token}b"
    assert set(ours.encode(f"a{token}b", False)) & set(ours.all_special_ids)


def test_text_without_control_tokens_is_encoded_alike(ours: Ours) -> None:
    for text in TEXTS:
        if "<s>" not in text:
            assert ours.encode(text, allow_special=False) == ours.encode(text)
    # Tokens that are not special stay what they are.
    assert ours.encode("<think>", allow_special=False) == ours.encode("<think>")


@settings(max_examples=200, deadline=None)
@given(text=MIXED)
def test_no_text_makes_a_control_token(ours: Ours, text: str) -> None:
    ids = ours.encode(text, False, allow_special=False)
    assert not set(ids) & set(ours.all_special_ids)
    assert ours.decode(ids, skip_special_tokens=False) == text
    framed = ours.encode(text, allow_special=False)
    assert framed == [0, *ids]


@settings(max_examples=200, deadline=None)
@given(text=MIXED)
def test_guarding_can_be_undone(ours: Ours, text: str) -> None:
    guarded = ours.guard(text)
    assert ours.unguard(guarded) == text
    assert not any(token in guarded for token in SPECIAL)


@settings(max_examples=200, deadline=None)
@given(user=MIXED)
def test_a_guarded_user_can_not_end_the_turn(ours: Ours, user: str) -> None:
    """The template's own control tokens are real, the user's are not."""
    rendered = f"<s>user\n{ours.guard(user)}<|end|>\n"
    ids = ours.encode_guarded(rendered)
    assert ids[0] == 0
    assert [i for i in ids if i in ours.all_special_ids] == [0, 2]
    assert ours.decode(ids, skip_special_tokens=False) == ours.unguard(rendered)
    if not any(token in user for token in SPECIAL) and MARK not in user:
        assert ids == ours.encode(rendered, add_special_tokens=False)


def test_a_mark_in_the_text_is_only_text(ours: Ours) -> None:
    for text in (f"<{MARK}s>", f"{MARK}<s>", f"<s{MARK}>", MARK, MARK * 3, f"x{MARK}{MARK}"):
        guarded = ours.guard(text)
        ids = ours.encode_guarded(guarded)
        assert ours.decode(ids, skip_special_tokens=False) == text
        assert not set(ids) & set(ours.all_special_ids)


def test_a_mark_between_two_texts_keeps_them_apart(ours: Ours) -> None:
    """A user text that begins a token, and a template whose next character would end it."""
    joined = f"<|end{MARK}|>"
    assert 2 not in ours.encode_guarded(joined)
    before_real = f"<{MARK}<|end|>"
    ids = ours.encode_guarded(before_real)
    assert ids[-1] == 2
    assert ours.decode(ids, skip_special_tokens=False) == "<<|end|>"


def test_guarded_text_gets_one_bos(ours: Ours) -> None:
    ids = ours.encode_guarded(f"<s>{ours.guard('<s>')}", add_special_tokens=True)
    assert ids.count(0) == 1 and ids[0] == 0


@pytest.mark.parametrize(
    ("flags", "before", "after"),
    [({}, [], []), ({"add_bos_token": True}, [0], []),
     ({"add_bos_token": True, "add_eos_token": True}, [0], [1])],
)  # fmt: skip
def test_plain_text_is_framed_like_any_other(
    flags: dict[str, bool], before: list[int], after: list[int], tmp_path: Path
) -> None:
    ours = get_tokenizer(write_folder(tmp_path, trained("gpt-2"), **flags))
    plain = ours.encode("<|end|>", False, allow_special=False)
    assert ours.encode("<|end|>", allow_special=False) == [*before, *plain, *after]
    guarded = f"<s>{ours.guard('<|end|>')}"
    assert ours.encode_guarded(guarded, add_special_tokens=True) == [0, *plain, *after]
    assert ours.encode_guarded(guarded) == [0, *plain]


def sentencepiece_like(scheme: str) -> Tokenizer:
    """Merges that would spell </s> from its parts, and blanks marked as in Llama."""
    alphabet = sorted(set("abcdhelo wr</s>\u2581"))
    vocab = {t: i for i, t in enumerate(["<unk>", "<s>", "</s>", *alphabet, "</", "s>"])}
    merges = [("<", "/"), ("s", ">"), ("</", "s>")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True))
    if scheme == "legacy":
        steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    special = [AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")]
    tokenizer.add_special_tokens(special)
    return tokenizer


@pytest.mark.parametrize("scheme", ["legacy", "first", "always", "never"])
def test_a_vocabulary_that_spells_its_control_tokens(scheme: str, tmp_path: Path) -> None:
    reference = sentencepiece_like(scheme)
    ours = get_tokenizer(write_folder(tmp_path, reference))
    ids = ours.encode("a </s> b", allow_special=False)
    assert 2 not in ids
    assert ours.strips_first_space == (scheme != "never")
    # A guarded text with real tokens keeps their neighbours as the whole tokenizer would have them.
    guarded = f"<s>{ours.guard('</s>')}</s>hello</s> world"
    ids = ours.encode_guarded(guarded)
    assert ids.count(2) == 2
    tail = reference.encode("<s>x</s>hello</s> world").ids
    assert ids[ids.index(2) :] == tail[tail.index(2) :]


def test_special_tokens_that_swallow_blanks(tmp_path: Path) -> None:
    tokenizer = trained("gpt-2")
    tokenizer.add_special_tokens([AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True)])
    ours = get_tokenizer(write_folder(tmp_path, tokenizer))
    text = "a  <l> b <r>  \n c"
    ids = ours.encode_guarded(ours.guard("<s>") + text)
    assert ids[-len(ours.encode(text)) :] == ours.encode(text)


def test_ids_with_gaps(tmp_path: Path) -> None:
    spec = json.loads(trained("gpt-2").to_str())
    vocab = spec["model"]["vocab"]
    last = max(vocab, key=vocab.__getitem__)
    vocab[last] += 50
    ours = get_tokenizer(write_folder(tmp_path, Tokenizer.from_str(json.dumps(spec))))
    assert ours.vocab_size == max(ours.get_vocab().values()) + 1 > vocab[last]
    for text in ("<think>hello", "hello <s>"):
        ids = ours.encode(text, allow_special=False)
        assert ours.decode(ids, skip_special_tokens=False) == text
    assert ours.encode("<think>", allow_special=False) == ours.encode("<think>")
    assert len(ours.encode("<think>")) == 1


def test_long_texts_do_not_hold_the_interpreter(ours: Ours) -> None:
    text = "hello world, this is a text of some length. " * 60_000
    thread = threading.Thread(target=ours.encode, args=(text,))
    longest = 0.0
    thread.start()
    start = last = time.perf_counter()
    while thread.is_alive():
        time.sleep(0.0005)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert last - start > 0.1
    assert longest < (last - start) / 2


def test_many_threads_get_the_same_ids(ours: Ours) -> None:
    texts = [f"{text}{i}" for i, text in enumerate(TEXTS * 20)]
    expected = [(ours.encode(t), ours.encode(t, allow_special=False)) for t in texts]
    results: list[list[tuple[list[int], list[int]]]] = []

    def work() -> None:
        results.append([(ours.encode(t), ours.encode(t, allow_special=False)) for t in texts])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(result == expected for result in results) and len(results) == 6


def test_hostile_megabytes_are_recognised_in_bounded_time(ours: Ours) -> None:
    for unit in ("a", "1", " ", "!", "\n", "ab", "\U0001f93d", "<s>"):
        text = unit * (10_000_000 // len(unit))
        start = time.process_time()
        assert ours.is_far_longer(text, 2000)
        assert time.process_time() - start < 3
    assert not ours.is_far_longer("hello " * 2000, 2000)
    assert not ours.is_far_longer("", 1)


def test_time_grows_with_length_alone(ours: Ours) -> None:
    for unit in ("a", "1", " ", "!", "\n", " a", "<|", "e\u0301"):
        times = []
        for size in (100_000, 400_000):
            start = time.process_time()
            ours.encode(unit * (size // len(unit)))
            times.append(time.process_time() - start)
        assert times[1] < 12 * times[0] + 0.1, unit
