"""A server inside a real control group lives within its memory and its CPUs (needs root)."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_cli import environment, free_port

ROOT = Path("/sys/fs/cgroup")
LIMIT = 640 << 20


@pytest.fixture
def groups() -> Iterator[list[Path]]:
    """A group of 640 MiB and one CPU; version 1 has a folder per controller, version 2 has one."""
    is_v1 = (ROOT / "memory/memory.limit_in_bytes").exists()
    names = [f"{kind}/vllm-test-{os.getpid()}" for kind in (("memory", "cpu") if is_v1 else (".",))]
    folders = [ROOT / name for name in names]
    settings = ({"memory.limit_in_bytes": str(LIMIT), "cpu.cfs_quota_us": "100000"} if is_v1 else
                {"memory.max": str(LIMIT), "memory.swap.max": "0", "cpu.max": "100000 100000"})
    try:
        for folder in folders:
            folder.mkdir()
        for name, value in settings.items():
            kind = name.split(".")[0]
            folder = next(f for f in folders if not is_v1 or f.parent.name == kind)
            (folder / name).write_text(value)
    except OSError as error:
        _remove(folders)
        pytest.skip(f"no control group can be made here: {error}")
    yield folders
    _remove(folders)


def _remove(folders: list[Path]) -> None:
    for folder in folders:
        for _ in range(50):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


def start(groups: list[Path], *args: str) -> "subprocess.Popen[str]":
    join = "; ".join(f"echo $$ > {folder}/cgroup.procs" for folder in groups)
    return subprocess.Popen(
        ["sh", "-c", f'{join}; exec "$@"', "sh", sys.executable, "-m", "vllm", *args],
        env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_the_plan_and_the_threads_are_those_of_the_group(groups: list[Path]) -> None:
    text, _ = start(groups, "check", "--max-model-len", "auto").communicate(timeout=60)
    assert "of 0.62 GiB free (cgroup)" in text, text
    assert "  1 compute threads" in text


def test_a_server_answers_within_the_group(groups: list[Path]) -> None:
    port = free_port()
    server = start(groups, "serve", "--port", str(port), "--max-model-len", "auto")
    try:
        lines = []
        for line in server.stdout or ():
            lines.append(line)
            if "Application startup complete." in line:
                break
        text = "".join(lines)
        assert "(cgroup)" in text and "1 threads" in text, text
        body = {"prompt": ["The sky is"] * 8, "max_tokens": 64, "ignore_eos": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            usage = json.load(answer)["usage"]
        assert usage["completion_tokens"] == 8 * 64
    finally:
        server.terminate()
        assert server.wait(60) == 0
