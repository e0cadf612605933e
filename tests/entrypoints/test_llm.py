"""LLM over a tiny random model: order, parameters, refusals, seeds, beams, chat, progress."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from tests.v1.engine.fake import EOS, VOCAB
from tests.v1.engine.real_config import write_model
from vllm import LLM, SamplingParams, envs
from vllm.exceptions import ConfigError, VLLMError, VLLMValidationError
from vllm.sampling_params import BeamSearchParams
from vllm.v1.sample.logits_processors import AdapterLogitsProcessor

PROMPTS = ["Hello", "How are you", "x"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("llm"))


@pytest.fixture
def make_llm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(envs, "VLLM_ENABLE_V1_MULTIPROCESSING", False)

    def make(**fields: Any) -> LLM:
        small = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "num_gpu_blocks_override": 128}
        return LLM(str(folder), **{"load_format": "dummy", "block_size": 16, **small, **fields})

    return make


@pytest.fixture(scope="module")
def llm(folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envs, "VLLM_ENABLE_V1_MULTIPROCESSING", False)
        yield LLM(
            str(folder),
            load_format="dummy",
            block_size=16,
            max_num_seqs=8,
            max_num_batched_tokens=128,
            num_gpu_blocks_override=128,
            max_logprobs=-1,
        )


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 6, "ignore_eos": True, **fields})


def tokens(outputs: Any) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def test_outputs_are_in_order_whatever_their_length(llm: LLM) -> None:
    params = [greedy(max_tokens=n) for n in (9, 1, 4)]
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [output.prompt for output in outputs] == PROMPTS
    assert [len(ids) for ids in tokens(outputs)] == [9, 1, 4]
    assert all(output.finished for output in outputs)
    again = [llm.generate(p, q, use_tqdm=False)[0] for p, q in zip(PROMPTS, params, strict=True)]
    assert tokens(again) == tokens(outputs)


def test_every_form_of_a_prompt(llm: LLM) -> None:
    ids = list(b"Hello")
    forms: list[Any] = [
        "Hello", ids, {"prompt": "Hello"}, {"prompt_token_ids": ids}, ["Hello"], [ids]
    ]  # fmt: skip
    results = [tokens(llm.generate(form, greedy(), use_tqdm=False)) for form in forms]
    assert all(result == results[0] for result in results)
    assert llm.generate([], greedy()) == []


def test_one_bad_prompt_refuses_all_and_leaves_nothing(llm: LLM) -> None:
    with pytest.raises(VLLMValidationError, match="from 0 to"):
        llm.generate([[65], [VOCAB]], greedy(), use_tqdm=False)
    with pytest.raises(ValueError, match="2 parameters were given for 3 prompts"):
        llm.generate(PROMPTS, [greedy(), greedy()], use_tqdm=False)
    with pytest.raises(VLLMValidationError, match="must be SamplingParams"):
        llm.generate("a", {"temperature": 0}, use_tqdm=False)  # type: ignore[arg-type]
    assert llm.llm_engine.get_num_unfinished_requests() == 0
    assert len(llm.generate(PROMPTS, greedy(), use_tqdm=False)) == 3


def test_enqueue_then_wait(llm: LLM) -> None:
    first = llm.enqueue(PROMPTS[:2], greedy())
    second = llm.enqueue(PROMPTS[2], greedy(max_tokens=2))
    assert len({*first, *second}) == 3
    between = llm.generate("between", greedy(max_tokens=1), use_tqdm=False)
    assert [output.prompt for output in between] == ["between"]
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in outputs] == first + second
    assert tokens(outputs)[:2] == tokens(llm.generate(PROMPTS[:2], greedy(), use_tqdm=False))
    assert llm.wait_for_completion() == []


def test_runs_repeat_and_requests_differ(make_llm: Any) -> None:
    drawn = SamplingParams(temperature=1.5, max_tokens=12, ignore_eos=True)
    first = tokens(make_llm(seed=1).generate(["a"] * 4, drawn, use_tqdm=False))
    assert first == tokens(make_llm(seed=1).generate(["a"] * 4, drawn, use_tqdm=False))
    assert len({tuple(ids) for ids in first}) == 4
    assert first != tokens(make_llm(seed=2).generate(["a"] * 4, drawn, use_tqdm=False))


def test_n_and_seed(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=7, temperature=1.0, max_tokens=8, ignore_eos=True)
    (output,) = llm.generate("Hello", params, use_tqdm=False)
    assert [one.index for one in output.outputs] == [0, 1, 2]
    for one in output.outputs:
        alone = SamplingParams(seed=7 + one.index, temperature=1.0, max_tokens=8, ignore_eos=True)
        assert tokens(llm.generate("Hello", alone, use_tqdm=False)) == [one.token_ids]


def test_default_parameters_are_the_models(folder: Path, make_llm: Any, llm: LLM) -> None:
    assert llm.get_default_sampling_params() == SamplingParams()
    own = make_llm(override_generation_config={"temperature": 0.0, "max_new_tokens": 3})
    (output,) = own.generate("Hello", use_tqdm=False)
    assert own.get_default_sampling_params().temperature == 0.0
    assert len(output.outputs[0].token_ids) <= 3


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_beam_search_against_a_search_over_all_tokens(llm: LLM, penalty: float) -> None:
    width, length = 3, 4
    params = BeamSearchParams(beam_width=width, max_tokens=length, length_penalty=penalty)
    results = llm.beam_search(PROMPTS[:2], params)
    for prompt, result in zip(PROMPTS, results, strict=False):
        right = search(llm, list(prompt.encode()), width, length, penalty)
        assert [beam.tokens for beam in result.sequences] == [ids for ids, _ in right]
        for beam, (ids, total) in zip(result.sequences, right, strict=True):
            assert math.isclose(beam.cum_logprob, total, rel_tol=1e-5)
            assert len(beam.logprobs) == len(ids) - len(prompt)
            assert beam.text == llm.get_tokenizer().decode(ids)


def search(
    llm: LLM, prompt: list[int], width: int, length: int, penalty: float
) -> list[tuple[list[int], float]]:
    """Beam search that looks at the whole vocabulary; EOS ends a beam."""
    beams, ended = [(prompt, 0.0)], []
    for _ in range(length):
        grown = []
        for ids, total in beams:
            (output,) = llm.generate([ids], greedy(max_tokens=1, logprobs=-1), use_tqdm=False)
            assert output.outputs[0].logprobs is not None
            entries = output.outputs[0].logprobs[0]
            assert len(entries) == VOCAB
            best = sorted(entries, key=lambda token: -entries[token].logprob)[: 2 * width]
            grown += [([*ids, token], total + entries[token].logprob) for token in best]
        ended += [beam for beam in grown if beam[0][-1] == EOS]
        grown = [beam for beam in grown if beam[0][-1] != EOS]
        beams = sorted(grown, key=lambda beam: -beam[1])[:width]

    def score(beam: tuple[list[int], float]) -> float:
        size = len(beam[0]) - len(prompt) - (beam[0][-1] == EOS)
        return beam[1] / max(1, size) ** penalty

    return sorted(ended + beams, key=score, reverse=True)[:width]


def test_beam_search_limits(make_llm: Any, llm: LLM) -> None:
    with pytest.raises(VLLMValidationError, match="twice as many logprobs") as refusal:
        make_llm().beam_search("a", BeamSearchParams(beam_width=11, max_tokens=2))
    assert refusal.value.param == "beam_width"
    with pytest.raises(VLLMValidationError, match="must be 0 or 1"):
        llm.beam_search("a", BeamSearchParams(beam_width=2, max_tokens=2, temperature=0.5))
    short = make_llm(max_model_len=32)
    (full,) = short.beam_search([[65] * 30], BeamSearchParams(beam_width=2, max_tokens=50))
    assert [len(beam.tokens) for beam in full.sequences] == [32, 32]
    outputs = llm.beam_search(
        PROMPTS, BeamSearchParams(beam_width=2, max_tokens=3), concurrency_limit=1
    )
    together = llm.beam_search(PROMPTS, BeamSearchParams(beam_width=2, max_tokens=3))
    assert [[b.tokens for b in o.sequences] for o in outputs] == [
        [b.tokens for b in o.sequences] for o in together
    ]


TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_chat(make_llm: Any) -> None:
    llm = make_llm(chat_template=TEMPLATE)
    one = [{"role": "user", "content": "Hi"}]
    two = [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi<eos>"}]
    outputs = llm.chat([one, two], greedy(), use_tqdm=False)
    assert [output.prompt for output in outputs] == [
        "<user>Hi<assistant>",
        "<system>S<user>Hi<eos><assistant>",
    ]
    assert EOS not in outputs[1].prompt_token_ids, "a user can't write control tokens"
    (alone,) = llm.chat(one, greedy(), use_tqdm=False)
    assert alone.outputs[0].token_ids == outputs[0].outputs[0].token_ids
    plain = llm.generate("<user>Hi<assistant>", greedy(), use_tqdm=False)
    assert tokens(plain) == tokens([alone])
    with pytest.raises(VLLMValidationError, match="tool"):
        llm.chat(one, greedy(), tools=[{"type": "function"}])
    own = llm.chat(one, greedy(), chat_template="{{ messages[0].content }}", use_tqdm=False)
    assert own[0].prompt == "Hi"


def test_progress_counts_prompts_and_tokens(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS, greedy())
    shown = capsys.readouterr().err
    assert "Processed prompts" in shown and "3/3" in shown and "output:" in shown
    calls: list[Any] = []

    class Bar:
        def __init__(self, **options: Any) -> None:
            calls.append(options["total"])
            self.postfix = ""

        def update(self, count: int) -> None:
            calls.append(count)

        def close(self) -> None:
            calls.append("closed")

    llm.generate(PROMPTS, greedy(), use_tqdm=Bar)
    assert calls == [3, 1, 1, 1, "closed"]
    llm.generate(PROMPTS, greedy(), use_tqdm=False)
    assert capsys.readouterr().err == ""


class Prefer(AdapterLogitsProcessor):
    """`extra_args={"prefer": id}` makes that token the best."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        wanted = (sampling_params.extra_args or {}).get("prefer")
        if wanted is not None and not isinstance(wanted, int):
            raise ValueError("prefer must be a token id")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        wanted = (params.extra_args or {}).get("prefer")
        if wanted is None:
            return None

        def prefer(output_ids: list[int], logits: Any) -> Any:
            logits[wanted] = 1e4
            return logits

        return prefer


@pytest.mark.parametrize("in_process", [True, False])
def test_custom_logits_processors(
    make_llm: Any, llm: LLM, monkeypatch: pytest.MonkeyPatch, in_process: bool
) -> None:
    monkeypatch.setattr(envs, "VLLM_ENABLE_V1_MULTIPROCESSING", not in_process)
    own = make_llm(logits_processors=[Prefer] if in_process else [f"{__name__}:Prefer"])
    params = [greedy(), greedy(extra_args={"prefer": 77}), greedy()]
    outputs = own.generate(["Hello"] * 3, params, use_tqdm=False)
    assert tokens(outputs)[1] == [77] * 6
    plain = tokens(llm.generate("Hello", greedy(), use_tqdm=False))[0]
    assert tokens(outputs)[0] == tokens(outputs)[2] == plain
    with pytest.raises(VLLMValidationError, match="prefer must be"):
        own.generate("Hello", greedy(extra_args={"prefer": "x"}), use_tqdm=False)
    own.shutdown()


def test_processors_that_another_process_can_not_find(
    make_llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envs, "VLLM_ENABLE_V1_MULTIPROCESSING", True)
    local = type("Local", (Prefer,), {"__module__": "__main__"})
    with pytest.raises(ConfigError, match="module of its own"):
        make_llm(logits_processors=[local])
    with pytest.raises(ConfigError, match="can't be imported"):
        make_llm(logits_processors=["nowhere:Nothing"])


def test_process_mode_gives_the_same_tokens(
    make_llm: Any, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = tokens(llm.generate(PROMPTS, greedy(), use_tqdm=False))
    monkeypatch.setattr(envs, "VLLM_ENABLE_V1_MULTIPROCESSING", True)
    other = make_llm()
    assert tokens(other.generate(PROMPTS, greedy(), use_tqdm=False)) == right
    assert other.reset_prefix_cache() is True
    other.shutdown()


def test_padded_ids_are_never_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head has 40 rows more than the tokenizer has tokens."""
    monkeypatch.setattr(envs, "VLLM_ENABLE_V1_MULTIPROCESSING", False)
    padded = LLM(
        str(write_model(tmp_path, vocab_size=VOCAB + 40)),
        load_format="dummy",
        num_gpu_blocks_override=64,
        max_logprobs=-1,
    )
    params = SamplingParams(temperature=2.0, max_tokens=400, logprobs=-1, ignore_eos=True)
    (output,) = padded.generate("Hello", params, use_tqdm=False)
    assert max(output.outputs[0].token_ids) < VOCAB
    assert output.outputs[0].logprobs is not None
    entry = output.outputs[0].logprobs[0]
    assert {entry[token].logprob for token in range(VOCAB, VOCAB + 40)} == {-math.inf}
    mass = sum(math.exp(one.logprob) for one in entry.values())
    assert math.isclose(mass, 1.0, rel_tol=1e-4)


def test_metrics(make_llm: Any, llm: LLM) -> None:
    with pytest.raises(VLLMError, match="disable_log_stats=False"):
        llm.get_metrics()
    counting = make_llm(disable_log_stats=False)
    counting.generate(PROMPTS, greedy(), use_tqdm=False)
    values = {metric.name: metric for metric in counting.get_metrics()}
    assert values["vllm:generation_tokens"].value == 18
    assert values["vllm:prompt_tokens"].value == sum(map(len, PROMPTS))


def test_what_there_is_not_is_refused(llm: LLM) -> None:
    for call in (llm.sleep, llm.wake_up, llm.start_profile):
        with pytest.raises(VLLMValidationError, match="not supported"):
            call()
    with pytest.raises(ValueError, match="pooling"):
        llm.embed(["a"])
    with pytest.raises(VLLMValidationError, match="foreign calls"):
        llm.collective_rpc("f")
    with pytest.raises(VLLMValidationError, match="adapters"):
        llm.generate("a", greedy(), lora_request=object(), use_tqdm=False)
    with pytest.raises(ConfigError, match="did you mean"):
        LLM("x", max_num_seq=3)


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("allowed_token_ids", {"allowed_token_ids": [EOS], "min_tokens": 3, "ignore_eos": False}),
        ("allowed_token_ids", {"allowed_token_ids": [72, 73], "bad_words": ["H", "I"]}),
        ("allowed_token_ids", {"allowed_token_ids": [7], "stop_token_ids": [7], "min_tokens": 1}),
        ("min_tokens", {"stop_token_ids": list(range(VOCAB)), "min_tokens": 2}),
    ],
)
def test_parameters_that_forbid_every_token_are_refused(
    llm: LLM, field: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(VLLMValidationError, match="No token may be generated") as raised:
        llm.generate("Hello", greedy(**fields), use_tqdm=False)
    assert raised.value.param == field


@pytest.mark.parametrize("wrong", [None, 5, b"hi", 1.5])
def test_values_of_a_wrong_type_are_refused_by_name(llm: LLM, wrong: Any) -> None:
    beams = BeamSearchParams(beam_width=2, max_tokens=2)
    calls: dict[str, Any] = {
        "prompts": [lambda: llm.generate(wrong), lambda: llm.beam_search(wrong, beams)],
        "sampling_params": [lambda: llm.generate(["a"], [wrong])],
        "params": [lambda: llm.beam_search(["a"], wrong)],
        "messages": [lambda: llm.chat(wrong)],
    }
    for field, ways in calls.items():
        for call in ways:
            with pytest.raises(VLLMValidationError, match=f"^{field}") as raised:
                call()
            assert raised.value.param == field


def test_skip_tokenizer_init(make_llm: Any, llm: LLM) -> None:
    bare = make_llm(skip_tokenizer_init=True)
    right = tokens(llm.generate([list(b"Hello")], greedy(), use_tqdm=False))
    outputs = bare.generate([list(b"Hello")], greedy(), use_tqdm=False)
    assert tokens(outputs) == right and outputs[0].outputs[0].text == ""
    for prompt, fields in (("Hello", {}), ([72], {"stop": "x"}), ([72], {"bad_words": ["x"]})):
        with pytest.raises(VLLMValidationError, match="tokenizer"):
            bare.generate(prompt, greedy(**fields), use_tqdm=False)
    with pytest.raises(VLLMError, match="skip_tokenizer_init"):
        bare.get_tokenizer()


def test_extreme_values_hurt_nobody_else(llm: LLM) -> None:
    right = tokens(llm.generate(["Hello"], greedy(), use_tqdm=False))[0]
    extreme: list[dict[str, Any]] = [
        {"top_k": 2**62, "temperature": 1.0},
        {"repetition_penalty": 1e308},
        {"repetition_penalty": 1e-308, "temperature": 2.0},
        {"seed": -(2**63), "temperature": 1.0},
        {"seed": 2**63 - 1, "temperature": 1.0},
        {"top_p": 1e-300, "temperature": 0.01},
        {"min_p": 1.0, "temperature": 2.0},
        {"logit_bias": dict.fromkeys(range(VOCAB), -100.0)},
        {"allowed_token_ids": [5], "logit_bias": {5: -100.0}, "logprobs": -1},
        {"allowed_token_ids": [ord("a")], "bad_words": ["aa"]},
        {"bad_words": [chr(i) for i in range(33, 127)]},
        {"stop_token_ids": list(range(VOCAB - 1)), "min_tokens": 2},
        {"temperature": 1e-30, "top_k": -1},
    ]
    params = [one for fields in extreme for one in (greedy(**fields), greedy())]
    outputs = llm.generate(["Hello"] * len(params), params, use_tqdm=False)
    assert tokens(outputs[1::2]) == [right] * len(extreme)
    for fields, output in zip(extreme, outputs[::2], strict=True):
        completion = output.outputs[0]
        leaves_nothing = fields.get("bad_words") == ["aa"]
        wanted = ("error",) if leaves_nothing else ("length", "stop")
        assert completion.finish_reason in wanted, fields
        assert all(0 <= token < VOCAB for token in completion.token_ids)
    assert outputs[16].outputs[0].token_ids == [5] * 6
    assert "no token that may be" in str(outputs[18].outputs[0].stop_reason)


def test_ids_go_on(llm: LLM) -> None:
    ids = [llm.generate("a", greedy(max_tokens=1), use_tqdm=False)[0].request_id for _ in range(3)]
    assert [int(b) - int(a) for a, b in itertools.pairwise(ids)] == [1, 1]
