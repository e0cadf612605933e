"""Clients that go, servers that stop: every request ends once, and nothing keeps running."""

import asyncio
import contextlib
import json
import time
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.entrypoints.openai.folding import events
from vllm import envs
from vllm.exceptions import EngineDeadError

SLOW = {"prompt": "Hello", "max_tokens": 500, "ignore_eos": True}
STEP_US = 5000


async def wait_until(condition: Any, seconds: float = 1.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


async def connect(running: Any, body: Any, path: str = "/v1/completions") -> Any:
    """Send a request on a socket of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data)
    await writer.drain()
    return reader, writer


# ---- the client goes ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["close", "reset", "half"])
async def test_disconnect_aborts(make_server_on_port: Any, stream: bool, how: str) -> None:
    running = await make_server_on_port(seed=STEP_US)
    engine = running.serving.engine
    bodies = [{**SLOW, "stream": stream, "n": 2, "temperature": 1} for _ in range(3)]
    connections = [await connect(running, body) for body in bodies]
    await wait_until(lambda: engine.num_unfinished_requests == 3)
    assert (await health(running, "/load"))["server_load"] == 3
    if stream:
        for reader, _ in connections:
            await reader.readuntil(b"data: ")
    for _, writer in connections:
        if how == "reset":
            writer.transport.abort()
        elif how == "half":
            writer.write_eof()
            writer.close()
        else:
            writer.close()
    await wait_until(lambda: engine.num_unfinished_requests == 0)
    await wait_until(lambda: not running.server.server_state.tasks)
    assert (await health(running, "/load"))["server_load"] == 0
    metrics = await health(running, "/metrics")
    assert 'finished_reason="abort",model_name="tiny"} 6.0' in metrics
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in await steady(running)


async def health(running: Any, path: str) -> Any:
    async with httpx.AsyncClient() as client:
        response = await client.get(running.url + path)
    assert response.status_code == 200
    return response.json() if path == "/load" else response.text


async def steady(running: Any) -> str:
    """The metrics after one more request, so that the scheduler has told its state."""
    async with httpx.AsyncClient() as client:
        await client.post(f"{running.url}/v1/completions", json={"prompt": "[[a]]"})
    return str(await health(running, "/metrics"))


async def test_disconnect_while_waiting_in_the_queue(make_server_on_port: Any) -> None:
    running = await make_server_on_port(seed=STEP_US, max_num_seqs=1)
    engine = running.serving.engine
    first = await connect(running, {**SLOW, "max_tokens": 60})
    waiting = [await connect(running, {**SLOW, "stream": True}) for _ in range(5)]
    await wait_until(lambda: engine.num_unfinished_requests == 6)
    for _, writer in waiting:
        writer.close()
    await wait_until(lambda: engine.num_unfinished_requests == 1)
    answer = await asyncio.wait_for(first[0].readuntil(b"}}"), 5)
    assert b'"completion_tokens":60' in answer


async def test_neighbours_of_aborted_requests_are_unchanged(make_server_on_port: Any) -> None:
    running = await make_server_on_port(seed=1000)
    body = {"prompt": "Hello there", "max_tokens": 120}
    async with httpx.AsyncClient() as client:
        url = f"{running.url}/v1/completions"
        alone = (await client.post(url, json=body)).json()["choices"]
        steadies = [asyncio.ensure_future(client.post(url, json=body)) for _ in range(5)]
        for i in range(30):
            headers = {"X-Request-Id": ("a", "0", "")[i % 3]}
            with contextlib.suppress(httpx.TimeoutException):
                await client.post(url, json=SLOW, headers=headers, timeout=0.01)
        for answer in await asyncio.gather(*steadies):
            assert answer.json()["choices"] == alone
    await wait_until(lambda: running.serving.engine.num_unfinished_requests == 0)


async def test_slow_reader_gets_everything(make_server_on_port: Any) -> None:
    running = await make_server_on_port()
    text = "".join(chr(97 + i % 26) for i in range(200))
    reader, writer = await connect(
        running, {"prompt": f"[[{text}]]", "stream": True, "max_tokens": 300}
    )
    received = b""
    while b"[DONE]" not in received:
        received += await reader.read(200)
        await asyncio.sleep(0.001)
    writer.close()
    datas = [part.partition("\n\n")[0] for part in received.decode().split("data: ")[1:]]
    chunks = [json.loads(data) for data in datas if data != "[DONE]"]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text


async def test_many_aborted_streams_leave_nothing(make_server_on_port: Any) -> None:
    running = await make_server_on_port(seed=200)
    process = psutil.Process()

    async def one(index: int) -> None:
        _, writer = await connect(running, {**SLOW, "stream": index % 3 > 0})
        await asyncio.sleep(0.001 * (index % 7))
        if index % 2:
            writer.transport.abort()
        writer.close()

    async def round_() -> tuple[int, int]:
        for start in range(0, 150, 15):
            await asyncio.gather(*(one(i) for i in range(start, start + 15)))
        await wait_until(lambda: running.serving.engine.num_unfinished_requests == 0)
        await wait_until(lambda: not running.server.server_state.connections)
        return len(asyncio.all_tasks()), process.num_fds()

    assert await round_() == await round_()
    assert running.serving.num_running == 0


async def test_the_loop_goes_on_while_bodies_are_heavy(make_server_on_port: Any) -> None:
    """Deep, long and expensive bodies are refused or handled beside the event loop.

    Measured in CPU time of the loop's thread, which a busy machine does not change.
    """
    running = await make_server_on_port({"trust_request_chat_template": True})
    worst = 0.0

    async def probe() -> None:
        nonlocal worst
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.005)
            worst = max(worst, time.thread_time() - before)

    loop = "{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}"
    bodies = [
        ("/v1/completions", {"prompt": [[1]] * 1_000_000}),
        ("/v1/completions", {"prompt": "x", "n": 10**9}),
        ("/v1/completions", {"prompt": "ab " * 2_000_000}),
        ("/tokenize", {"prompt": "ab " * 500_000}),
        ("/v1/chat/completions",
         {"messages": [{"role": "user", "content": "x"}], "chat_template": loop}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "ab " * 2_000_000}]}),
    ]  # fmt: skip
    data = [(path, json.dumps(body)) for path, body in bodies]
    headers = {"Content-Type": "application/json"}
    async with httpx.AsyncClient(timeout=60) as client:
        await client.get(running.url + "/health")
        watcher = asyncio.ensure_future(probe())
        for path, content in data:
            response = await client.post(running.url + path, content=content, headers=headers)
            assert response.status_code in (200, 400), response.text[:200]
        watcher.cancel()
    assert worst < 0.5


# ---- keep-alive --------------------------------------------------------------------------------


async def test_comments_while_nothing_comes(make_serving: Any) -> None:
    from vllm.entrypoints.openai.sse import EventStream

    serving = await make_serving({"sse_keep_alive_interval": 1})
    sent: list[bytes] = []

    async def nothing() -> Any:
        await asyncio.sleep(2.5)
        yield b"data: 1\n\n"

    async def receive() -> Any:
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    await EventStream(serving, "id", nothing())({}, receive, send)
    assert sent == [
        b"",
        b": keep-alive\n\n",
        b": keep-alive\n\n",
        b"data: 1\n\n",
        b"data: [DONE]\n\n",
    ]


# ---- the server stops --------------------------------------------------------------------------


async def _refused(url: str) -> None:
    """Return once new connections are refused."""
    while True:
        try:
            async with httpx.AsyncClient() as client:
                await client.get(url + "/health")
        except httpx.ConnectError:
            return
        except httpx.TransportError:   # the listening socket closed under this one
            pass
        await asyncio.sleep(0.01)


async def test_drain_lets_requests_finish(make_server_on_port: Any) -> None:
    running = await make_server_on_port({"shutdown_timeout": 10}, seed=STEP_US)
    async with httpx.AsyncClient() as client:
        url = f"{running.url}/v1/completions"
        body = {**SLOW, "max_tokens": 100}
        whole = asyncio.ensure_future(client.post(url, json=body))
        streamed = asyncio.ensure_future(client.post(url, json={**body, "stream": True}))
        await wait_until(lambda: running.serving.engine.num_unfinished_requests == 2)
        stopping = asyncio.ensure_future(running.stop())
        await asyncio.wait_for(_refused(running.url), 10)
        assert (await whole).json()["usage"]["completion_tokens"] == 100
        assert events((await streamed).text)[-1]["choices"][0]["finish_reason"] == "length"
        await asyncio.wait_for(stopping, 5)


@pytest.mark.parametrize("signals", [1, 2])
async def test_what_is_left_is_ended(make_server_on_port: Any, signals: int) -> None:
    """No time to drain, or a second signal during it: a terminal event for each stream."""
    drain_s = 0 if signals == 1 else 60
    running = await make_server_on_port({"shutdown_timeout": drain_s}, seed=STEP_US)
    async with httpx.AsyncClient() as client:
        url = f"{running.url}/v1/completions"
        whole = asyncio.ensure_future(client.post(url, json=SLOW))
        streams = [
            asyncio.ensure_future(client.post(url, json={**SLOW, "stream": True})) for _ in range(5)
        ]
        await wait_until(lambda: running.serving.engine.num_unfinished_requests == 6)
        started = time.monotonic()
        for _ in range(signals):
            running.server._on_signal()
            await asyncio.sleep(0.1)
        for stream in streams:
            *_, last = events((await stream).text)
            assert last["error"]["code"] == 503
            assert last["error"]["type"] == "ServiceUnavailableError"
        assert (await whole).status_code == 503
        await asyncio.wait_for(running.task, 5)
        assert time.monotonic() - started < 4
    assert running.serving.engine.num_unfinished_requests == 0


async def test_idle_connections_do_not_delay_the_stop(make_server_on_port: Any) -> None:
    running = await make_server_on_port({"shutdown_timeout": 60})
    idle = await asyncio.open_connection("127.0.0.1", running.port)
    async with httpx.AsyncClient() as client:
        await client.get(running.url + "/health")
        await asyncio.wait_for(running.stop(), 2)
    idle[1].close()


async def test_lost_engine(make_server_on_port: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(envs, "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", True)
    running = await make_server_on_port(seed=STEP_US)
    engine = running.serving.engine
    async with httpx.AsyncClient() as client:
        url = f"{running.url}/v1/completions"
        whole = asyncio.ensure_future(client.post(url, json=SLOW))
        streamed = asyncio.ensure_future(client.post(url, json={**SLOW, "stream": True}))
        await wait_until(lambda: engine.num_unfinished_requests == 2)
        engine._lose_engine(EngineDeadError("test"))
        assert (await whole).status_code == 500
        assert events((await streamed).text)[-1]["error"]["code"] == 500
        assert (await client.get(running.url + "/health")).status_code == 503
        assert (await client.get(running.url + "/ping")).status_code == 503
        assert (await client.post(url, json=SLOW)).status_code == 500


async def test_lost_engine_stops_the_server(make_server_on_port: Any, monkeypatch: Any) -> None:
    from vllm.entrypoints.openai import server

    monkeypatch.setattr(server, "_WATCH_INTERVAL_S", 0.05)
    running = await make_server_on_port()
    await asyncio.sleep(0.1)
    running.serving.engine._lose_engine(EngineDeadError("test"))
    await asyncio.wait_for(running.task, 5)
    assert isinstance(running.server.engine_error, EngineDeadError)


# ---- the official client -----------------------------------------------------------------------


async def test_official_client(make_server_on_port: Any) -> None:
    running = await make_server_on_port({"api_key": ["secret"]})
    client = openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="secret", max_retries=0)
    assert [model.id for model in (await client.models.list()).data] == ["tiny", "alias"]
    messages: Any = [{"role": "user", "content": "[[Hi 🌶]]"}]
    chat = client.chat.completions
    answer = await chat.create(model="tiny", messages=messages, logprobs=True, top_logprobs=2)
    assert answer.choices[0].message.content == "Hi 🌶"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content or []
    assert b"".join(bytes(e.bytes or []) for e in content[:-1]).decode() == "Hi 🌶"
    stream = await chat.create(
        model="tiny", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hi 🌶"
    assert chunks[-1].usage is not None and answer.usage is not None
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens == 8
    completion = await client.completions.create(
        model="tiny", prompt=["[[a]]", "[[b]]"], logprobs=1, echo=True
    )
    assert [choice.text for choice in completion.choices] == ["[[a]]a", "[[b]]b"]
    text = await client.completions.create(model="tiny", prompt="[[xyz]]", stream=True)
    assert "".join([c.choices[0].text async for c in text]) == "xyz"


async def test_official_client_sees_the_right_errors(make_server_on_port: Any) -> None:
    running = await make_server_on_port({"api_key": ["secret"]})
    client = openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="secret", max_retries=0)
    create = client.chat.completions.create
    messages: Any = [{"role": "user", "content": "x" * 5000}]
    with pytest.raises(openai.NotFoundError) as missing:
        await create(model="other", messages=messages)
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as long:
        await create(model="tiny", messages=messages)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.APIError) as broken:
        failing: Any = [{"role": "user", "content": "[[abc!fail!]]"}]
        async for _ in await create(model="tiny", messages=failing, stream=True):
            pass
    assert "the sampler raised" in broken.value.message
    with pytest.raises(openai.InternalServerError):
        await create(model="tiny", messages=failing)
