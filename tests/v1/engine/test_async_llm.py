"""AsyncLLM over a fake model in a thread: streaming, aborts, slow readers, deaths, health."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.v1.engine.fake import (
    CRASH_TOKEN,
    POISON_TOKEN,
    continuation,
    fake_config,
    write_tokenizer,
)
from vllm import envs
from vllm.exceptions import (
    EngineDeadError,
    EngineGenerateError,
    QueueOverflowError,
    VLLMValidationError,
)
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

STEP_US = 1000
PROMPT = [72, 101, 108, 108, 111]


@pytest.fixture
async def make_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(envs, "VLLM_ENABLE_V1_MULTIPROCESSING", False)
    write_tokenizer(tmp_path)
    engines: list[AsyncLLM] = []

    def make(**fields: Any) -> AsyncLLM:
        engines.append(AsyncLLM(fake_config(tmp_path, **{"seed": STEP_US, **fields})))
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown()


def greedy(**fields: Any) -> SamplingParams:
    given = {"temperature": 0.0, "max_tokens": 8, "output_kind": RequestOutputKind.DELTA, **fields}
    return SamplingParams(**given)


async def collect(
    engine: AsyncLLM, request_id: str, prompt: Any = PROMPT, **fields: Any
) -> list[RequestOutput]:
    return [one async for one in engine.generate(prompt, greedy(**fields), request_id)]


def tokens_of(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.outputs[0].token_ids]


def core_of(engine: AsyncLLM) -> Any:
    return engine._client.core  # type: ignore[union-attr]


async def test_many_streams_at_once(make_engine: Any) -> None:
    engine = make_engine()
    prompts = [[*PROMPT, 65 + i] for i in range(40)]
    results = await asyncio.gather(
        *(collect(engine, f"r{i}", prompt, max_tokens=20) for i, prompt in enumerate(prompts))
    )
    for prompt, outputs in zip(prompts, results, strict=True):
        right = continuation(prompt, 20)
        assert tokens_of(outputs) == right
        assert "".join(o.outputs[0].text for o in outputs) == bytes(right).decode()
        assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
    assert engine.num_unfinished_requests == 0


async def test_slow_reader_gets_merged_deltas(make_engine: Any) -> None:
    engine = make_engine()
    stream = engine.generate(PROMPT, greedy(max_tokens=50, logprobs=0, n=1), "slow")
    outputs = [await anext(stream)]
    await collect(engine, "other", max_tokens=60)
    outputs += [output async for output in stream]
    assert len(outputs) == 2, "everything after the first output was merged into one"
    assert tokens_of(outputs) == continuation(PROMPT, 50)
    assert sum(len(o.outputs[0].logprobs or []) for o in outputs) == 50
    assert outputs[-1].outputs[0].cumulative_logprob == -25.0


@pytest.mark.parametrize("num_before", [0, 1, 5])
async def test_closing_the_generator_aborts(make_engine: Any, num_before: int) -> None:
    engine = make_engine()
    stream = engine.generate(PROMPT, greedy(max_tokens=500), "a")
    for _ in range(num_before):
        await anext(stream)
    await stream.aclose()
    await wait_until(lambda: not core_of(engine) or not core_of(engine).has_work())
    assert engine.num_unfinished_requests == 0
    assert tokens_of(await collect(engine, "a")) == continuation(PROMPT, 8)
    assert core_of(engine).scheduler.kv.usage == 0.0


async def test_cancelling_the_task_aborts(make_engine: Any) -> None:
    engine = make_engine()
    task = asyncio.create_task(collect(engine, "a", max_tokens=500))
    await wait_until(lambda: engine.num_unfinished_requests == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: not core_of(engine).has_work())
    assert engine.num_unfinished_requests == 0


async def test_closing_an_old_generator_does_not_end_a_new_request(make_engine: Any) -> None:
    engine = make_engine()
    old = engine.generate([*PROMPT, POISON_TOKEN], greedy(), "a")
    with pytest.raises(EngineGenerateError, match="poison"):
        await anext(old)
    new = engine.generate(PROMPT, greedy(max_tokens=30), "a")
    outputs = [await anext(new)]
    await old.aclose()
    outputs += [output async for output in new]
    assert tokens_of(outputs) == continuation(PROMPT, 30)


async def test_abort_by_id_ends_the_stream(make_engine: Any) -> None:
    engine = make_engine()
    stream = engine.generate(PROMPT, greedy(max_tokens=500), "a")
    outputs = [await anext(stream)]
    await engine.abort(["a", "unknown"])
    outputs += [output async for output in stream]
    assert outputs[-1].finished and outputs[-1].outputs[0].finish_reason == "abort"
    count = len(tokens_of(outputs))
    assert tokens_of(outputs) == continuation(PROMPT, count)


async def test_retries_after_aborts_equal_solo_runs(make_engine: Any) -> None:
    engine = make_engine()
    await engine.wait_ready()
    background = asyncio.create_task(collect(engine, "background", max_tokens=400))
    for round_ in range(3):
        streams = [
            engine.generate([*PROMPT, i], greedy(max_tokens=300), f"{round_}-{i}") for i in range(5)
        ]
        for stream in streams:
            await anext(stream)
            await stream.aclose()
        retries = await asyncio.gather(
            *(collect(engine, f"{round_}-{i}", [*PROMPT, i], max_tokens=12) for i in range(5))
        )
        assert [tokens_of(r) for r in retries] == [
            continuation([*PROMPT, i], 12) for i in range(5)
        ]
    assert tokens_of(await background) == continuation(PROMPT, 400)


async def test_refusal_and_duplicate_id(make_engine: Any) -> None:
    engine = make_engine()
    with pytest.raises(VLLMValidationError, match="token ids are from 0"):
        await collect(engine, "a", [-1])
    stream = engine.generate(PROMPT, greedy(max_tokens=100), "a")
    outputs = [await anext(stream)]
    with pytest.raises(VLLMValidationError, match="in use"):
        await collect(engine, "a")
    outputs += [output async for output in stream]
    assert tokens_of(outputs) == continuation(PROMPT, 100)


async def test_error_of_one_request(make_engine: Any) -> None:
    engine = make_engine()
    good = asyncio.create_task(collect(engine, "good"))
    with pytest.raises(EngineGenerateError, match="poison"):
        await collect(engine, "bad", [*PROMPT, POISON_TOKEN])
    assert tokens_of(await good) == continuation(PROMPT, 8)
    with pytest.raises(EngineGenerateError):
        await collect(engine, "bad", [*PROMPT, POISON_TOKEN], n=1)
    await engine.check_health()


async def test_engine_without_restart_fails_everything_and_says_so(make_engine: Any) -> None:
    engine = make_engine(max_num_seqs=2)
    await collect(engine, "first")
    for i in range(2):
        with pytest.raises(EngineGenerateError):
            await collect(engine, f"crash{i}", [*PROMPT, CRASH_TOKEN])
    with pytest.raises(EngineDeadError):
        await collect(engine, "crash2", [*PROMPT, CRASH_TOKEN])
    assert engine.errored and not engine.is_running and engine.is_stopped
    with pytest.raises(EngineDeadError):
        await engine.check_health()
    with pytest.raises(EngineDeadError):
        await collect(engine, "after")


async def test_queue_limit(make_engine: Any) -> None:
    engine = make_engine(max_num_seqs=1, max_num_queued_reqs=1)
    tasks = [asyncio.create_task(collect(engine, str(i), max_tokens=50)) for i in range(4)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [one for one in results if isinstance(one, QueueOverflowError)]
    assert len(refused) == 2
    served = [one for one in results if isinstance(one, list)]
    assert all(tokens_of(one) == continuation(PROMPT, 50) for one in served)


async def test_drain_and_shutdown(make_engine: Any) -> None:
    engine = make_engine()
    task = asyncio.create_task(collect(engine, "a", max_tokens=50))
    await wait_until(lambda: engine.num_unfinished_requests == 1)
    await engine.wait_for_requests_to_drain(10)
    assert tokens_of(await task) == continuation(PROMPT, 50)
    stuck = asyncio.create_task(collect(engine, "b", max_tokens=500))
    await wait_until(lambda: engine.num_unfinished_requests == 1)
    with pytest.raises(TimeoutError):
        await engine.wait_for_requests_to_drain(0.001)
    engine.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        await stuck
    with pytest.raises(EngineDeadError, match="shut down"):
        await collect(engine, "c")


async def test_long_text_is_tokenized_off_the_loop(make_engine: Any) -> None:
    engine = make_engine(max_model_len=20_000, num_gpu_blocks=2000, max_num_batched_tokens=8192)
    text = "A" * 10_000
    outputs = await collect(engine, "a", text, max_tokens=2)
    assert outputs[-1].prompt_token_ids == [65] * 10_000
    assert tokens_of(outputs) == continuation([65] * 10_000, 2)


async def test_control_call(make_engine: Any) -> None:
    engine = make_engine()
    await collect(engine, "a", PROMPT * 10)
    assert await engine.reset_prefix_cache() is True
    outputs = await collect(engine, "b", PROMPT * 10)
    assert outputs[-1].num_cached_tokens == 0


async def wait_until(condition: Any, timeout_s: float = 5.0) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "timed out"
        await asyncio.sleep(0.002)
