"""The commands that need no server, and the start of one, as a user runs them."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from vllm.version import __version__


def environment(**variables: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")} | variables


def vllm(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "vllm", *args], env=environment(**variables),
                          text=True, capture_output=True, check=False)


def test_version_and_help() -> None:
    assert vllm("--version").stdout.strip() == vllm("-v").stdout.strip() == __version__
    text = vllm().stdout
    assert all(name in text for name in ("serve", "check", "chat", "bench", "collect-env"))


def test_help_of_a_command_is_about_that_command() -> None:
    assert "memory plan" in vllm("check", "--help").stdout
    text = vllm("complete", "--help").stdout
    assert "chat" not in text and "--max-tokens" in text  # few flags: all of them at once
    assert vllm("collect-env", "--help").stdout.startswith("usage: vllm collect-env")
    assert vllm("collect-env", "--x").returncode == 2


def test_unknown_and_missing_commands() -> None:
    result = vllm("serv")
    assert result.returncode == 2 and "unknown command 'serv'" in result.stderr
    assert "did you mean serve?" in result.stderr
    for command in ("run-batch", "snapshot", "launch"):
        result = vllm(command)
        assert result.returncode == 1 and "not supported by this build yet" in result.stderr


def test_version_imports_nothing_heavy() -> None:
    code = ("import sys; sys.argv=['vllm','--version']; from vllm.entrypoints.cli.main import main;"
            "main(); print([m for m in ('numpy','fastapi','msgspec','zmq','jinja2','logging',"
            "'argparse') if m in sys.modules])")
    result = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True,
                            check=False)
    assert result.stdout.splitlines()[-1] == "[]"


def test_reading_flags_imports_nothing_heavy() -> None:
    code = ("import sys; from vllm.entrypoints.cli.serve import parse; parse('serve', ['m']);"
            "print([m for m in ('numpy','fastapi','uvicorn','zmq','jinja2','tokenizers','yaml',"
            "'huggingface_hub','importlib.metadata','torch','transformers') if m in sys.modules])")
    result = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True,
                            check=False)
    assert result.stdout.splitlines()[-1] == "[]", result.stderr


def test_importing_the_library_imports_nothing_heavy() -> None:
    code = ("import sys; from vllm import LLM, SamplingParams, EngineArgs;"
            "print([m for m in ('numpy','fastapi','uvicorn','zmq','jinja2','tokenizers','yaml',"
            "'tqdm','argparse','huggingface_hub','importlib.metadata','prometheus_client',"
            "'torch','transformers') if m in sys.modules])")
    result = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True,
                            check=False)
    assert result.stdout.splitlines()[-1] == "[]", result.stderr


def test_check_shows_values_with_their_origin(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("max-num-seqs: 5\n")
    result = vllm("check", "--config", str(file), "--max-model-len", "1k", "--port", "9",
                  VLLM_API_KEY="s3cret", VLLM_LOGGING_LEVEL="WARNING")
    assert result.returncode == 0, result.stderr
    rows = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert rows["max_model_len"].split()[1:] == ["1000", "flag"]
    assert rows["max_num_seqs"].split()[1:] == ["5", "file", str(file)]
    assert rows["dtype"].split()[1:] == ["float16", "model"]
    assert rows["block_size"].split()[1:] == ["32", "default"]
    assert rows["max_num_batched_tokens"].split()[1:] == ["2048", "default"]
    assert rows["port"].split()[1:] == ["9", "flag"]
    assert rows["api_key"].split()[1:] == ["(hidden)", "env", "VLLM_API_KEY"]
    assert rows["num_gpu_blocks"].split()[2:] == ["memory", "plan"]
    assert "s3cret" not in result.stdout
    assert re.search(r"CPU KV cache size: [\d,]+ tokens, Maximum concurrency for 1,000 tokens per "
                     r"request: \d+\.\d\dx", result.stdout)
    assert "weights" in result.stdout and "headroom" in result.stdout
    assert "compute threads" in result.stdout


@pytest.mark.parametrize(("args", "message"), [
    (["--max-model-len", "99999999"], "made for at most 8192"),
    (["-tp", "2"], "--tensor-parallel-size: tensor parallelism is not supported"),
    (["/no/such/model"], "/no/such/model"),
    (["--kv-cache-memory-bytes", "10m"], "The longest that fits is"),
    (["--enable-log-outputs"], "--enable-log-requests"),
    (["--sse-keep-alive-interval", "-1"], "--sse-keep-alive-interval"),
    (["--shutdown-timeout", "-1"], "--shutdown-timeout"),
    (["--allowed-origins", '{"a": 1}'], "--allowed-origins"),
    (["--port", "70000"], "--port is 70000"), (["--host", "0.0.0.0"], "--insecure"),
    (["--ssl-keyfile", "k"], "--ssl-certfile"), (["--chat-template", "no"], "jinja"),
    (["--api-key-file", "/no/such/file"], "--api-key-file /no/such/file")])
def test_check_refuses_in_one_line(args: list[str], message: str) -> None:
    result = vllm("check", *args, VLLM_LOGGING_LEVEL="ERROR")
    assert result.returncode == 1
    assert message in result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1


def test_keys_from_a_file_are_read_and_hidden(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("key-one\n\nkey-two\n")
    result = vllm("check", "--api-key-file", str(tmp_path / "keys"))
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line}
    assert rows["api_key"] == ["(hidden)", "flag"]
    assert "key-one" not in result.stdout
    (tmp_path / "keys").write_text("\n")
    assert "holds no key" in vllm("check", "--api-key-file", str(tmp_path / "keys")).stderr


def test_variables_that_are_wrong_or_unknown() -> None:
    result = vllm("check", VLLM_CPU_KVCACHE_SPACE="lots")
    assert result.returncode == 1
    assert "VLLM_CPU_KVCACHE_SPACE is 'lots'; it must be a number" in result.stderr
    result = vllm("check", VLLM_API_KEYS="x")
    assert result.returncode == 0 and "did you mean VLLM_API_KEY?" in result.stdout
    result = vllm("check", "--fail-on-environ-validation", VLLM_API_KEYS="x")
    assert result.returncode == 1 and "VLLM_API_KEYS is not a known variable" in result.stderr


def test_cpu_variables_are_honoured() -> None:
    cpu = min(os.sched_getaffinity(0))
    out = vllm("check", VLLM_CPU_KVCACHE_SPACE="0.25", VLLM_CPU_OMP_THREADS_BIND=str(cpu)).stdout
    assert "Available KV cache memory: 0.25 GiB (from VLLM_CPU_KVCACHE_SPACE)" in out
    assert f"1 compute threads, pinned to CPUs {cpu}" in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert rows["kv_cache_memory_bytes"] == ["None", "env", "VLLM_CPU_KVCACHE_SPACE"]


def test_output_may_be_cut_off() -> None:
    command = f"{sys.executable} -m vllm check | head -1"
    result = subprocess.run(["bash", "-c", command], env=environment(), text=True,
                            capture_output=True, check=False)
    assert result.stderr == ""


def test_collect_env_hides_secrets() -> None:
    result = vllm("collect-env", VLLM_API_KEY="s3cret", HF_TOKEN="s3cret")
    assert result.returncode == 0, result.stderr
    assert "s3cret" not in result.stdout
    for word in ("Python", "compute threads", "kernels", "numpy", "usable"):
        assert word in result.stdout


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()


def children(pid: int) -> list[int]:
    return [int(word) for task in Path(f"/proc/{pid}/task").iterdir()
            for word in (task / "children").read_text().split()]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_a_server_says_what_it_does_in_15_lines() -> None:
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "vllm", "serve", "--port", str(port), "--max-model-len", "512",
         "--max-num-seqs", "4", "--api-key", "s3cret"],
        env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        lines = []
        for line in server.stdout or ():
            lines.append(line.rstrip())
            if "Application startup complete." in line:
                break
        text = "\n".join(lines)
        assert len(lines) <= 15, text
        assert all(re.match(r"\(\w+ pid=\d+\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[\w+\.py:\d+\] ", line)
                   for line in lines), text
        for words in (f"vLLM {__version__}: SmolLM2-135M-Instruct (LlamaForCausalLM, 30 layers)",
                      "dtype float16", "KV cache size: ", "kernels ", "threads",
                      "Model loading took ", "init engine (profile, create kv cache, warmup model)",
                      f"http://127.0.0.1:{port}", "--max-num-seqs 4", "--api-key (hidden)"):
            assert words in text, words
        assert "s3cret" not in text
        total = float(re.search(r"Start-up took ([\d.]+) s", text)[1])
        row = next(line for line in lines if "Start-up took" in line).split(": ", 1)[1]
        phases = [float(cell.split()[-1]) for cell in row.split(" | ")]
        assert sum(phases) == pytest.approx(total, abs=0.02 * len(phases))
        titles = {title(server.pid), *map(title, children(server.pid))}
        assert titles == {"VLLM::APIServer", "VLLM::EngineCore"}
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
            assert answer.status == 200
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0


def test_an_open_server_on_the_network_is_refused() -> None:
    result = vllm("serve", "--host", "0.0.0.0", "--port", str(free_port()))
    assert result.returncode == 1
    assert "--insecure" in result.stderr and "--api-key" in result.stderr
