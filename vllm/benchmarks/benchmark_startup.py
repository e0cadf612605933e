"""`vllm bench startup`: from the start of a server process to ready and to the first token.

Cold runs read the model from the disk: its pages leave the system's cache before (as far as the
system allows that to its user). Warm runs find them there.
"""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from vllm.benchmarks import report
from vllm.benchmarks.command import parse
from vllm.config.flags import INT, STR, flag
from vllm.engine.arg_forms import one_form
from vllm.engine.arg_parser import FlagParser, add_config
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.http_client import HttpClient, HttpError
from vllm.exceptions import ConfigError

_POLL_S = 0.005
_STARTED = re.compile(r"Start-up took [\d.]+ s: (.*)")
_MEANWHILE = re.compile(r"meanwhile the engine process: (.*)")


@dataclass(frozen=True)
class StartupArgs:
    """How often the server starts."""

    num_iters_cold: int = flag(3, "starts with the model out of the system's cache")
    num_iters_warmup: int = flag(1, "starts that are not measured")
    num_iters_warm: int = flag(3, "starts with the model in the system's cache")
    port: int | None = flag(None, "port of the server; default: a free one", kind=INT)
    timeout: int = flag(600, "seconds a start may take")
    output_json: str | None = flag(None, "file for the results", kind=STR)


@dataclass(slots=True)
class Start:
    """One start: seconds since the process began, and where they went."""

    ready: float
    first_token: float
    phases: dict[str, float] = field(default_factory=dict)
    engine_phases: dict[str, float] = field(default_factory=dict)
    peak_memory_mib: float = 0.0


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    words = sys.argv[1:] if argv is None else argv
    args, engine = parse("startup", StartupArgs, words)
    own = FlagParser(prog="vllm bench startup")
    add_config(own, "Startup", StartupArgs)
    passed = own.parse_known_args([part for word in words for part in one_form(word)])[1]
    if min(args.num_iters_cold, args.num_iters_warmup, args.num_iters_warm) < 0:
        raise ConfigError("The numbers of iterations must be 0 or more.")
    path = EngineArgs(**engine).create_engine_config("server").model_config.path
    from tqdm import tqdm

    total = args.num_iters_cold + args.num_iters_warmup + args.num_iters_warm
    with tqdm(total=total, desc="Starts") as bar:

        def starts(count: int, is_cold: bool) -> list[Start]:
            result = []
            for _ in range(count):
                if is_cold:
                    evict(path)
                result.append(asyncio.run(start_once(args, passed)))
                bar.update()
            return result

        cold = starts(args.num_iters_cold, True)
        starts(args.num_iters_warmup, False)
        warm = starts(args.num_iters_warm, False)
    for line in table({"cold": cold, "warm": warm}):
        print(line)
    if args.output_json:
        report.write_json(args.output_json, _results({"cold": cold, "warm": warm}))


async def start_once(args: StartupArgs, server_args: Sequence[str]) -> Start:
    """Start a server, ask for one token, stop it. Raises ConfigError if it does not start."""
    port = args.port or _free_port()
    command = [sys.executable, "-m", "vllm", "serve", *server_args, "--port", str(port)]
    with tempfile.TemporaryFile("w+") as log:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            client = HttpClient(f"http://127.0.0.1:{port}")
            await _until_ready(client, process, log, began + args.timeout)
            ready = time.perf_counter() - began
            await _first_token(client)
            first_token = time.perf_counter() - began
            memory = peak_memory_mib(process.pid)
            await client.close()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        text = _read(log)
    return Start(ready, first_token, _phases(_STARTED, text), _phases(_MEANWHILE, text), memory)


async def _until_ready(
    client: HttpClient, process: "subprocess.Popen[bytes]", log: IO[str], deadline: float
) -> None:
    while True:
        try:
            await client.get("/health")
            return
        except (OSError, HttpError):
            if process.poll() is not None:
                raise ConfigError(f"the server did not start:\n{_read(log)[-2000:]}") from None
            if time.perf_counter() > deadline:
                raise ConfigError("the server was not ready in time (--timeout)") from None
            await asyncio.sleep(_POLL_S)


async def _first_token(client: HttpClient) -> None:
    body = {"prompt": "Hello", "max_tokens": 1, "stream": True, "ignore_eos": True}
    async for _ in client.stream("/v1/completions", body):
        pass


def _phases(pattern: re.Pattern[str], log: str) -> dict[str, float]:
    """`name seconds | name seconds` of a line of the server's log."""
    found = pattern.search(log)
    phases = {}
    for part in found[1].split(" | ") if found is not None else ():
        name, _, seconds = part.strip().rpartition(" ")
        phases[name] = float(seconds)
    return phases


def evict(path: str) -> None:
    """Ask the system to forget the pages of a model's files."""
    location = Path(path)
    files = [location] if location.is_file() else sorted(location.glob("*"))
    for file in files:
        if file.is_file() and hasattr(os, "posix_fadvise"):
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def peak_memory_mib(pid: int) -> float:
    """Peak resident memory of a process and its children, as far as /proc tells."""
    total = 0.0
    for one in [pid, *_children(pid)]:
        try:
            status = Path(f"/proc/{one}/status").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        total += int(found[1]) / 1024 if found else 0.0
    return total


def _children(pid: int) -> list[int]:
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return []
    return [child for word in words for child in (int(word), *_children(int(word)))]


def table(groups: dict[str, list[Start]]) -> list[str]:
    """One block per group: totals, then where the time went."""
    lines = [report.title("Startup Benchmark Result")]
    for name, starts in groups.items():
        if not starts:
            continue
        lines.append(report.section(f"{name}, {len(starts)} starts"))
        for label, values in (
            ("Process start to ready", [start.ready for start in starts]),
            ("Process start to first token", [start.first_token for start in starts]),
        ):
            lines.append(report.row(f"Mean {label} (s):", report.mean(values)))
            lines.append(report.row(f"Min {label} (s):", min(values)))
        lines.append(report.row("Peak memory (MiB):", max(s.peak_memory_mib for s in starts)))
        lines += _phase_rows("", [start.phases for start in starts])
        lines += _phase_rows("engine: ", [start.engine_phases for start in starts])
    lines.append("=" * report.WIDTH)
    return lines


def _phase_rows(prefix: str, all_phases: Sequence[dict[str, float]]) -> list[str]:
    names = dict.fromkeys(name for phases in all_phases for name in phases)
    return [
        report.row(f"  {prefix}{name}", report.mean([p.get(name, 0.0) for p in all_phases]))
        for name in names
    ]


def _results(groups: dict[str, list[Start]]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, starts in groups.items():
        for key in ("ready", "first_token"):
            values = [getattr(start, key) for start in starts]
            results[f"{name}_{key}_s"] = values
            results[f"{name}_{key}_mean_s"] = report.mean(values)
        results[f"{name}_phases_s"] = [start.phases for start in starts]
        results[f"{name}_engine_phases_s"] = [start.engine_phases for start in starts]
        results[f"{name}_peak_memory_mib"] = [start.peak_memory_mib for start in starts]
    return results


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _read(log: IO[str]) -> str:
    log.seek(0)
    return log.read()


if __name__ == "__main__":
    from vllm.benchmarks.command import run_module

    run_module("startup", main)
