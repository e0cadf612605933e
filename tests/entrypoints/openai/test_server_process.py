"""The server as a process: start, TLS, unix sockets, signals, and what it says when it can't."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.v1.engine.real_config import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose weights are made up."""
    folder = write_model(tmp_path_factory.mktemp("model"))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return folder


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Process:
    """A server process and what it printed."""

    def __init__(self, words: list[str], log: Path, **env: str) -> None:
        self.log = log
        command = [sys.executable, "-m", *words]
        self.popen = subprocess.Popen(
            command, stdout=log.open("w"), stderr=subprocess.STDOUT, env={**os.environ, **env}
        )

    def text(self) -> str:
        return self.log.read_text()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 60
        while "Application startup complete." not in self.text():
            assert self.popen.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)

    def stop(self) -> int:
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(20)


@pytest.fixture
def start(model: Path, tmp_path: Path) -> Iterator[Any]:
    """start(*flags) -> a Process of `vllm serve` with the tiny model."""
    started: list[Process] = []

    def make(*flags: str, module: str = "vllm", **env: str) -> Process:
        words = [module, *(["serve", str(model)] if module == "vllm" else ["--model", str(model)])]
        engine = ["--load-format", "dummy", "--max-model-len", "256",
                  "--kv-cache-memory-bytes", "16M"]  # fmt: skip
        log = tmp_path / f"log{len(started)}"
        started.append(Process([*words, *engine, *flags], log, **env))
        return started[-1]

    yield make
    for one in started:
        if one.popen.poll() is None:
            one.popen.kill()
            one.popen.wait()


BODY = {"prompt": "Hello", "max_tokens": 4}


@pytest.mark.parametrize(
    "module", ["vllm", "vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"]
)
def test_start_and_stop(start: Any, module: str, tmp_path: Path) -> None:
    port = free_port()
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    server = start("--port", str(port), module=module, VLLM_RPC_BASE_PATH=str(sockets))
    server.wait_ready()
    path = "/generate" if module == "vllm.entrypoints.api_server" else "/v1/completions"
    assert httpx.post(f"http://127.0.0.1:{port}{path}", json=BODY).status_code == 200
    family = [psutil.Process(server.popen.pid)]
    family += family[0].children(recursive=True)
    for one in family:
        loaded = {Path(entry.path).name for entry in one.memory_maps()}
        assert not [name for name in loaded if "libtorch" in name]
        # Only the HTTP port is open to others.
        listening = {c.laddr.port for c in one.net_connections() if c.status == "LISTEN"}
        assert listening <= {port}
    assert server.stop() == 0
    assert not [one for one in family if one.is_running() and one.status() != "zombie"]
    assert not list(sockets.iterdir())
    assert f"Listening on http://127.0.0.1:{port}" in server.text()
    assert "Traceback" not in server.text()


def test_refuses_connections_until_ready(start: Any) -> None:
    port = free_port()
    server = start("--port", str(port))
    while "Application startup complete." not in server.text():
        with contextlib.suppress(httpx.ConnectError):
            assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
        time.sleep(0.01)
        assert server.popen.poll() is None
    assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    assert server.stop() == 0


def test_stop_while_loading(start: Any) -> None:
    server = start("--port", str(free_port()))
    time.sleep(0.6)
    assert server.stop() in (0, -signal.SIGTERM)
    assert "Traceback" not in server.text()
    assert not psutil.pid_exists(server.popen.pid) or server.popen.poll() is not None


def test_drain_on_a_signal(start: Any) -> None:
    port = free_port()
    server = start("--port", str(port))
    server.wait_ready()
    with httpx.stream(
        "POST",
        f"http://127.0.0.1:{port}/v1/completions",
        json={"prompt": "Hello", "max_tokens": 200, "ignore_eos": True, "stream": True},
    ) as response:
        lines = response.iter_lines()
        next(lines)
        server.popen.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]
    assert server.popen.wait(10) == 0


def test_unix_socket(start: Any, tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    server = start("--uds", str(path), "--api-key", "k1", "k2")
    server.wait_ready()
    transport = httpx.HTTPTransport(uds=str(path))
    with httpx.Client(transport=transport, base_url="http://anything") as client:
        assert client.get("/v1/models").status_code == 401
        answer = client.get("/v1/models", headers={"Authorization": "Bearer k2"})
        assert answer.status_code == 200
    assert server.stop() == 0
    assert "k1" not in server.text()


needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs openssl to make a certificate"
)


def make_certificate(folder: Path, name: str) -> tuple[str, str]:
    """(certificate, key) for localhost that signs itself."""
    certificate, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-keyout", key, "-out", certificate, "-subj", f"/CN={name}",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


@needs_openssl
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1:DeprecationWarning")
def test_tls(start: Any, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "server")
    port = free_port()
    server = start("--port", str(port), "--ssl-keyfile", key, "--ssl-certfile", certificate)
    server.wait_ready()
    url = f"https://localhost:{port}/health"
    trusting = ssl.create_default_context(cafile=certificate)
    assert httpx.get(url, verify=trusting).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    old = ssl.create_default_context(cafile=certificate)
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((httpx.ConnectError, ssl.SSLError)):
        httpx.get(url, verify=old)
    assert server.stop() == 0


@needs_openssl
def test_client_certificates(start: Any, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "server")
    mine, my_key = make_certificate(tmp_path, "client")
    port = free_port()
    server = start(
        "--port", str(port), "--ssl-keyfile", key, "--ssl-certfile", certificate,
        "--ssl-ca-certs", mine, "--ssl-cert-reqs", "2",
    )  # fmt: skip
    server.wait_ready()
    url = f"https://localhost:{port}/health"
    context = ssl.create_default_context(cafile=certificate)
    with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
        httpx.get(url, verify=context)
    context.load_cert_chain(mine, my_key)
    assert httpx.get(url, verify=context).status_code == 200
    assert server.stop() == 0


@needs_openssl
async def test_certificate_is_read_again(
    make_server_on_port: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    from vllm.entrypoints.openai import server as server_module

    monkeypatch.setattr(server_module, "_WATCH_INTERVAL_S", 0.05)
    certificate, key = make_certificate(tmp_path, "first")
    options = {"ssl_certfile": certificate, "ssl_keyfile": key, "enable_ssl_refresh": True}
    running = await make_server_on_port(options)

    async def shown() -> str:
        """The certificate that new connections see."""
        return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", running.port))

    assert await shown() == Path(certificate).read_text()
    await asyncio.sleep(0.1)
    Path(certificate).write_text("half a file")
    await asyncio.sleep(0.2)
    new, new_key = make_certificate(tmp_path, "second")
    shutil.copy(new_key, key)
    shutil.copy(new, certificate)
    for _ in range(100):
        await asyncio.sleep(0.05)
        if await shown() == Path(new).read_text():
            break
    assert await shown() == Path(new).read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "0.0.0.0"], r"--host 0\.0\.0\.0 would open the server .* --insecure"),
        (["--chat-template", "nothing.jinja"], "--chat-template"),
        (["--chat-template", "{% if %}"], "chat template, line 1"),
        (["--middleware", "no.such.thing"], "--middleware no.such.thing"),
        (["--ssl-certfile", "/nothing", "--ssl-keyfile", "/nothing"], "ssl"),
    ],
)
def test_one_line_when_it_can_not_start(start: Any, flags: list[str], message: str) -> None:
    server = start("--port", str(free_port()), *flags)
    assert server.popen.wait(30) == 1
    assert re.search(message, server.text()), server.text()
    assert "Traceback" not in server.text()


def test_busy_port(start: Any) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        server = start("--port", str(port))
        assert server.popen.wait(30) == 1
    assert f"Port {port} is in use by" in server.text()
    assert str(os.getpid()) in server.text()
