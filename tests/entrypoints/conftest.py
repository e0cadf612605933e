"""Servers over the scripted model, in the test's own event loop."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.entrypoints.scripted import scripted_config
from vllm import envs
from vllm.entrypoints.openai.api_server import build_app
from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.entrypoints.openai.exposure import bind
from vllm.entrypoints.openai.server import ApiServer, make_server
from vllm.entrypoints.openai.serving import Serving
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.prometheus import PrometheusStatLogger

Fields = dict[str, Any]


@pytest.fixture
async def make_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Any]]:
    """make(options, **config fields) -> a Serving whose engine is ready."""
    monkeypatch.setattr(envs, "VLLM_ENABLE_V1_MULTIPROCESSING", False)
    engines: list[AsyncLLM] = []

    async def make(options: Fields | None = None, **fields: Any) -> Serving:
        config = scripted_config(tmp_path, **fields)
        metrics = PrometheusStatLogger(config)
        engines.append(AsyncLLM(config, stat_loggers=[metrics]))
        await engines[-1].wait_ready()
        return Serving(engines[-1], FrontendArgs(**(options or {})), metrics)

    yield make
    for engine in engines:
        engine.shutdown()


@pytest.fixture
async def make_client(make_serving: Any) -> AsyncIterator[Callable[..., Any]]:
    """make(options, **config fields) -> an httpx client of an in-process server."""
    clients: list[httpx.AsyncClient] = []

    async def make(options: Fields | None = None, **fields: Any) -> httpx.AsyncClient:
        serving = await make_serving(options, **fields)
        transport = httpx.ASGITransport(build_app(serving), raise_app_exceptions=False)
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://localhost"))
        clients[-1].serving = serving  # type: ignore[attr-defined]
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()


@pytest.fixture
async def client(make_client: Any) -> httpx.AsyncClient:
    """A client of a server with default settings."""
    result: httpx.AsyncClient = await make_client()
    return result


@pytest.fixture
def log_records() -> Iterator[list[logging.LogRecord]]:
    """What vllm logs during the test."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("vllm").addHandler(handler)
    yield records
    logging.getLogger("vllm").removeHandler(handler)


class RunningServer:
    """uvicorn on a loopback port, in a task of the test's loop."""

    def __init__(self, server: ApiServer, sock: socket.socket, serving: Serving) -> None:
        self.server = server
        self.serving = serving
        self.port: int = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.task = asyncio.ensure_future(server.serve(sockets=[sock]))

    async def stop(self) -> None:
        """As a signal does."""
        self.server._on_signal()
        await self.task


@pytest.fixture
async def make_server_on_port(make_serving: Any) -> AsyncIterator[Callable[..., Any]]:
    """make(options, **config fields) -> a RunningServer that listens."""
    servers: list[RunningServer] = []

    async def make(options: Fields | None = None, **fields: Any) -> RunningServer:
        serving = await make_serving(
            {"port": 0, "shutdown_timeout": 0, **(options or {})}, **fields
        )
        listening = asyncio.Event()
        server = make_server(build_app(serving), serving, listening.set)
        servers.append(RunningServer(server, bind(serving.options), serving))
        await asyncio.wait_for(listening.wait(), 5)
        return servers[-1]

    yield make
    for server in servers:
        if not server.task.done():
            await server.stop()
