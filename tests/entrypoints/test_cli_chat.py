"""`vllm chat` and `vllm complete` against a running server."""

import asyncio
import signal
import sys
from typing import Any

import pytest

from vllm.entrypoints.cli.chat import (
    ChatArgs,
    ClientArgs,
    CompleteArgs,
    _Chat,
    _Complete,
    _pieces,
    _run,
    _Timing,
)
from vllm.entrypoints.http_client import HttpClient, HttpError
from vllm.exceptions import ConfigError


async def vllm(*words: str, text: str = "") -> tuple[int, str, str]:
    """Run the command line in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "vllm", *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(text.encode()), 60)
    return process.returncode or 0, out.decode(), err.decode()


async def test_quick(make_server_on_port: Any, capsys: Any) -> None:
    running = await make_server_on_port({"api_key": ["k"]})
    args = ClientArgs(url=running.url + "/v1", api_key="k", quick="[[Hi 🌶]]", stats=True)
    await _run(_Chat(args, ChatArgs()), args)
    out, err = capsys.readouterr()
    assert out == "Hi 🌶\n"
    assert err.startswith("[TTFT ")
    assert "8 tokens" in err
    args = ClientArgs(url=running.url + "/v1", api_key="k", quick="[[abcdef]]", model_name="alias")
    await _run(_Complete(args, CompleteArgs(max_tokens=3)), args)
    assert capsys.readouterr().out == "abc\n"
    with pytest.raises(ConfigError, match=r"401: Unauthorized; give .* --api-key"):
        await _run(_Chat(ClientArgs(url=running.url + "/v1"), ChatArgs()), args)
    args = ClientArgs(url=running.url, api_key="k")
    with pytest.raises(ConfigError, match=r"404: .*; --url needs the path of the API"):
        await _run(_Chat(args, ChatArgs()), args)


async def test_history_and_commands(
    make_server_on_port: Any, monkeypatch: Any, capsys: Any
) -> None:
    running = await make_server_on_port()
    asked: list[Any] = []
    session = _Chat(ClientArgs(url=running.url + "/v1"), ChatArgs(system_prompt="S"))
    show = session.show

    async def noting(path: str, body: Any) -> str:
        asked.append([f"{m['role']}: {m['content']}" for m in body["messages"]])
        return await show(path, body)

    monkeypatch.setattr(session, "show", noting)
    lines = iter(["[[a]]", "", "[[b]]", "/clear", "[[c]]", "/system", "[[d]]", "/what", "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    await _run(session, session.args)
    first = ["system: S", "user: [[a]]"]
    assert asked == [
        first,
        [*first, "assistant: a", "user: [[b]]"],
        ["system: S", "user: [[c]]"],
        ["user: [[d]]"],
    ]
    out = capsys.readouterr().out
    assert "Using model: tiny" in out
    assert "/what is not a command" in out


async def test_process(make_server_on_port: Any) -> None:
    running = await make_server_on_port()
    code, out, err = await vllm("chat", "--url", running.url + "/v1", text="[[one]]\n[[two]]\n")
    assert (code, err) == (0, "")
    assert "one\n" in out and "two\n" in out
    code, out, err = await vllm("chat", "--url", "http://127.0.0.1:1/v1", "-q", "x")
    assert code == 1
    assert "no server at http://127.0.0.1:1/v1" in err and "vllm serve" in err
    assert (await vllm("complete", "--url", running.url, "-q", "x"))[0] == 1
    assert (await vllm("chat", "--nonsense"))[0] == 2


async def test_interrupt_at_the_prompt(make_server_on_port: Any) -> None:
    running = await make_server_on_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-u", "-m", "vllm", "chat", "--url", running.url + "/v1",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readuntil(b"> "), 60)

    # A signal between the prompt and the read is only seen at the next one.
    async def interrupt() -> int:
        while process.returncode is None:
            process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.2)
        return process.returncode

    assert await asyncio.wait_for(interrupt(), 30) == 130


async def test_an_error_does_not_end_the_session(
    make_server_on_port: Any, monkeypatch: Any, capsys: Any
) -> None:
    running = await make_server_on_port()
    args = ClientArgs(url=running.url + "/v1")
    lines = iter(["[[ab!fail!]]", "[[fine]]", "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    await _run(_Chat(args, ChatArgs()), args)
    out, err = capsys.readouterr()
    assert "fine\n" in out
    assert "The server answered" in err and "the sampler raised" in err


async def test_reasoning_stands_between_tags() -> None:
    async def events() -> Any:
        for delta in ('"reasoning":"a"', '"reasoning":"b"', '"content":"c"', '"content":"d"'):
            yield b'{"choices":[{"delta":{%s}}]}' % delta.encode()
        yield b'{"choices":[],"usage":{"completion_tokens":4}}'

    timing = _Timing()
    assert "".join([p async for p in _pieces(events(), timing)]) == "<think>ab</think>cd"
    assert timing.num_tokens == 4


async def test_client_reuses_connections(make_server_on_port: Any) -> None:
    running = await make_server_on_port()
    client = HttpClient(running.url)
    for _ in range(3):
        body = {"prompt": "[[abc]]", "stream": True}
        assert [data async for data in client.stream("/v1/completions", body)]
        assert (await client.post("/v1/completions", {"prompt": "[[x]]"}))["choices"]
        with pytest.raises(HttpError) as refused:
            await client.post("/v1/completions", {"prompt": 3})
        assert refused.value.status == 400
    assert len(running.server.server_state.connections) == 1
    await client.close()
    for wrong in ("ftp://x", "http://", "://"):
        with pytest.raises(ConfigError):
            HttpClient(wrong)


async def test_client_survives_a_closed_idle_connection(make_server_on_port: Any) -> None:
    running = await make_server_on_port()
    client = HttpClient(running.url)
    await client.get("/version")
    for connection in list(running.server.server_state.connections):
        connection.transport.close()
    await asyncio.sleep(0.05)
    assert await client.get("/version")
    await client.close()
