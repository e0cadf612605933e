"""Whatever ends a request, it is counted once, and the counters agree with what the user got."""

import dataclasses
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.v1.engine.fake import POISON_TOKEN, fake_config, write_tokenizer
from vllm import envs
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.metrics.prometheus import PrometheusStatLogger
from vllm.v1.metrics.reader import Histogram, Metric, read_metrics


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A small pool and batch, so that requests wait and are preempted."""
    monkeypatch.setattr(envs, "VLLM_ENABLE_V1_MULTIPROCESSING", False)
    write_tokenizer(tmp_path)
    config = fake_config(tmp_path, num_gpu_blocks=12, max_num_seqs=4, max_model_len=160)
    cache = dataclasses.make_dataclass("Cache", ["block_size"])(16)
    metrics = PrometheusStatLogger(
        SimpleNamespace(
            model_config=SimpleNamespace(served_model_name=["m"], max_model_len=160),
            cache_config=cache,
            observability_config=SimpleNamespace(custom_histogram_buckets=None),
        )
    )
    return LLMEngine(config, stat_loggers=[metrics])


def snapshot(engine: LLMEngine) -> dict[str, Any]:
    def value(metric: Metric) -> Any:
        return metric if isinstance(metric, Histogram) else metric.value  # type: ignore[attr-defined]

    return {
        metric.name + metric.labels.get("finished_reason", ""): value(metric)
        for metric in read_metrics(engine.front_end.stat_loggers[0])
    }


@pytest.mark.parametrize("seed", range(4))
def test_finished_requests_and_tokens_add_up(engine: LLMEngine, seed: int) -> None:
    rng = random.Random(seed)
    ends: Counter[str] = Counter()
    prompts: dict[str, tuple[int, int]] = {}
    num_tokens: dict[tuple[str, int], int] = {}

    def take() -> None:
        for output in engine.step():
            for part in output.outputs:
                num_tokens[output.request_id, part.index] = len(part.token_ids)
            if output.finished:
                ends.update(str(part.finish_reason) for part in output.outputs)

    for i in range(60):
        name, n = f"r{i}", rng.choice([1, 1, 3])
        prompt = [rng.choice([65, 66]) for _ in range(rng.randint(1, 60))]
        if rng.random() < 0.15:
            prompt.append(POISON_TOKEN)
        prompts[name] = len(prompt), n
        params = SamplingParams(
            n=n, max_tokens=rng.randint(1, 80), stop=rng.choice([None, ["Q"], ["zz", "A"]])
        )
        engine.add_request(name, {"prompt_token_ids": prompt}, params)
        for _ in range(rng.randint(0, 6)):
            take()
        if rng.random() < 0.3:
            engine.abort_request(f"r{rng.randint(0, i)}")
    while engine.has_unfinished_requests():
        take()

    metrics = snapshot(engine)
    reasons = ("stop", "length", "abort", "error", "repetition")
    counted = {reason: metrics["vllm:request_success" + reason] for reason in reasons}
    assert sum(counted.values()) == sum(n for _, n in prompts.values())
    assert counted == {reason: ends[reason] for reason in reasons}
    assert min(counted["stop"], counted["length"], counted["abort"], counted["error"]) > 0
    assert metrics["vllm:generation_tokens"] == sum(num_tokens.values())
    assert metrics["vllm:prompt_tokens"] == sum(length * n for length, n in prompts.values())
    for name in ("prompt", "generation"):
        histogram = metrics[f"vllm:request_{name}_tokens"]
        assert histogram.count == sum(counted.values())
        assert histogram.sum == metrics[f"vllm:{name}_tokens"]
    assert metrics["vllm:request_params_n"].count == len(prompts)
    assert metrics["vllm:e2e_request_latency_seconds"].count == sum(counted.values())
    assert metrics["vllm:num_preemptions"] > 0
    assert metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 0
    assert metrics["vllm:kv_cache_usage_perc"] == 0.0


def test_five_aborts_are_five(engine: LLMEngine) -> None:
    for i in range(5):
        engine.add_request(f"r{i}", "Hello", SamplingParams(max_tokens=100, ignore_eos=True))
    for _ in range(8):
        engine.step()
    engine.abort_request([f"r{i}" for i in range(5)])
    last = engine.step()
    assert [output.outputs[0].finish_reason for output in last] == ["abort"] * 5
    assert engine.reset_prefix_cache(), "no block is in use"
    metrics = snapshot(engine)
    assert metrics["vllm:request_successabort"] == 5
    assert metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 0
    assert metrics["vllm:request_generation_tokens"].sum == metrics["vllm:generation_tokens"] > 0
    assert metrics["vllm:request_prompt_tokens"].sum == metrics["vllm:prompt_tokens"] == 25
