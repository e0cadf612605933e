"""Who gets in: keys, hosts, origins, and the limits of the wire."""

import asyncio
import contextlib
import json
import socket
import statistics
import time
from typing import Any

import httpx
import psutil
import pytest

from vllm import envs
from vllm.entrypoints.openai import api_server, exposure, server
from vllm.entrypoints.openai import body as body_module
from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.entrypoints.openai.exposure import ApiKeys, bind, check_exposure, host_name
from vllm.exceptions import ConfigError

OPEN_PATHS = {"/health", "/ping", "/version"}
BODY = {"prompt": "[[ok]]"}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def raw(port: int, data: bytes, timeout: float = 5.0) -> bytes:
    """Send bytes, read until the server closes or stops sending."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        for start in range(0, len(data), 65536):
            writer.write(data[start : start + 65536])
            await writer.drain()
    answer = b""
    with contextlib.suppress(asyncio.TimeoutError, ConnectionError):
        while chunk := await asyncio.wait_for(reader.read(65536), timeout):
            answer += chunk
            if b"\r\n\r\n" in answer:
                timeout = 0.2
    writer.close()
    return answer


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


# ---- keys --------------------------------------------------------------------------------------


async def test_every_route_wants_a_key(make_client: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(envs, "VLLM_SERVER_DEV_MODE", True)
    client = await make_client({"api_key": ["k1", "k2"]})
    paths = {row.path for row in api_server.ROUTES}
    assert {"/v1/models", "/metrics", "/tokenize", "/reset_prefix_cache", "/docs"} <= paths
    for row in api_server.ROUTES:
        for method in row.methods:
            for headers in ({}, bearer("wrong"), bearer("k1x"), bearer("k"), bearer("k1 k2"),
                            {"Authorization": "k1"}, {"Authorization": "Basic k1"}):  # fmt: skip
                response = await client.request(method, row.path, headers=headers)
                if row.path in OPEN_PATHS:
                    assert response.status_code == 200
                else:
                    assert response.status_code == 401, (method, row.path)
                    assert response.json() == {"error": "Unauthorized"}
            for key in ("k1", "k2"):
                response = await client.request(method, row.path, headers=bearer(key))
                assert response.status_code != 401
    for path in ("/nope", "/v1/nope", "/", "//v1/models", "/v1/models/", "/V1/models"):
        assert (await client.get(path)).status_code == 401
        assert (await client.get(path, headers=bearer("k1"))).status_code == 404
    assert (await client.delete("/v1/models")).status_code == 401
    assert (await client.delete("/v1/models", headers=bearer("k1"))).status_code == 405


async def test_key_of_the_environment(make_client: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(envs, "VLLM_API_KEY", "from-env")
    client = await make_client()
    assert (await client.get("/v1/models")).status_code == 401
    assert (await client.get("/v1/models", headers=bearer("from-env"))).status_code == 200
    client = await make_client({"api_key": ["flag"]})
    assert (await client.get("/v1/models", headers=bearer("from-env"))).status_code == 401
    assert (await client.get("/v1/models", headers=bearer("flag"))).status_code == 200


async def test_tenants_do_not_share_cached_prompts(make_client: Any) -> None:
    """Who asks the same as another tenant waits as long as if it were new."""
    options = {"enable_prompt_tokens_details": True}
    body = {"prompt": "x" * 100, "max_tokens": 1}

    async def cached(client: Any, key: str, **more: Any) -> int:
        answer = await client.post("/v1/completions", json={**body, **more}, headers=bearer(key))
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    client = await make_client({**options, "api_key": ["a", "b"]})
    assert [await cached(client, key) for key in "aabb"] == [0, 96, 0, 96]
    salted = [await cached(client, key, cache_salt="s") for key in "aabb"]
    assert salted == [0, 96, 0, 96]
    client = await make_client({**options, "api_key": ["a"]})
    assert [await cached(client, "a") for _ in range(2)] == [0, 96]
    assert [await cached(client, "a", cache_salt="s") for _ in range(2)] == [0, 96]


def test_comparison_takes_the_same_time() -> None:
    """The first wrong byte must not matter: medians of interleaved rounds agree."""
    key = "s" * 32
    keys = ApiKeys([key])
    candidates = ["Bearer " + "x" * 32, f"Bearer {key[:31]}x"]
    times: list[list[float]] = [[], []]
    for _ in range(3000):
        for which, candidate in enumerate(candidates):
            start = time.perf_counter_ns()
            keys.allow(candidate)
            times[which].append(time.perf_counter_ns() - start)
    early, late = map(statistics.median, times)
    assert abs(early - late) < 0.25 * max(early, late)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/models HTTP/1.1\r\nHost: a/?\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: a#\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x/health?\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: \r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost.\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: local host\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: user@localhost\r\n",
        b"GET /v1/models HTTP/1.1\r\n",
        b"GET /v1/models HTTP/1.0\r\n",
        b"GET http://localhost/v1/models HTTP/1.1\r\nHost: localhost\r\n",
        b"GET //v1/models HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /health/../v1/models HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /v1/../v1/models HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /%76%31/models HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /v1%2fmodels HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /V1/models HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /v1/models;x HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /health;/v1/models HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /v1/models?x=/health HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /v1/models#/health HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Original-URL: /health\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Prefix: /health\r\n",
        b"GET /v1/mod\xffels HTTP/1.1\r\nHost: localhost\r\n",
    ],
)
async def test_no_spelling_leads_around_the_key(make_server_on_port: Any, head: bytes) -> None:
    running = await make_server_on_port({"api_key": ["k"]})
    answer = await raw(running.port, head + b"Connection: close\r\n\r\n")
    assert b"tiny" not in answer
    assert status_of(answer) in (400, 401), answer[:200]
    good = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k\r\n"
    assert b"tiny" in await raw(running.port, good + b"Connection: close\r\n\r\n")


async def test_root_path(make_client: Any, make_server_on_port: Any) -> None:
    running = await make_server_on_port({"root_path": "/api", "api_key": ["k"]})
    async with httpx.AsyncClient(base_url=running.url) as client:
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/v1/models", headers=bearer("k"))).status_code == 200
        assert (await client.get("/health")).status_code == 200


# ---- hosts and origins -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"), ("LOCALHOST:80", "localhost"), ("127.0.0.1:8000", "127.0.0.1"),
        ("[::1]:5", "[::1]"), ("a.b-c.example", "a.b-c.example"), ("", None), ("a b", None),
        ("a/b", None), ("a?b", None), ("a#b", None), ("a@b", None), ("a:b", None), ("a:1:2", None),
        ("[::1", None), ("a\\b", None), ("a\x00", None), ("\xe9", None), ("a:123456", None),
    ],
)  # fmt: skip
def test_host_names(header: str, name: str | None) -> None:
    assert host_name(header) == name


async def test_foreign_names_and_pages_without_a_key(make_client: Any) -> None:
    client = await make_client()

    async def status(host: str, **headers: str) -> int:
        response = await client.post(
            "/v1/completions", json=BODY, headers={"Host": host, **headers}
        )
        return int(response.status_code)

    for host in ("localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000"):
        assert await status(host) == 200
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "192.168.1.1"):
        assert await status(host) == 403
    assert await status("localhost:80", Origin="http://localhost:80") == 200
    for origin in ("http://evil.example", "null", "http://localhost:81", "http://[", "localhost"):
        assert await status("localhost:80", Origin=origin) == 403
    allowed = await make_client({"allowed_origins": ["http://ok.example"]})
    headers = {"Origin": "http://ok.example"}
    response = await allowed.post("/v1/completions", json=BODY, headers=headers)
    assert response.headers["access-control-allow-origin"] == "http://ok.example"
    for options in ({"api_key": ["k"]}, {"insecure": True}, {"uds": "/tmp/x"}):
        client = await make_client(options)
        assert (await client.get("/health", headers={"Host": "evil.example"})).status_code == 200


async def test_cors(make_client: Any) -> None:
    asks = {"Origin": "http://ok.example", "Access-Control-Request-Method": "POST"}
    client = await make_client({"api_key": ["k"]})
    response = await client.options("/v1/completions", headers=asks)
    assert "access-control-allow-origin" not in response.headers
    client = await make_client({"api_key": ["k"], "allowed_origins": ["http://ok.example"]})
    response = await client.options("/v1/completions", headers=asks)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "http://ok.example"
    assert (await client.post("/v1/completions", headers=asks, json=BODY)).status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org"])
def test_network_needs_a_key(host: str, monkeypatch: Any) -> None:
    with pytest.raises(ConfigError, match="--api-key or VLLM_API_KEY, or allow it with --insecure"):
        check_exposure(FrontendArgs(host=host))
    check_exposure(FrontendArgs(host=host, api_key=["k"]))
    check_exposure(FrontendArgs(host=host, insecure=True))
    monkeypatch.setattr(envs, "VLLM_API_KEY", "k")
    check_exposure(FrontendArgs(host=host))


@pytest.mark.parametrize("host", [None, "127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]"])
def test_loopback_needs_none(host: str | None) -> None:
    check_exposure(FrontendArgs(host=host))


def test_busy_port_names_the_process() -> None:
    with bind(FrontendArgs(port=0)) as first:
        assert first.getsockname()[0] == "127.0.0.1"
        port = first.getsockname()[1]
        first.listen()
        with pytest.raises(ConfigError, match=f"Port {port} is in use by .*pid") as refusal:
            bind(FrontendArgs(port=port))
        assert str(psutil.Process().pid) in str(refusal.value)


def test_bound_socket_does_not_listen() -> None:
    with bind(FrontendArgs(port=0)) as sock, pytest.raises(ConnectionRefusedError):
        socket.create_connection(sock.getsockname(), 1)


def test_unix_socket(tmp_path: Any) -> None:
    path = str(tmp_path / "s")
    with bind(FrontendArgs(uds=path)) as first:
        first.listen()
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
        with pytest.raises(ConfigError, match="in use"):
            bind(FrontendArgs(uds=path))
    bind(FrontendArgs(uds=path)).close()  # what a dead server left is replaced
    with pytest.raises(ConfigError, match="--uds"):
        bind(FrontendArgs(uds=str(tmp_path / "no" / "s")))
    with pytest.raises(ConfigError, match="not an address"):
        bind(FrontendArgs(host="no such host"))


# ---- the wire ----------------------------------------------------------------------------------

START = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


async def is_alive(running: Any) -> bool:
    async with httpx.AsyncClient() as client:
        response = await client.post(f"{running.url}/v1/completions", json=BODY)
        return bool(response.json()["choices"][0]["text"] == "ok")


async def test_giant_heads(make_server_on_port: Any) -> None:
    running = await make_server_on_port()
    cases = [
        START + b"X: " + b"a" * 16_000_000,
        START + b"".join(b"X%d: a\r\n" % i for i in range(10_000)) + b"\r\n",
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        START + b"X" * 5_000_000,
    ]
    before = psutil.Process().memory_info().rss
    for case in cases:
        answer = await raw(running.port, case)
        assert status_of(answer) in (431, 400, 0), answer[:100]
        assert await is_alive(running)
    assert psutil.Process().memory_info().rss - before < 50_000_000


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n",
        START + b"Content-Length: -1\r\n\r\n",
        START + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        START + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        START + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        START + b" folded: x\r\n\r\n", START + b"X\x00: a\r\n\r\n",
        START + b"Content-Length: x\r\n\r\n",
    ],
)  # fmt: skip
async def test_broken_http(make_server_on_port: Any, data: bytes) -> None:
    running = await make_server_on_port()
    answer = await raw(running.port, data, timeout=0.5)
    assert status_of(answer) in (0, 400, 404), answer[:100]
    assert await is_alive(running)


async def test_small_chunks_and_pipelining(make_server_on_port: Any) -> None:
    running = await make_server_on_port()
    body = json.dumps(BODY).encode()
    chunked = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    answer = await raw(running.port, START + b"Transfer-Encoding: chunked\r\n\r\n" + chunked)
    assert b'"text":"ok"' in answer
    one = START + b"Content-Length: %d\r\n\r\n" % len(body) + body
    answer = await raw(running.port, one * 3)
    assert answer.count(b'"text":"ok"') == 3


async def test_slow_heads_and_bodies(make_server_on_port: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.3)
    monkeypatch.setattr(body_module, "BODY_TIMEOUT_S", 0.3)
    running = await make_server_on_port()
    for data in (b"", START, START[:20]):
        started = time.monotonic()
        assert await raw(running.port, data) == b""
        assert time.monotonic() - started < 3
    for rest in (b"Content-Length: 50\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"):
        answer = await raw(running.port, START + rest)
        assert status_of(answer) == 408
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == 408
    assert await is_alive(running)
    assert not running.server.server_state.tasks


async def test_stray_bytes_do_not_cut_a_long_answer(
    make_server_on_port: Any, monkeypatch: Any
) -> None:
    """Some clients send a line end after the body; it begins a head that never comes."""
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.1)
    running = await make_server_on_port(seed=5000)
    body = json.dumps({"prompt": "Hello", "max_tokens": 80, "stream": True}).encode()
    request = START + b"Content-Length: %d\r\n\r\n" % len(body) + body
    answer = await raw(running.port, request + b"\r\n")
    assert b"data: [DONE]" in answer


async def test_metric_labels_do_not_grow(make_client: Any) -> None:
    client = await make_client()

    async def series() -> int:
        return len((await client.get("/metrics")).text.splitlines())

    counts = []
    for turn in range(2):
        for i in range(30):
            await client.request(f"M{turn}{i}", f"/x{turn}{i}?a={i}")
            await client.post("/v1/completions", json={**BODY, "model": f"m{turn}{i}"})
        counts.append(await series())
    assert counts[0] == counts[1]


def test_process_on_port_of_others() -> None:
    assert exposure.process_on_port(1) is None
