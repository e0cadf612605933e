"""The life of the HTTP server: limits of the wire, signals, draining.

After SIGTERM or SIGINT: no new connections, running requests get --shutdown-timeout seconds, what
is left then ends with a terminal event, exit status 0. A second signal skips the wait.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.logging import TRACE_LOG_LEVEL as TRACE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vllm import envs
from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.entrypoints.openai.serving import Serving
from vllm.exceptions import ConfigError
from vllm.logger import init_logger

logger = init_logger(__name__)

MAX_URL_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 30.0
ABORT_TIMEOUT_S = 2.0
_WATCH_INTERVAL_S = 5.0
_REFUSED_HEAD = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class LimitedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a limit on the size, number and duration of a request's headers."""

    def __init__(self, *args: Any, max_head: int, max_headers: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_head = max_head
        self._max_headers = max_headers
        self._head_bytes = 0
        self._is_in_head = True
        self._is_refused = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_in_head:
            self._start_head_timer()
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > self._max_head:
            self._refuse()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._stop_head_timer()
        if len(self.headers) > self._max_headers or len(self.url) > MAX_URL_BYTES:
            self._refuse()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_head = True
        self._head_bytes = 0
        if not self._is_refused:
            super().on_message_complete()

    def _refuse(self) -> None:
        self._is_refused = True
        self.transport.write(_REFUSED_HEAD)
        self.transport.close()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._on_head_timeout)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self._is_in_head and not is_answering and not self.transport.is_closing():
            self.transport.close()


class ApiServer(uvicorn.Server):
    """Listens on a bound socket when the model is ready; stops as the module's docstring says."""

    def __init__(self, config: uvicorn.Config, serving: Serving, on_listening: Callable[[], None]):
        super().__init__(config)
        self._serving = serving
        self._on_listening = on_listening
        self._drain_s = serving.options.shutdown_timeout
        self._hurry = asyncio.Event()
        self.engine_error: BaseException | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        if self.config.ssl is not None:
            self.config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            await super().startup(sockets)
        except OSError as error:
            raise ConfigError(f"Can't listen: {error.strerror}.") from error
        self._watchers = [asyncio.ensure_future(self._watch_engine())]
        if self._serving.options.enable_ssl_refresh and self.config.ssl is not None:
            self._watchers.append(asyncio.ensure_future(self._watch_certificate(self.config.ssl)))
        self._on_listening()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled by the loop, and not raised again at the end: the exit is clean."""
        loop = asyncio.get_running_loop()
        handled = (signal.SIGINT, signal.SIGTERM)
        for number in handled:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self.should_exit:
            self._hurry.set()
        self.should_exit = True

    async def _watch_engine(self) -> None:
        """Stop when the engine is lost for good, unless the operator wants to stay."""
        while not envs.VLLM_KEEP_ALIVE_ON_ENGINE_DEATH:
            try:
                await self._serving.engine.check_health()
            except Exception as error:
                logger.error("The engine is lost, the server stops: %s", error)
                self.engine_error = error
                self.should_exit = True
                return
            await asyncio.sleep(_WATCH_INTERVAL_S)

    async def _watch_certificate(self, context: ssl.SSLContext) -> None:
        """New connections use the certificate that is on disk now."""
        options = self._serving.options
        paths = [path for path in (options.ssl_certfile, options.ssl_keyfile) if path]
        loaded = _modified(paths)
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            if _modified(paths) == loaded:
                continue
            try:
                context.load_cert_chain(options.ssl_certfile or "", options.ssl_keyfile)
            except (OSError, ssl.SSLError) as error:
                logger.warning("The changed certificate can't be used yet: %s", error)
                continue
            loaded = _modified(paths)
            logger.info("The certificate was read again")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then end what is left."""
        for watcher in self._watchers:
            watcher.cancel()
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        num_running = len(self.server_state.tasks)
        if num_running:
            logger.info("Shutting down; running requests: %d, for up to %d s; a second signal "
                        "ends them now", num_running, self._drain_s)
        await self._drain()
        self._serving.is_stopping = True
        await self._abort()

    async def _drain(self) -> None:
        hurry = asyncio.ensure_future(self._hurry.wait())
        deadline = asyncio.get_running_loop().time() + self._drain_s
        while self.server_state.tasks and not self._hurry.is_set():
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                break
            waiting = {hurry, *self.server_state.tasks}
            await asyncio.wait(waiting, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()

    async def _abort(self) -> None:
        tasks = list(self.server_state.tasks)
        if tasks:
            logger.info("Aborting running requests: %d", len(tasks))
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=ABORT_TIMEOUT_S)
        for connection in list(self.server_state.connections):
            connection.transport.close()


def make_server(app: ASGIApp, serving: Serving, on_listening: Callable[[], None]) -> ApiServer:
    """uvicorn around the application, configured by the flags."""
    options = serving.options

    def protocol(*args: Any, **kwargs: Any) -> LimitedProtocol:
        limits = {
            "max_head": options.h11_max_incomplete_event_size,
            "max_headers": options.h11_max_header_count,
        }
        return LimitedProtocol(*args, **limits, **kwargs)

    config = uvicorn.Config(
        app,
        http=protocol,  # type: ignore[arg-type]
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=not options.disable_uvicorn_access_log,
        proxy_headers=False,
        server_header=False,
        root_path=options.root_path or "",
        timeout_keep_alive=envs.VLLM_HTTP_TIMEOUT_KEEP_ALIVE,
        **_tls(options),
    )
    return ApiServer(config, serving, on_listening)


def _modified(paths: list[str]) -> list[int]:
    """Modification times; 0 for a file that is just being replaced."""
    times = []
    for path in paths:
        try:
            times.append(os.stat(path).st_mtime_ns)
        except OSError:
            times.append(0)
    return times


def configure_logging(options: FrontendArgs) -> None:
    """Send uvicorn's lines through our handlers; its start and stop messages are left out."""
    level = TRACE if options.uvicorn_log_level == "trace" else options.uvicorn_log_level.upper()
    parent = logging.getLogger("uvicorn")
    parent.handlers[:] = logging.getLogger("vllm").handlers
    parent.propagate = False
    parent.setLevel(level)
    if options.uvicorn_log_level == "info":
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    hidden = {path.strip() for path in (options.disable_access_log_for_endpoints or "").split(",")}
    hidden.discard("")
    if hidden:
        logging.getLogger("uvicorn.access").addFilter(lambda record: _path_of(record) not in hidden)


def _path_of(record: logging.LogRecord) -> str:
    """uvicorn's access records hold (client, method, path with query, version, status)."""
    args = record.args
    return str(args[2]).partition("?")[0] if isinstance(args, tuple) and len(args) > 2 else ""


def _tls(options: FrontendArgs) -> dict[str, Any]:
    if not options.ssl_certfile:
        if options.ssl_keyfile:
            raise ConfigError("--ssl-keyfile needs --ssl-certfile.")
        return {}
    return {
        "ssl_keyfile": options.ssl_keyfile,
        "ssl_certfile": options.ssl_certfile,
        "ssl_ca_certs": options.ssl_ca_certs,
        "ssl_cert_reqs": options.ssl_cert_reqs,
        "ssl_ciphers": options.ssl_ciphers or "DEFAULT",
    }
