"""The commands that need no server, as a user runs them."""

import os
import subprocess
import sys

import pytest

from vllm.version import __version__


def vllm(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    keep = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    return subprocess.run([sys.executable, "-m", "vllm", *args], env=keep | variables, text=True,
                          capture_output=True, check=False)


def test_version_and_help() -> None:
    assert vllm("--version").stdout.strip() == __version__
    text = vllm().stdout
    assert all(name in text for name in ("serve", "chat", "complete", "bench", "collect-env"))


def test_unknown_and_missing_commands() -> None:
    result = vllm("serv")
    assert result.returncode == 2 and "unknown command 'serv'" in result.stderr
    result = vllm("snapshot")
    assert result.returncode == 1 and "not supported by this build yet" in result.stderr


def test_version_imports_nothing_heavy() -> None:
    code = ("import sys; sys.argv=['vllm','--version']; from vllm.entrypoints.cli.main import main;"
            "main(); print([m for m in ('numpy','fastapi','msgspec','zmq','jinja2') "
            "if m in sys.modules])")
    result = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True,
                            check=False)
    assert result.stdout.splitlines()[-1] == "[]"


def test_check_shows_values_with_their_origin(tmp_path) -> None:
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
    assert rows["port"].split()[1:] == ["9", "flag"]
    assert rows["api_key"].split()[1:] == ["(hidden)", "env", "VLLM_API_KEY"]
    assert "s3cret" not in result.stdout
    assert "CPU KV cache size" in result.stdout


@pytest.mark.parametrize(("args", "message"), [
    (["--max-model-len", "99999999"], "made for at most 8192"),
    (["-tp", "2"], "--tensor-parallel-size: tensor parallelism is not supported"),
    (["/no/such/model"], "/no/such/model"),
    (["--enable-log-outputs"], "--enable-log-requests"),
    (["--api-key-file", "/no/such/file"], "--api-key-file /no/such/file")])
def test_check_refuses_in_one_line(args: list[str], message: str) -> None:
    result = vllm("check", *args, VLLM_LOGGING_LEVEL="ERROR")
    assert result.returncode == 1
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_collect_env_hides_secrets() -> None:
    result = vllm("collect-env", VLLM_API_KEY="s3cret")
    assert result.returncode == 0, result.stderr
    assert "s3cret" not in result.stdout
    for word in ("Python", "compute threads", "kernels", "numpy", "usable"):
        assert word in result.stdout
