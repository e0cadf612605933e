"""Each benchmark runs, and its numbers agree with what was asked."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.v1.engine.real_config import write_model
from vllm.benchmarks import benchmark_latency, benchmark_startup
from vllm.benchmarks.benchmark_serve import ServeArgs, _arrivals, _save, run
from vllm.config.flags import make_config
from vllm.entrypoints.cli.bench import run as bench
from vllm.exceptions import ConfigError


@pytest.fixture
def engine(tmp_path: Path) -> list[str]:
    """Engine flags of a tiny model with random weights."""
    (tmp_path / "model").mkdir()
    folder = write_model(tmp_path / "model")
    return [
        "--model", str(folder), "--load-format", "dummy", "--max-model-len", "128",
        "--kv-cache-memory-bytes", "16M",
    ]  # fmt: skip


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize("more", [["--n", "2"], ["--n", "2", "--use-beam-search"]])
def test_latency(engine: list[str], tmp_path: Path, capsys: Any, more: list[str]) -> None:
    out = tmp_path / "out" / "latency.json"
    benchmark_latency.main([
        *engine, "--input-len", "8", "--output-len", "4", "--batch-size", "2",
        "--num-iters-warmup", "1", "--num-iters", "3", "--output-json", str(out), *more,
    ])  # fmt: skip
    results = read(out)
    assert len(results["latencies"]) == 3
    assert results["avg_latency"] == pytest.approx(sum(results["latencies"]) / 3)
    assert set(results["percentiles"]) == {"10", "25", "50", "75", "90", "99"}
    assert results["percentiles"]["50"] == sorted(results["latencies"])[1]
    printed = capsys.readouterr().out
    assert "Avg latency: " in printed and "99% percentile latency: " in printed


@pytest.mark.parametrize("more", [[], ["--async-engine", "--num-warmups", "1"]])
def test_throughput(engine: list[str], tmp_path: Path, capsys: Any, more: list[str]) -> None:
    out = tmp_path / "throughput.json"
    bench("bench", [
        "throughput", *engine, "--input-len", "8", "--output-len", "4", "--num-prompts", "3",
        "--n", "2", "--output-json", str(out), *more,
    ])  # fmt: skip
    results = read(out)
    assert results["num_requests"] == 3
    assert results["total_num_tokens"] == 3 * (8 + 2 * 4)
    seconds = results["elapsed_time"]
    assert results["requests_per_second"] == pytest.approx(3 / seconds)
    assert results["output_tokens_per_second"] == pytest.approx(24 / seconds)
    assert "Throughput: " in capsys.readouterr().out


def test_startup(engine: list[str], tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "startup.json"
    benchmark_startup.main([
        *engine, "--num-iters-cold", "1", "--num_iters_warmup", "0", "--num-iters-warm", "1",
        "--output-json", str(out),
    ])  # fmt: skip
    results = read(out)
    for kind in ("cold", "warm"):
        [ready], [first] = results[f"{kind}_ready_s"], results[f"{kind}_first_token_s"]
        assert 0 < ready < first < 60
        # The server's own account of its start adds up to what was seen from outside.
        assert sum(results[f"{kind}_phases_s"][0].values()) == pytest.approx(ready, abs=0.5)
        assert results[f"{kind}_engine_phases_s"][0]
        assert results[f"{kind}_peak_memory_mib"][0] > 20
    assert "Process start to first token" in capsys.readouterr().out


def test_startup_of_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        benchmark_startup.main(["--model", str(tmp_path / "none")])


def test_eviction_takes_any_path(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(5000))
    (tmp_path / "folder").mkdir()
    benchmark_startup.evict(str(tmp_path))
    benchmark_startup.evict(str(tmp_path / "a"))
    benchmark_startup.evict(str(tmp_path / "none"))


# ---- serve -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
async def test_serve(make_server_on_port: Any, tmp_path: Path, capsys: Any, backend: str) -> None:
    running = await make_server_on_port(seed=1000)
    args = ServeArgs(
        backend=backend, base_url=running.url, num_prompts=6, input_len=20, output_len=5,
        ignore_eos=True, max_concurrency=2, percentile_metrics="ttft,tpot,itl,e2el",
        metric_percentiles="50,99", save_detailed=True, metadata=["a=b"], label="L",
        disable_tqdm=True, num_warmups=2, temperature=0.5, extra_body={"top_k": 3},
        goodput=["ttft:60000"],
    )  # fmt: skip
    summary = await run(args)
    assert (summary["completed"], summary["failed"]) == (6, 0)
    assert summary["total_output_tokens"] == 30
    assert summary["total_input_tokens"] == 120
    assert summary["max_concurrent_requests"] <= 2
    assert summary["request_goodput"] == pytest.approx(summary["request_throughput"])
    assert (summary["a"], summary["label"], summary["model_id"]) == ("b", "L", "tiny")
    assert summary["output_lens"] == [5] * 6
    for metric in ("ttft", "tpot", "itl", "e2el"):
        assert 0 < summary[f"p50_{metric}_ms"] <= summary[f"p99_{metric}_ms"]
    assert summary["mean_e2el_ms"] > summary["mean_ttft_ms"]


async def test_serve_reports_failures(make_server_on_port: Any, tmp_path: Path) -> None:
    running = await make_server_on_port()
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "[[fine]]"}, {"prompt": "[[x!fail!]]"}, {"prompt": "x" * 5000}]
    file.write_text("\n".join(map(json.dumps, lines)))
    common = {"base_url": running.url, "dataset_name": "custom", "dataset_path": str(file),
              "disable_shuffle": True, "disable_tqdm": True}  # fmt: skip
    summary = await run(ServeArgs(num_prompts=3, **common))
    assert (summary["completed"], summary["failed"]) == (1, 2)
    file.write_text(json.dumps(lines[2]))
    with pytest.raises(ConfigError, match="the first request failed"):
        await run(ServeArgs(num_prompts=1, **common))


async def test_arrival_times() -> None:
    import time

    args = ServeArgs(request_rate=200.0, burstiness=1e6)
    times = []
    async for _ in _arrivals(20, args):
        times.append(time.perf_counter())
    assert 0.08 < times[-1] - times[0] < 0.5  # 19 gaps of 5 ms
    ramp = ServeArgs(
        ramp_up_strategy="linear", ramp_up_start_rps=50, ramp_up_end_rps=1000, burstiness=1e6
    )
    times = []
    async for _ in _arrivals(20, ramp):
        times.append(time.perf_counter())
    assert times[2] - times[0] > times[-1] - times[-3]


def test_result_files(tmp_path: Path) -> None:
    summary = {"model_id": "a/b", "date": "d", "x": 1}
    _save(ServeArgs(save_result=True, result_dir=str(tmp_path / "r")), summary)
    assert read(tmp_path / "r" / "openai-b-d.json") == summary
    args = ServeArgs(append_result=True, result_dir=str(tmp_path), result_filename="f")
    for _ in range(2):
        _save(args, summary)
    assert [json.loads(line) for line in (tmp_path / "f").read_text().splitlines()] == [summary] * 2


@pytest.mark.parametrize(
    "given",
    [
        {"backend": "openai-embeddings"}, {"dataset_name": "hf"}, {"profile": True},
        {"lora_modules": ["x"]}, {"plot_timeline": True},
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="not supported"):
        make_config(ServeArgs, given)


@pytest.mark.parametrize(
    "fields",
    [
        {"percentile_metrics": "ttft,x"}, {"metric_percentiles": "a"},
        {"metric_percentiles": "101"}, {"goodput": ["x:1"]}, {"goodput": ["ttft"]},
        {"goodput": ["ttft:x"]},
    ],
)  # fmt: skip
def test_bad_values(fields: dict[str, Any]) -> None:
    args = ServeArgs(**fields)
    with pytest.raises(ConfigError):
        _ = (args.metrics, args.percentiles, args.goodput_limits)


def test_command(capsys: Any) -> None:
    bench("bench", [])
    assert "startup" in capsys.readouterr().out
    for args, code in ((["nothing"], 2), (["serve", "--nothing"], 2)):
        with pytest.raises(SystemExit) as stop:
            bench("bench", args)
        assert stop.value.code == code
    with pytest.raises(SystemExit, match="not supported"):
        bench("bench", ["sweep"])
    with pytest.raises(ConfigError, match="no server at"):
        bench("bench", ["serve", "--port", "1"])
