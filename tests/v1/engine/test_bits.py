"""Same request, same bits: tokens and logprobs of a request do not depend on what else runs.

A tiny random model runs every request alone: one thread, program, one chunk, no cache. Then random
mixes of batch, chunk size, prefix hits, preemption by a tiny pool, aborts, threads, program or
op-by-op must give exactly the same numbers.
"""

import asyncio
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.v1.engine.real_config import real_config, write_model
from vllm import envs
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import output_processor
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.llm_engine import LLMEngine

VOCAB = 260
CONTEXT = 160


@dataclass(frozen=True)
class Asked:
    """One request, hashable."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    penalty: float
    seed: int
    prompt_logprobs: int | None
    constraint: int = 0
    logprobs: int | None = 3

    def params(self) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            repetition_penalty=self.penalty,
            seed=self.seed,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **CONSTRAINTS[self.constraint],
        )


# State of a finished request must not reach the next one in its row of the batch.
CONSTRAINTS: list[dict[str, Any]] = [
    {},
    {"allowed_token_ids": list(range(40, 90))},
    {"logit_bias": {65: -100.0, 66: 5.0}, "min_p": 0.1},
    {"bad_words": ["a", "bc"], "presence_penalty": 1.0},
    {"stop_token_ids": list(range(0, VOCAB, 4)), "min_tokens": 1},
    {"stop": ["e", "th"], "include_stop_str_in_output": True},
]


def numbers(output: RequestOutput) -> Any:
    """Everything that must be equal; floats as exact bits."""
    (completion,) = output.outputs
    entries = [completion.logprobs, output.prompt_logprobs]
    exact = [
        [
            entry and {token: (one.logprob.hex(), one.rank) for token, one in entry.items()}
            for entry in group or []
        ]
        for group in entries
    ]
    return completion.token_ids, completion.text, exact


# The prompts share beginnings of more than a block, so that caches are hit.
BEGINNINGS = [tuple((i * k) % 251 for i in range(48)) for k in (3, 7)]
asked = st.builds(
    Asked,
    prompt=st.builds(
        lambda start, length, tail: (*start[:length], *tail),
        st.sampled_from(BEGINNINGS),
        st.sampled_from([0, 5, 16, 33, 48]),
        st.lists(st.integers(0, 250), min_size=1, max_size=40).map(tuple),
    ),
    max_tokens=st.integers(1, 24),
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 20]),
    penalty=st.sampled_from([1.0, 1.2]),
    seed=st.integers(0, 3),
    prompt_logprobs=st.sampled_from([None, None, 2]),
    constraint=st.sampled_from([0, 0, *range(len(CONSTRAINTS))]),
    logprobs=st.sampled_from([3, None]),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("bits"), num_hidden_layers=2)


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envs, "VLLM_ENABLE_V1_MULTIPROCESSING", False)


def make_engine(folder: Path, **fields: Any) -> LLMEngine:
    return LLMEngine(real_config(folder, max_model_len=CONTEXT, **fields))


@lru_cache(maxsize=1)
def solo_engine(folder: Path) -> LLMEngine:
    return make_engine(folder, enable_prefix_caching=False, max_num_batched_tokens=512)


@cache
def solo(folder: Path, request: Asked) -> Any:
    engine = solo_engine(folder)
    engine.add_request("solo", list(request.prompt), request.params())
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return numbers(outputs[-1])


@given(
    requests=st.lists(asked, min_size=1, max_size=32),
    max_num_seqs=st.sampled_from([1, 3, 32]),
    chunk=st.sampled_from([32, 37, 64, 512]),
    num_blocks=st.sampled_from([12, 20, 200]),
    caches=st.booleans(),
    num_threads=st.sampled_from([1, 2]),
    is_eager=st.booleans(),
    data=st.data(),
)
@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking would take minutes
)
def test_any_mix_gives_the_bits_of_a_run_alone(
    folder: Path,
    requests: list[Asked],
    max_num_seqs: int,
    chunk: int,
    num_blocks: int,
    caches: bool,
    num_threads: int,
    is_eager: bool,
    data: st.DataObject,
) -> None:
    right = [solo(folder, request) for request in requests]
    engine = make_engine(
        folder,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=chunk,
        num_gpu_blocks=num_blocks,
        enable_prefix_caching=caches,
        num_threads=num_threads,
        enforce_eager=is_eager,
    )
    outputs: dict[str, RequestOutput] = {}

    def step() -> None:
        outputs.update({output.request_id: output for output in engine.step()})

    for i, request in enumerate(requests):
        engine.add_request(str(i), list(request.prompt), request.params())
        for _ in range(data.draw(st.integers(0, 2))):
            step()
        if data.draw(st.integers(0, 9)) == 0:
            engine.abort_request(str(data.draw(st.integers(0, i))))
    while engine.has_unfinished_requests():
        step()
    engine.shutdown()
    solo_engine.cache_clear()  # its thread count is no longer set
    assert len(outputs) == len(requests)
    for i in range(len(requests)):
        output = outputs[str(i)]
        if output.outputs[0].finish_reason != "abort":
            assert numbers(output) == right[i], f"request {i} differs"


async def test_64_streams_in_a_pool_that_preempts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [
        Asked(
            prompt=(*BEGINNINGS[i % 2][: 16 * (i % 3)], i, i + 1, i + 2),
            max_tokens=40,
            temperature=(0.0, 0.9)[i % 2],
            top_p=0.9,
            top_k=0,
            penalty=1.0,
            seed=i,
            prompt_logprobs=None,
        )
        for i in range(64)
    ]
    right = [solo(folder, request) for request in requests]
    monkeypatch.setattr(envs, "VLLM_ENABLE_V1_MULTIPROCESSING", True)
    engine = AsyncLLM(
        real_config(folder, max_model_len=CONTEXT, max_num_seqs=64, num_gpu_blocks=48)
    )
    preemptions = []
    record = engine.front_end.record

    def count(stats: Any, processed: Any) -> None:
        preemptions.append(stats.num_preemptions if stats else 0)
        record(stats, processed)

    monkeypatch.setattr(engine.front_end, "record", count)

    async def stream(i: int) -> Any:
        params = requests[i].params()
        params.output_kind = RequestOutputKind.CUMULATIVE
        last = None
        async for output in engine.generate(list(requests[i].prompt), params, str(i)):
            last = output
        assert last is not None
        return numbers(last)

    try:
        results = await asyncio.gather(*(stream(i) for i in range(64)))
    finally:
        engine.shutdown()
    assert results == right
    assert sum(preemptions) > 0, "the pool was meant to be too small"


async def test_streams_continue_with_the_same_bits_on_a_new_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine process is killed twice while requests of every kind run."""
    requests = [
        Asked(
            prompt=(*BEGINNINGS[i % 2][:20], i),
            max_tokens=60,
            temperature=(0.0, 0.8, 1.2)[i % 3],
            top_p=(1.0, 0.9)[i % 2],
            top_k=0,
            penalty=(1.0, 1.3)[i // 2 % 2],
            seed=i,
            prompt_logprobs=(None, 1)[i % 2],
        )
        for i in range(12)
    ]
    right = [solo(folder, request) for request in requests]
    monkeypatch.setattr(envs, "VLLM_ENABLE_V1_MULTIPROCESSING", True)
    monkeypatch.setattr(output_processor, "MAX_ENGINE_DEATHS", 3)
    engine = AsyncLLM(real_config(folder, max_model_len=CONTEXT, max_num_seqs=12))

    async def stream(i: int) -> Any:
        params = requests[i].params()
        params.output_kind = RequestOutputKind.CUMULATIVE
        outputs = [o async for o in engine.generate(list(requests[i].prompt), params, str(i))]
        return numbers(outputs[-1])

    async def kill(num_tokens: int) -> None:
        states = engine.front_end.outputs.states
        while len(states) < 12 or max(len(s.token_ids) for s in states.values()) < num_tokens:
            await asyncio.sleep(0.001)
        engine._client.process.process.kill()  # type: ignore[union-attr]
        dead = engine._client.process  # type: ignore[union-attr]
        while engine._client.process is dead:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)

    try:
        streams = asyncio.gather(*(stream(i) for i in range(12)))
        await kill(3)
        await kill(20)
        assert await streams == right
    finally:
        engine.shutdown()
