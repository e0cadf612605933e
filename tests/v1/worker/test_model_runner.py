"""The runner under the real scheduler and a model that remembers: right arrays, right tokens."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.v1.worker.paged_fake import PagedFake, bind, logits_after, runner_config
from vllm.sampling_params import SamplingParams
from vllm.v1.core.scheduler import Scheduler
from vllm.v1.messages import EngineCoreOutput, EngineCoreRequest
from vllm.v1.request import Request
from vllm.v1.sample.logits_processors import AdapterLogitsProcessor, CustomProcessors
from vllm.v1.worker.model_runner import ModelRunner


class Engine:
    """Scheduler and runner without anything around them."""

    def __init__(self, model: PagedFake, custom: CustomProcessors | None = None, **fields: Any):
        self.config = runner_config(**fields)
        kv = bind(model, self.config)
        self.scheduler = Scheduler(self.config, kv)
        self.runner = ModelRunner(self.config, model, kv, custom)  # type: ignore[arg-type]
        self.outputs: dict[str, list[EngineCoreOutput]] = {}

    def add(self, name: str, prompt: list[int], params: SamplingParams, seed: int = 0) -> None:
        message = EngineCoreRequest(name, prompt, params, 0.0, [], seed)
        self.scheduler.add_request(Request.from_message(message, 10**6))

    def step(self) -> None:
        scheduled = self.scheduler.schedule()
        result = self.scheduler.update_from_output(scheduled, self.runner.execute_model(scheduled))
        for output in result.outputs:
            self.outputs.setdefault(output.request_id, []).append(output)
        self.scheduler.check_integrity()

    def run(self) -> None:
        while self.scheduler.has_unfinished_requests():
            self.step()

    def tokens(self, name: str) -> list[int]:
        return [t for output in self.outputs.get(name, []) for t in output.new_token_ids]


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 6, **fields})


def solo_greedy(prompt: list[int], count: int, vocab: int = 50) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(logits_after(tokens, vocab))))
    return tokens[len(prompt) :]


prompts = st.lists(st.integers(0, 49), min_size=1, max_size=40)


@given(
    st.lists(st.tuples(prompts, st.integers(1, 12)), min_size=1, max_size=10),
    st.integers(1, 70),
    st.sampled_from([9, 14, 64]),
    st.sampled_from([None, 5, 20]),
    st.booleans(),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_mix_gives_the_tokens_of_a_run_alone(
    requests: list[tuple[list[int], int]],
    chunk: int,
    num_blocks: int,
    window: int | None,
    shares_prefix: bool,
    data: st.DataObject,
) -> None:
    """Chunks, prefix hits, preemption by a tiny pool, requests that come and go at any time."""
    model = PagedFake(window=window)
    engine = Engine(
        model,
        max_num_seqs=4,
        max_num_batched_tokens=max(chunk, 4),
        num_blocks=num_blocks,
        max_model_len=60 if num_blocks > 9 else 52,
    )
    start = [7] * 33 if shares_prefix and num_blocks > 9 else []
    aborted = set()
    for i, (tail, count) in enumerate(requests):
        prompt = [*start, *tail][: 40 if num_blocks > 9 else 30]
        requests[i] = (prompt, count)
        engine.add(str(i), prompt, greedy(max_tokens=count))
        for _ in range(data.draw(st.integers(0, 3))):
            engine.step()
        if data.draw(st.integers(0, 5)) == 0:
            victim = str(data.draw(st.integers(0, i)))
            aborted.add(victim)
            engine.scheduler.finish_requests([victim])
    engine.run()
    for i, (prompt, count) in enumerate(requests):
        tokens, right = engine.tokens(str(i)), solo_greedy(prompt, count)
        assert tokens == (right[: len(tokens)] if str(i) in aborted else right)
    engine.step()
    batch = engine.runner.batch
    assert batch.num_rows_in_use == 0
    assert not batch.token_ids.any() and not batch.num_tokens.any()
    assert not any(table.any() for table in batch.blocks.tables)


def test_decode_step_arrays() -> None:
    model = PagedFake()
    engine = Engine(model)
    engine.add("a", [1, 2, 3], greedy())
    engine.add("b", [4] * 20, greedy())
    engine.step()
    first = model.last
    assert first.query_start.tolist() == [0, 3, 23]
    assert first.positions.tolist() == [0, 1, 2, *range(20)]
    assert first.seq_lens.tolist() == [3, 20] and first.logits_indices.tolist() == [2, 22]
    engine.step()
    second = model.last
    assert second.query_start.tolist() == [0, 1, 2]
    assert second.positions.tolist() == [3, 20] and second.seq_lens.tolist() == [4, 21]
    table = second.block_tables[0]
    assert second.slot_mapping[0].tolist() == [table[0, 0] * 16 + 3, table[1, 1] * 16 + 4]


def test_step_without_any_sample() -> None:
    model = PagedFake()
    engine = Engine(model, max_num_batched_tokens=16)
    engine.add("a", list(range(40)), greedy())
    engine.step()
    assert model.last.logits_indices.tolist() == [] and engine.tokens("a") == []
    engine.run()
    assert engine.tokens("a") == solo_greedy(list(range(40)), 6)


def prompt_entries(engine: Engine, name: str) -> list[Any]:
    return [e for output in engine.outputs[name] for e in output.new_prompt_logprobs or []]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


@pytest.mark.parametrize("chunk", [7, 64])
@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits"])
def test_prompt_logprobs(chunk: int, mode: str) -> None:
    model = PagedFake()
    engine = Engine(model, max_num_batched_tokens=chunk, logprobs_mode=mode, max_num_seqs=5)
    prompt = [(i * i) % 50 for i in range(45)]
    engine.add("other", prompt[:30], greedy())
    engine.add("a", prompt, greedy(prompt_logprobs=2))
    engine.run()
    entries = prompt_entries(engine, "a")
    assert len(entries) == 44 and model.max_rows <= 5
    for i, entry in enumerate(entries):
        logits = logits_after(prompt[: i + 1], 50)
        values = logits if mode == "raw_logits" else log_softmax(logits)
        best = np.argsort(-logits, kind="stable")[:2]
        assert entry.token_ids == [prompt[i + 1], *best]
        np.testing.assert_allclose(entry.logprobs, values[entry.token_ids], rtol=1e-5, atol=1e-5)
        assert entry.ranks == [int((logits >= logits[prompt[i + 1]]).sum()), 1, 2]
    assert engine.tokens("a") == solo_greedy(prompt, 6)


def test_prompt_logprobs_come_once_under_preemption() -> None:
    engine = Engine(PagedFake(), num_blocks=10, max_num_batched_tokens=24)
    prompts = [[(i * k) % 50 for i in range(40)] for k in range(1, 5)]
    for k, prompt in enumerate(prompts):
        engine.add(str(k), prompt, greedy(prompt_logprobs=0, max_tokens=30))
    engine.run()
    for k, prompt in enumerate(prompts):
        assert [e.token_ids[0] for e in prompt_entries(engine, str(k))] == prompt[1:]
        assert engine.tokens(str(k)) == solo_greedy(prompt, 30)


def test_a_failing_row_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(PagedFake())
    for name in ("good", "bad", "fine"):
        engine.add(name, [ord(c) % 50 for c in name], greedy(logprobs=0))
    engine.step()
    bad_row = engine.runner.batch.rows["bad"]
    select = engine.runner.batch.sampling.select

    def fail(slots: Any, *args: Any) -> Any:
        if bad_row in slots.tolist():
            raise ValueError("injected")
        return select(slots, *args)

    monkeypatch.setattr(engine.runner.batch.sampling, "select", fail)
    engine.step()
    last = engine.outputs["bad"][-1]
    assert last.error == "Sampling failed: injected"
    monkeypatch.undo()
    engine.run()
    for name in ("good", "fine"):
        assert engine.tokens(name) == solo_greedy([ord(c) % 50 for c in name], 6)
        assert sum(len(o.new_logprobs or []) for o in engine.outputs[name]) == 6


def test_nan_logits_end_their_request_only() -> None:
    class Broken(PagedFake):
        def logits_rows(self, indices: Any) -> Any:
            logits = super().logits_rows(indices)
            for row, index in enumerate(indices):
                if self._tokens(int(index))[0] == 13:
                    logits[row] = np.nan
            return logits

    engine = Engine(Broken())
    engine.add("bad", [13, 1], greedy())
    engine.add("good", [1, 13], greedy())
    engine.run()
    assert engine.outputs["bad"][-1].error == "The model computed logits that are not numbers."
    assert engine.tokens("good") == solo_greedy([1, 13], 6)


class ForbidLast(AdapterLogitsProcessor):
    """`extra_args={"forbid": "repeats"}`: no token twice in a row; "fail": raise."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        kind = (params.extra_args or {}).get("forbid")
        if kind == "fail":
            return self.fail
        return self.forbid if kind == "prompt" else None

    @staticmethod
    def fail(output_ids: list[int], logits: Any) -> Any:
        if len(output_ids) == 2:
            raise ValueError("third token")
        return logits

    @staticmethod
    def forbid(prompt_ids: list[int], output_ids: list[int], logits: Any) -> Any:
        logits[[*prompt_ids, *output_ids]] = -np.inf
        return logits


def test_custom_logits_processor_over_changing_batches() -> None:
    engine = Engine(PagedFake(), CustomProcessors([ForbidLast(None, "cpu", False)]))  # type: ignore[arg-type]
    engine.add("plain", [3, 4], greedy(max_tokens=12))
    engine.add("fail", [3, 4], greedy(extra_args={"forbid": "fail"}))
    engine.add("short", [9], greedy(max_tokens=2))
    engine.add("distinct", [1, 2], greedy(max_tokens=20, extra_args={"forbid": "prompt"}))
    engine.run()
    assert engine.tokens("plain") == solo_greedy([3, 4], 12)
    assert engine.tokens("short") == solo_greedy([9], 2)
    assert engine.tokens("fail") == solo_greedy([3, 4], 2)
    assert engine.outputs["fail"][-1].error == "Logits processor ForbidLast: third token"
    tokens, right = [1, 2], []
    for _ in range(20):
        logits = logits_after(tokens, 50)
        logits[tokens] = -np.inf
        tokens.append(int(np.argmax(logits)))
        right.append(tokens[-1])
    assert engine.tokens("distinct") == right


@pytest.mark.parametrize(("num_seqs", "limit_ms"), [(1, 0.15), (256, 1.0)])
def test_time_around_the_model(num_seqs: int, limit_ms: float) -> None:
    """Preparing a decode step and handling its tokens; the model itself costs nothing here."""

    class Instant(PagedFake):
        logits = np.zeros((256, 8), np.float32)

        def execute(self, batch: Any) -> Any:
            return self.logits[: len(batch.logits_indices)]

    engine = Engine(
        Instant(vocab_size=8), max_num_seqs=256, max_num_batched_tokens=8192, num_blocks=4096
    )
    for i in range(num_seqs):
        engine.add(str(i), [1] * 20, greedy(max_tokens=100))
    engine.step()
    seconds = []
    for _ in range(40):
        scheduled = engine.scheduler.schedule()
        start = time.perf_counter()
        result = engine.runner.execute_model(scheduled)
        seconds.append(time.perf_counter() - start)
        engine.scheduler.update_from_output(scheduled, result)
    assert sorted(seconds)[len(seconds) // 4] * 1e3 < limit_ms
