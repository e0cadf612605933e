"""The servers that are compared: how each is started, when it is ready, what memory it takes."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

READY_TIMEOUT_S = 300


@dataclass(frozen=True)
class Engine:
    """One engine: `command` with {model}, {port} and {threads} filled in."""

    name: str
    command: tuple[str, ...]
    health: str = "/health"


OURS = Engine("vllm", (
    sys.executable, "-m", "vllm", "serve", "{model}", "--port", "{port}",
    "--served-model-name", "m",
    "--max-num-seqs", "64", "--no-enable-log-requests",
))


def llama_cpp(binary: Path) -> Engine:
    """llama.cpp's own server: 16 slots, the faster of its two KV modes for many slots."""
    return Engine("llama.cpp", (
        str(binary), "-m", "{model}", "--port", "{port}", "-t", "{threads}", "-tb", "{threads}",
        "-np", "16", "-c", "49152", "-no-kvu", "--no-webui", "--alias", "m",
    ))


@dataclass
class Running:
    """A started server."""

    pid: int
    port: int
    start_s: float

    def peak_memory_mb(self) -> float:
        """Sum of the peak resident sizes of the server's processes, in MB."""
        return sum(_peak_kb(pid) for pid in _tree(self.pid)) / 1024


@contextmanager
def running(engine: Engine, model: str, port: int) -> Iterator[Running]:
    """Start `engine`, wait until it is healthy, and stop it at the end."""
    fill = {"model": model, "port": port, "threads": len(os.sched_getaffinity(0))}
    command = [part.format(**fill) for part in engine.command]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_ready(process, f"http://127.0.0.1:{port}{engine.health}")
        yield Running(process.pid, port, time.perf_counter() - began)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode} before it was ready")
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.01)
    raise RuntimeError(f"{url} was not ready after {READY_TIMEOUT_S} s")


def _tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [pid]
    if children.exists():
        for child in children.read_text().split():
            found += _tree(int(child))
    return found


def _peak_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0
