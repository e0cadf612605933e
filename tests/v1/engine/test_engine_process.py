"""The engine in its own process: start, death, restart, shutdown, and nothing left behind."""

import asyncio
import os
import pickle
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import zmq

from tests.v1.engine.fake import CRASH_TOKEN, continuation
from tests.v1.engine.real_config import real_config, write_model
from vllm import envs
from vllm.exceptions import ConfigError, EngineDeadError, EngineGenerateError
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import front_end
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.engine_process import EngineProcess
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.serial import encode_message

FAKE = "tests.v1.engine.fake:FakeExecutor"
PROMPT = [72, 101, 108, 108, 111]


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where sockets go in this test."""
    monkeypatch.setattr(envs, "VLLM_ENABLE_V1_MULTIPROCESSING", True)
    monkeypatch.setattr(envs, "VLLM_RPC_BASE_PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def config(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = write_model(tmp_path_factory.mktemp("model"))
    return lambda **fields: real_config(
        folder, **{"distributed_executor_backend": FAKE, "seed": 500, **fields}
    )


def greedy(**fields: Any) -> SamplingParams:
    given = {"temperature": 0.0, "max_tokens": 8, "output_kind": RequestOutputKind.DELTA, **fields}
    return SamplingParams(**given)


async def collect(engine: AsyncLLM, name: str, prompt: Any = PROMPT, **fields: Any) -> list[int]:
    stream = engine.generate(prompt, greedy(**fields), name)
    return [token async for output in stream for token in output.outputs[0].token_ids]


def pid_of(engine: Any) -> int:
    return int(engine._client.process.process.pid)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(pid: int, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_gone(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.01)


def test_sync_engine_and_clean_shutdown(base: Path, config: Any) -> None:
    engine = LLMEngine(config())
    process = psutil.Process(pid_of(engine))
    (directory,) = base.iterdir()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in directory.iterdir()}
    assert modes == {"in.sock": 0o600, "out.sock": 0o600}
    assert process.cmdline()[0] == "VLLM::EngineCore"
    assert not any(c.laddr for c in process.net_connections("inet"))
    engine.add_request("a", PROMPT, greedy(output_kind=RequestOutputKind.FINAL_ONLY))
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert outputs[-1].outputs[0].token_ids == continuation(PROMPT, 8)
    assert engine.reset_prefix_cache() is True
    engine.shutdown()
    engine.shutdown()
    assert is_gone(process.pid) and list(base.iterdir()) == []


def test_frames_that_are_no_messages_are_dropped(base: Path, config: Any) -> None:
    """Garbage, a pickle, and a request that the engine can't read (which ends)."""
    canary = base / "canary"

    class Bomb:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {canary}",)

    engine = LLMEngine(config())
    engine.add_request("a", PROMPT, greedy(output_kind=RequestOutputKind.FINAL_ONLY))
    (state,) = engine.front_end.outputs.states.values()
    broken = encode_message(state.request)[:1] + msgspec.msgpack.encode(
        [state.request.request_id, "no list"]
    )
    process = engine._client.process  # type: ignore[union-attr]
    with zmq.Context() as context:
        for name in ("in.sock", "out.sock"):
            with context.socket(zmq.PUSH) as sock:
                sock.connect(f"ipc://{process.directory}/{name}")
                for frame in (b"", b"\x00", b"R", b"Zxx", b"A\xc1", pickle.dumps(Bomb()), broken):
                    sock.send(frame)
    time.sleep(0.05)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    engine.add_request("b", PROMPT, greedy(output_kind=RequestOutputKind.FINAL_ONLY))
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert outputs[-1].outputs[0].token_ids == continuation(PROMPT, 8)
    assert process.is_alive and not canary.exists()
    engine.shutdown()


def test_engine_process_imports_only_what_it_needs(base: Path, config: Any) -> None:
    engine = LLMEngine(config())
    maps = Path(f"/proc/{pid_of(engine)}/maps").read_text()
    engine.shutdown()
    for module in ("torch", "tokenizers", "pydantic_core", "uvloop", "httptools"):
        assert f"/{module}" not in maps, f"the engine process loaded {module}"


async def test_idle_engine_uses_no_cpu_and_wakes_at_once(base: Path, config: Any) -> None:
    engine = AsyncLLM(config(seed=0))
    await collect(engine, "warm")
    process = psutil.Process(pid_of(engine))
    before = sum(process.cpu_times()[:2])
    await asyncio.sleep(0.5)
    assert sum(process.cpu_times()[:2]) - before <= 0.02
    seconds = []
    for i in range(5):
        start = time.perf_counter()
        await collect(engine, str(i), max_tokens=1)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.02
    engine.shutdown()


async def test_death_is_seen_and_streams_continue_where_they_were(base: Path, config: Any) -> None:
    engine = AsyncLLM(config(seed=3000))
    tasks = [collect(engine, str(i), [65 + i], max_tokens=150) for i in range(20)]
    streams = [asyncio.create_task(task) for task in tasks]
    while sum(bool(s.token_ids) for s in engine.front_end.outputs.states.values()) < 16:
        await asyncio.sleep(0.01)
    first = pid_of(engine)
    os.kill(first, signal.SIGKILL)
    at_once = asyncio.create_task(collect(engine, "at once", max_tokens=20))
    while not engine._is_restarting:
        await asyncio.sleep(0.001)
    meanwhile = asyncio.create_task(collect(engine, "meanwhile", max_tokens=20))
    closed = engine.generate(PROMPT, greedy(), "closed")
    task = asyncio.create_task(anext(closed))
    await asyncio.sleep(0.01)
    task.cancel()
    results = await asyncio.gather(*streams)
    assert results == [continuation([65 + i], 150) for i in range(20)]
    assert await at_once == await meanwhile == continuation(PROMPT, 20)
    assert engine.num_unfinished_requests == 0
    assert pid_of(engine) != first and not engine.errored
    assert len(list(base.iterdir())) == 1
    engine.shutdown()
    assert list(base.iterdir()) == []


def test_sync_engine_continues_after_a_death(base: Path, config: Any) -> None:
    engine = LLMEngine(config(seed=2000))
    engine.add_request("a", PROMPT, greedy(max_tokens=60, logprobs=1))
    outputs = engine.step()
    os.kill(pid_of(engine), signal.SIGKILL)
    while engine.has_unfinished_requests():
        outputs += engine.step()
    engine.shutdown()
    assert [t for o in outputs for t in o.outputs[0].token_ids] == continuation(PROMPT, 60)
    assert sum(len(o.outputs[0].logprobs or []) for o in outputs) == 60


async def test_a_request_that_kills_engines_is_given_up(base: Path, config: Any) -> None:
    """The engine gives up after three steps in a row that fail; one request brings three."""
    engine = AsyncLLM(config(seed=1000, max_num_seqs=1))
    good = asyncio.create_task(collect(engine, "good", max_tokens=5))
    assert await good == continuation(PROMPT, 5)
    for _ in range(2):
        tasks = [collect(engine, f"bad{i}", [*PROMPT, CRASH_TOKEN]) for i in range(3)]
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, EngineGenerateError)
    assert await collect(engine, "after") == continuation(PROMPT, 8)
    engine.shutdown()


async def test_too_many_deaths_are_the_end(
    base: Path, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_end, "MAX_RESTARTS", 0)
    engine = AsyncLLM(config(seed=2000))
    stream = asyncio.create_task(collect(engine, "a", max_tokens=400))
    while not engine.num_unfinished_requests:
        await asyncio.sleep(0.01)
    start = time.monotonic()
    os.kill(pid_of(engine), signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="signal 9"):
        await stream
    assert time.monotonic() - start < 1.0
    assert engine.errored
    with pytest.raises(EngineDeadError):
        await engine.check_health()
    with pytest.raises(EngineDeadError):
        await collect(engine, "b")
    engine.shutdown()
    assert list(base.iterdir()) == []


def test_start_that_fails_says_why(base: Path, config: Any) -> None:
    with pytest.raises(ConfigError, match="nothere"):
        LLMEngine(config(distributed_executor_backend="tests.v1.engine.fake:nothere"))
    assert list(base.iterdir()) == []
    process = EngineProcess(config())
    os.kill(process.process.pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="while it started by signal 9"):
        process.wait_ready()
    process.stop()
    assert list(base.iterdir()) == []


async def test_async_start_that_fails_says_why(base: Path, config: Any) -> None:
    engine = AsyncLLM(config(distributed_executor_backend="tests.v1.engine.fake:nothere"))
    with pytest.raises(ConfigError, match="nothere"):
        await engine.wait_ready()
    assert engine.errored
    engine.shutdown()
    assert list(base.iterdir()) == []


def test_signals_of_the_group_do_not_reach_the_engine(base: Path, config: Any) -> None:
    engine = LLMEngine(config())
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid_of(engine), number)
    engine.add_request("a", PROMPT, greedy())
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert len(outputs) == 8
    engine.shutdown()


PARENT = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.v1.engine.real_config import real_config, write_model
from vllm.v1.engine.llm_engine import LLMEngine
if __name__ == "__main__":
    folder = write_model(Path({folder!r}))
    engine = LLMEngine(real_config(folder, distributed_executor_backend={fake!r}))
    print(engine._client.process.process.pid, flush=True)
    {then}
"""


@pytest.mark.parametrize("how", ["kill", "exit", "exception"])
def test_death_of_the_parent_ends_the_engine(
    base: Path, tmp_path_factory: pytest.TempPathFactory, how: str
) -> None:
    then = {"kill": "sys.stdin.read()", "exit": "pass", "exception": "raise SystemExit(3)"}[how]
    root = str(Path(__file__).parents[3])
    folder = tmp_path_factory.mktemp("model")
    code = PARENT.format(root=root, folder=str(folder), fake=FAKE, then=then)
    script = folder / "script.py"
    script.write_text(code)
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**envs.environ, "VLLM_RPC_BASE_PATH": str(base)},
        text=True,
    )
    assert parent.stdout is not None
    engine_pid = int(parent.stdout.readline())
    if how == "kill":
        parent.kill()
    parent.wait(10)
    wait_gone(engine_pid)
    assert list(base.iterdir()) == []


async def test_start_and_stop_many_times_leaves_nothing(base: Path, config: Any) -> None:
    me = psutil.Process()
    before = me.num_fds()
    for i in range(4):
        engine = AsyncLLM(config(seed=0))
        if i % 2:
            assert await collect(engine, "a") == continuation(PROMPT, 8)
        engine.shutdown()
    assert list(base.iterdir()) == [] and me.children() == []
    assert me.num_fds() <= before + 1
