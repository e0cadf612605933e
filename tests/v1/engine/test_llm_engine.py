"""LLMEngine over a fake model: outputs of every kind, stops, n, aborts, refusals, errors."""

from pathlib import Path
from typing import Any

import pytest

from tests.v1.engine.fake import (
    CRASH_TOKEN,
    EOS,
    POISON_TOKEN,
    VOCAB,
    continuation,
    fake_config,
    write_tokenizer,
)
from vllm import envs
from vllm.exceptions import QueueOverflowError, VLLMError, VLLMValidationError
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.engine.parallel_sampling import fan_out
from vllm.v1.messages import EngineCoreRequest

PROMPT = [72, 101, 108, 108, 111]


@pytest.fixture
def make_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(envs, "VLLM_ENABLE_V1_MULTIPROCESSING", False)
    write_tokenizer(tmp_path)
    return lambda **fields: LLMEngine(fake_config(tmp_path, **fields))


def drain(engine: LLMEngine) -> dict[str, list[RequestOutput]]:
    outputs: dict[str, list[RequestOutput]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **fields})


def text_of(token_ids: list[int]) -> str:
    return bytes(token_ids).decode()


def test_output_kinds_agree(make_engine: Any) -> None:
    engine = make_engine()
    right = continuation(PROMPT, 8)
    for kind in RequestOutputKind:
        engine.add_request(kind.name, "Hello", greedy(output_kind=kind))
    outputs = drain(engine)
    cumulative = outputs["CUMULATIVE"]
    assert [o.outputs[0].token_ids for o in cumulative] == [right[: i + 1] for i in range(8)]
    assert [o.outputs[0].text for o in cumulative] == [text_of(right[: i + 1]) for i in range(8)]
    deltas = outputs["DELTA"]
    assert [t for o in deltas for t in o.outputs[0].token_ids] == right
    assert "".join(o.outputs[0].text for o in deltas) == text_of(right)
    (final,) = outputs["FINAL_ONLY"]
    assert final.outputs[0].token_ids == right and final.outputs[0].text == text_of(right)
    for last in (cumulative[-1], deltas[-1], final):
        assert last.finished and last.outputs[0].finish_reason == "length"
        assert last.prompt == "Hello" and last.prompt_token_ids == PROMPT
    assert not any(o.finished for o in cumulative[:-1] + deltas[:-1])


def test_stream_interval(make_engine: Any) -> None:
    engine = make_engine(stream_interval=3)
    engine.add_request("a", PROMPT, greedy(output_kind=RequestOutputKind.DELTA))
    engine.add_request(
        "b", PROMPT, greedy(output_kind=RequestOutputKind.DELTA, stream_interval=2, max_tokens=4)
    )
    outputs = drain(engine)
    assert [len(o.outputs[0].token_ids) for o in outputs["a"]] == [1, 3, 3, 1]
    assert [len(o.outputs[0].token_ids) for o in outputs["b"]] == [1, 2, 1]


def test_stop_string_ends_the_request_in_the_engine_too(make_engine: Any) -> None:
    engine = make_engine()
    right = continuation(PROMPT, 20)
    stop = text_of(right[5:8])
    params = greedy(max_tokens=100, stop=[stop], output_kind=RequestOutputKind.DELTA)
    engine.add_request("a", PROMPT, params)
    outputs = drain(engine)["a"]
    last = outputs[-1].outputs[0]
    assert "".join(o.outputs[0].text for o in outputs) == text_of(right[:5])
    assert [t for o in outputs for t in o.outputs[0].token_ids] == right[:8]
    assert (last.finish_reason, last.stop_reason) == ("stop", stop)
    assert not engine._client.core.has_work()


def test_stop_token_text_and_reason(make_engine: Any) -> None:
    engine = make_engine()
    right = continuation(PROMPT, 20)
    end = right[6]
    first = right.index(end)
    for include in (False, True):
        engine.add_request(
            str(include),
            PROMPT,
            greedy(max_tokens=50, stop_token_ids=[end], include_stop_str_in_output=include),
        )
    outputs = drain(engine)
    for include in (False, True):
        last = outputs[str(include)][-1].outputs[0]
        assert last.token_ids == right[: first + 1]
        assert last.text == text_of(right[: first + include])
        assert (last.finish_reason, last.stop_reason) == ("stop", end)


def test_logprobs(make_engine: Any) -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, greedy(logprobs=2, prompt_logprobs=0, max_tokens=3))
    engine.add_request("b", PROMPT, greedy(logprobs=0, detokenize=False, max_tokens=3))
    engine.add_request(
        "c", PROMPT, greedy(logprobs=1, max_tokens=3, output_kind=RequestOutputKind.DELTA)
    )
    outputs = drain(engine)
    right = continuation(PROMPT, 3)
    last = outputs["a"][-1]
    assert last.outputs[0].cumulative_logprob == -1.5
    assert last.outputs[0].logprobs is not None
    for token, entry in zip(right, last.outputs[0].logprobs, strict=True):
        assert list(entry) == [token, token + 1]
        assert entry[token].decoded_token == chr(token)
        assert entry[token + 1].logprob == -1.5 and entry[token + 1].rank == 2
    assert last.prompt_logprobs is not None and last.prompt_logprobs[0] is None
    assert [list(entry or {}) for entry in last.prompt_logprobs[1:]] == [[t] for t in PROMPT[1:]]
    assert last.prompt_logprobs[2] is not None and last.prompt_logprobs[2][108].logprob == -1.0
    plain = outputs["b"][-1].outputs[0]
    assert plain.text == "" and plain.logprobs is not None
    assert plain.logprobs[0][right[0]].decoded_token is None
    assert [len(o.outputs[0].logprobs or []) for o in outputs["c"]] == [1, 1, 1]


def test_prompt_logprobs_over_chunks(make_engine: Any) -> None:
    engine = make_engine(max_num_batched_tokens=16)
    prompt = [97 + i % 26 for i in range(50)]
    engine.add_request("a", prompt, greedy(prompt_logprobs=1, max_tokens=1))
    (output,) = drain(engine)["a"]
    assert output.prompt_logprobs is not None
    found = [next(iter(entry or {})) for entry in output.prompt_logprobs[1:]]
    assert found == prompt[1:]


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_n(make_engine: Any, kind: RequestOutputKind) -> None:
    engine = make_engine()
    params = SamplingParams(n=3, max_tokens=4, output_kind=kind, seed=5)
    engine.add_request("a", PROMPT, params)
    seeds = [s.request.seed for s in engine.front_end.outputs.states.values()]
    assert seeds == [5, 6, 7]
    outputs = drain(engine)["a"]
    right = continuation(PROMPT, 4)
    assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
    if kind is RequestOutputKind.DELTA:
        for index in range(3):
            mine = [c for o in outputs for c in o.outputs if c.index == index]
            assert [t for c in mine for t in c.token_ids] == right
            assert mine[-1].finish_reason == "length"
    else:
        assert [c.index for c in outputs[-1].outputs] == [0, 1, 2]
        assert all(c.token_ids == right for c in outputs[-1].outputs)
    if kind is RequestOutputKind.FINAL_ONLY:
        assert len(outputs) == 1


def test_abort(make_engine: Any) -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, greedy(max_tokens=400))
    engine.add_request("b", PROMPT, greedy(max_tokens=6))
    engine.step()
    engine.abort_request("a")
    engine.abort_request(["a", "unknown"])
    outputs = drain(engine)
    assert [o.outputs[0].finish_reason for o in outputs["a"]] == ["abort"]
    assert outputs["b"][-1].outputs[0].token_ids == continuation(PROMPT, 6)
    core = engine._client.core
    assert not core.has_work() and core.scheduler.kv.usage == 0.0


def test_poison_ends_one_request_only(make_engine: Any) -> None:
    engine = make_engine()
    engine.add_request("bad", [*PROMPT, POISON_TOKEN], greedy())
    engine.add_request("good", PROMPT, greedy())
    outputs = drain(engine)
    bad = outputs["bad"][-1].outputs[0]
    assert (bad.finish_reason, bad.stop_reason) == ("error", "poison")
    assert outputs["good"][-1].outputs[0].token_ids == continuation(PROMPT, 8)


def test_failed_step_ends_its_requests_and_the_next_one_runs(make_engine: Any) -> None:
    engine = make_engine()
    engine.add_request("bad", [*PROMPT, CRASH_TOKEN], greedy())
    assert drain(engine)["bad"][-1].outputs[0].finish_reason == "error"
    engine.add_request("good", PROMPT, greedy())
    assert drain(engine)["good"][-1].outputs[0].token_ids == continuation(PROMPT, 8)


def test_steps_that_fail_in_a_row_end_the_engine(make_engine: Any) -> None:
    engine = make_engine()
    for i in range(2):
        engine.add_request(f"bad{i}", [*PROMPT, CRASH_TOKEN], greedy())
        assert drain(engine)[f"bad{i}"][-1].outputs[0].finish_reason == "error"
    engine.add_request("bad2", [*PROMPT, CRASH_TOKEN], greedy())
    with pytest.raises(RuntimeError, match="the step failed"):
        drain(engine)


def test_error_in_output_handling_ends_one_request_only(
    make_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    engine.add_request("bad", PROMPT, greedy())
    engine.add_request("good", PROMPT, greedy())
    bad = next(s for s in engine.front_end.outputs.states.values() if s.parent.request_id == "bad")
    bad.detokenizer = object()  # type: ignore[assignment]
    outputs = drain(engine)
    assert outputs["bad"][-1].outputs[0].finish_reason == "error"
    assert outputs["good"][-1].outputs[0].token_ids == continuation(PROMPT, 8)
    assert not engine._client.core.has_work()


@pytest.mark.parametrize(
    ("prompt", "fields", "param"),
    [
        ("", {}, "prompt"),
        ([], {}, "prompt"),
        ({"prompt_token_ids": []}, {}, "prompt"),
        ({"other": 1}, {}, "prompt"),
        ({"prompt": 5}, {}, "prompt"),
        ([-1], {}, "prompt_token_ids"),
        ([VOCAB], {}, "prompt_token_ids"),
        ([2**63], {}, "prompt_token_ids"),
        ([1.5], {}, "prompt_token_ids"),
        ([True], {}, "prompt_token_ids"),
        ([[]], {}, "prompt_token_ids"),
        (PROMPT, {"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
        (PROMPT, {"allowed_token_ids": [VOCAB]}, "allowed_token_ids"),
        (PROMPT, {"stop_token_ids": [VOCAB + 50]}, "stop_token_ids"),
        (PROMPT, {"logprob_token_ids": [VOCAB]}, "logprob_token_ids"),
        (PROMPT, {"logprobs": 21}, "logprobs"),
        (PROMPT, {"logprobs": -1}, "logprobs"),
        (PROMPT, {"prompt_logprobs": 21}, "prompt_logprobs"),
        (PROMPT, {"logprobs": 3, "logprob_token_ids": [1, 2]}, "logprobs"),
        (PROMPT, {"max_tokens": None, "min_tokens": 5120}, "min_tokens"),
        (PROMPT, {"truncate_prompt_tokens": 512}, "truncate_prompt_tokens"),
        (PROMPT, {"extra_args": {"x": 1}}, "extra_args"),
        ({"prompt": "a", "cache_salt": ""}, {}, "cache_salt"),
        ({"prompt": "a", "cache_salt": "x" * 1025}, {}, "cache_salt"),
        (PROMPT, {"bad_words": ["x" * 1000]}, "bad_words"),
    ],
)
def test_refusals_name_the_field_and_the_next_request_runs(
    make_engine: Any, prompt: Any, fields: dict[str, Any], param: str
) -> None:
    engine = make_engine()
    with pytest.raises(VLLMValidationError) as refusal:
        engine.add_request("bad", prompt, greedy(**fields))
    assert refusal.value.param == param
    engine.add_request("good", PROMPT, greedy())
    assert drain(engine)["good"][-1].outputs[0].token_ids == continuation(PROMPT, 8)


@pytest.mark.parametrize(
    ("prompt", "fields", "param"),
    [
        ("lone \ud800", {}, "prompt"),
        ({"prompt": "a", "cache_salt": "\udfff"}, {}, "prompt"),
        (PROMPT, {"stop": ["x", "\ud800"]}, "stop"),
        (PROMPT, {"bad_words": ["\ud800"]}, "bad_words"),
    ],
)
def test_lone_surrogates_are_refused(
    make_engine: Any, prompt: Any, fields: dict[str, Any], param: str
) -> None:
    engine = make_engine()
    with pytest.raises(VLLMValidationError, match="surrogate") as refusal:
        engine.add_request("bad", prompt, greedy(**fields))
    assert refusal.value.param == param and not engine.has_unfinished_requests()


def test_a_request_that_can_not_be_sent_leaves_nothing(
    make_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    submit = engine._client.submit

    def fail(message: Any) -> None:
        if not isinstance(message, list):
            raise OverflowError("can't be encoded")
        submit(message)

    monkeypatch.setattr(engine._client, "submit", fail)
    with pytest.raises(OverflowError):
        engine.add_request("a", PROMPT, greedy())
    assert engine.get_num_unfinished_requests() == 0


@pytest.mark.parametrize("prompt", [[65] * 512, "A" * 512, "A" * 5120, "A" * 3_000_000])
def test_context_length_exceeded_names_both_numbers(make_engine: Any, prompt: Any) -> None:
    engine = make_engine()
    with pytest.raises(VLLMValidationError, match="512") as refusal:
        engine.add_request("a", prompt, greedy(max_tokens=None))
    assert refusal.value.code == "context_length_exceeded"
    assert refusal.value.param == "prompt"


def test_room_is_what_the_context_leaves(make_engine: Any) -> None:
    engine = make_engine()
    engine.add_request("one", [65] * 511, greedy(max_tokens=None))
    engine.add_request("clamped", [65] * 509, greedy(max_tokens=100))
    engine.add_request("scored", [65] * 512, greedy(max_tokens=1, prompt_logprobs=0))
    outputs = drain(engine)
    for request_id, count in (("one", 1), ("clamped", 3), ("scored", 1)):
        last = outputs[request_id][-1]
        assert len(last.outputs[0].token_ids) == count
        assert last.outputs[0].finish_reason == "length"
    assert len(outputs["scored"][-1].prompt_logprobs or []) == 512


def test_truncation_keeps_the_end(make_engine: Any) -> None:
    engine = make_engine()
    engine.add_request("a", "A" * 600 + "Hello", greedy(truncate_prompt_tokens=5))
    engine.add_request("b", "A" * 600, greedy(truncate_prompt_tokens=-1, max_tokens=8))
    options = {"truncate_prompt_tokens": 3}
    engine.add_request("c", "B" + "A" * 20, greedy(), tokenization_kwargs=options)
    outputs = drain(engine)
    assert outputs["a"][-1].prompt_token_ids == PROMPT
    assert len(outputs["b"][-1].prompt_token_ids) == 504
    assert outputs["c"][-1].prompt_token_ids == [65] * 3


def test_request_that_never_fits_the_pool_is_refused(make_engine: Any) -> None:
    engine = make_engine(num_gpu_blocks=5)  # 4 usable blocks of 16 tokens
    with pytest.raises(VLLMValidationError, match="64"):
        engine.add_request("a", [65] * 64, greedy())
    engine.add_request("b", [65] * 60, greedy(max_tokens=100))
    assert len(drain(engine)["b"][-1].outputs[0].token_ids) == 4


def test_duplicate_id(make_engine: Any) -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, greedy())
    with pytest.raises(VLLMValidationError, match="in use") as refusal:
        engine.add_request("a", PROMPT, greedy())
    assert refusal.value.param == "request_id"
    assert len(drain(engine)["a"]) == 8
    engine.add_request("a", PROMPT, greedy())
    assert len(drain(engine)["a"]) == 8


def test_bad_words_are_spelled_with_and_without_space(make_engine: Any) -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, greedy(bad_words=["ab", " c"]))
    (state,) = engine.front_end.outputs.states.values()
    assert state.request.sampling_params.bad_words_token_ids == [
        [97, 98], [32, 97, 98], [32, 99]
    ]  # fmt: skip


def test_eos_comes_from_the_files(make_engine: Any, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(
        '{"eos_token_id": [256, 257], "temperature": 0.6, "max_new_tokens": 9}'
    )
    engine = make_engine()
    assert engine.get_default_sampling_params() == {"temperature": 0.6, "max_tokens": 9}
    engine.add_request("a", PROMPT, greedy())
    engine.add_request("b", PROMPT, greedy(ignore_eos=True))
    a, b = engine.front_end.outputs.states.values()
    assert (a.request.eos_token_ids, b.request.eos_token_ids) == ([EOS, 257], [])


def test_priority_needs_its_policy(make_engine: Any) -> None:
    with pytest.raises(VLLMValidationError, match="scheduling-policy"):
        make_engine().add_request("a", PROMPT, greedy(), priority=1)
    with pytest.raises(VLLMValidationError, match="64 bits"):
        make_engine().add_request("a", PROMPT, greedy(), priority=2**70)
    engine = make_engine(scheduling_policy="priority")
    engine.add_request("a", PROMPT, greedy(), priority=1)
    assert len(drain(engine)["a"]) == 8


def test_queue_limits(make_engine: Any) -> None:
    engine = make_engine(max_num_seqs=1, max_num_queued_reqs=1)
    for request_id in ("running", "waiting"):
        engine.add_request(request_id, PROMPT, greedy())
    with pytest.raises(QueueOverflowError) as refusal:
        engine.add_request("over", PROMPT, greedy())
    assert (refusal.value.status, refusal.value.code) == (503, "max_num_queued_reqs")
    assert set(drain(engine)) == {"running", "waiting"}
    engine = make_engine(max_num_seqs=1, max_num_queued_tokens=12)
    for request_id in ("running", "first", "second"):
        engine.add_request(request_id, PROMPT, greedy())
    with pytest.raises(QueueOverflowError) as refusal:
        engine.add_request("over", PROMPT, greedy())
    assert refusal.value.code == "max_num_queued_tokens"


def test_control_calls(make_engine: Any) -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT * 10, greedy())
    drain(engine)
    assert engine.reset_prefix_cache() is True
    engine.add_request("a", PROMPT * 10, greedy())
    assert drain(engine)["a"][-1].num_cached_tokens == 0
    engine.add_request("a", PROMPT * 10, greedy())
    assert drain(engine)["a"][-1].num_cached_tokens == 48
    with pytest.raises(VLLMError, match="no control call"):
        engine._call("os.system")
    with pytest.raises(VLLMValidationError, match="sleep"):
        engine.sleep()


def test_metrics_of_a_request(make_engine: Any) -> None:
    engine = make_engine()
    engine.add_request("a", PROMPT, greedy())
    stats = drain(engine)["a"][-1].metrics
    assert stats is not None and stats.num_generation_tokens == 8
    assert 0 < stats.queued_ts <= stats.scheduled_ts <= stats.first_token_ts <= stats.last_token_ts
    assert stats.first_token_latency >= 0


def test_texts_of_parameters_stay_out_of_what_the_engine_gets() -> None:
    """Else n = 100 would send a long stop string 100 times."""
    for n in (1, 3):
        params = SamplingParams(n=n, stop=["x" * 1000], bad_words=["y"])
        params.bad_words_token_ids = [[5]]
        request = EngineCoreRequest("a", [1, 2], params, 0.0, seed=7)
        children = fan_out(request, [f"a-{index}" for index in range(n)])
        assert [child.seed for child in children] == [7 + index for index in range(n)]
        for child in children:
            sent = child.sampling_params
            assert (sent.n, sent.stop, sent.bad_words) == (1, [], [])
            assert sent.bad_words_token_ids == [[5]]
        assert (params.n, params.stop, params.bad_words) == (n, ["x" * 1000], ["y"])
