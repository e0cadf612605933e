"""The OpenAI-compatible server: the table of endpoints, the application, the start.

Start order: bind the socket, start the engine process, and build everything else while it loads the
model. The socket listens only when requests can be served.
"""

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from vllm import envs
from vllm.engine.startup_log import config_lines, engine_lines
from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.entrypoints.openai.exposure import (
    ApiKeys,
    allowed_hosts,
    api_keys,
    bind,
    bind_host,
    check_exposure,
    check_tls,
)
from vllm.exceptions import ConfigError
from vllm.logger import init_logger, set_process_name
from vllm.utils.startup import StartupTimer

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.openai.server import ApiServer
    from vllm.entrypoints.openai.serving import Metrics, Serving
    from vllm.v1.engine.async_llm import AsyncLLM

logger = init_logger(__name__)


def _always(options: FrontendArgs) -> bool:
    return True


def _dev_mode(options: FrontendArgs) -> bool:
    return envs.VLLM_SERVER_DEV_MODE


def _has_docs(options: FrontendArgs) -> bool:
    return not options.disable_fastapi_docs


@dataclass(frozen=True, slots=True)
class Row:
    """One endpoint. `endpoint` is part.method; an open one needs no key."""

    methods: tuple[str, ...]
    path: str
    endpoint: str
    summary: str
    request: str | None = None
    is_open: bool = False
    is_counted: bool = False
    when: Callable[[FrontendArgs], bool] = _always


_GET, _POST, _BOTH = ("GET",), ("POST",), ("GET", "POST")

ROUTES = (
    Row(_POST, "/v1/chat/completions", "chat.create", "Answer a conversation",
        request="ChatCompletionRequest", is_counted=True),
    Row(_POST, "/v1/completions", "completion.create", "Continue a text",
        request="CompletionRequest", is_counted=True),
    Row(_GET, "/v1/models", "management.models", "The names this server answers to"),
    Row(_POST, "/tokenize", "tokens.tokenize", "Token ids of a text or of messages",
        request="TokenizeRequest"),
    Row(_POST, "/detokenize", "tokens.detokenize", "The text of token ids",
        request="DetokenizeRequest"),
    Row(_GET, "/health", "management.health", "200 while requests can be served", is_open=True),
    Row(_BOTH, "/ping", "management.health", "The same as /health", is_open=True),
    Row(_GET, "/version", "management.version", "The version of the server", is_open=True),
    Row(_GET, "/metrics", "management.metrics", "Numbers for Prometheus"),
    Row(_GET, "/load", "management.load", "How many generation requests are in work"),
    Row(_GET, "/openapi.json", "management.openapi", "The schema of this API", when=_has_docs),
    Row(_GET, "/docs", "management.docs", "This page", when=_has_docs),
    Row(_POST, "/reset_prefix_cache", "management.reset_prefix_cache",
        "Forget cached prompts", when=_dev_mode),
)  # fmt: skip


def build_app(
    serving: "Serving",
    routes: Sequence[Row] = ROUTES,
    more_parts: Mapping[str, object] | None = None,
) -> "Starlette":
    """The ASGI application of one engine; `more_parts` hold endpoints of other tables."""
    from starlette.applications import Starlette
    from starlette.routing import Route

    from vllm.entrypoints.openai.chat import ChatServing
    from vllm.entrypoints.openai.completion import CompletionServing
    from vllm.entrypoints.openai.endpoints import answering, exception_handlers
    from vllm.entrypoints.openai.http_metrics import HttpMetrics
    from vllm.entrypoints.openai.management import Management
    from vllm.entrypoints.openai.middleware import guard
    from vllm.entrypoints.openai.tokens import TokenServing

    options = serving.options
    keys = ApiKeys(api_keys(options))
    rows = [row for row in routes if row.when(options)]
    metrics = HttpMetrics(frozenset(row.path for row in rows))
    parts: dict[str, object] = {
        "chat": ChatServing(serving),
        "completion": CompletionServing(serving),
        "tokens": TokenServing(serving),
        "management": Management(serving, metrics, rows),
        **(more_parts or {}),
    }
    endpoints = []
    for row in rows:
        part, _, method = row.endpoint.partition(".")
        endpoint = answering(getattr(parts[part], method), serving, row.is_counted)
        if not row.is_open:
            endpoint = guard(endpoint, keys)
        endpoints.append(Route(row.path, endpoint, methods=list(row.methods)))
    app = Starlette(routes=endpoints, exception_handlers=exception_handlers(keys, serving))
    app.router.redirect_slashes = False
    _add_middleware(app, options, metrics)
    return app


def _add_middleware(app: "Starlette", options: FrontendArgs, metrics: Any) -> None:
    """The last one added is the outermost."""
    from vllm.entrypoints.openai.middleware import HostGuard, Measure, RequestIds

    for name in options.middleware or []:
        _add_custom(app, name)
    if options.allowed_origins:
        from starlette.middleware.cors import CORSMiddleware

        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.allowed_origins,
            allow_credentials=options.allow_credentials,
            allow_methods=options.allowed_methods,
            allow_headers=options.allowed_headers,
        )
    app.add_middleware(Measure, metrics=metrics)
    app.add_middleware(HostGuard, allowed=allowed_hosts(options), origins=options.allowed_origins)
    if options.enable_request_id_headers:
        app.add_middleware(RequestIds)


def _add_custom(app: "Starlette", name: str) -> None:
    """`--middleware`: a class, or an async function (request, call_next)."""
    from inspect import iscoroutinefunction

    module, _, attribute = name.replace(":", ".").rpartition(".")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--middleware {name} can't be imported: {error}") from error
    if isinstance(found, type):
        app.add_middleware(cast("Any", found))
    elif iscoroutinefunction(found):
        from starlette.middleware.base import BaseHTTPMiddleware

        app.add_middleware(BaseHTTPMiddleware, dispatch=found)
    else:
        raise ConfigError(f"--middleware {name} is neither a class nor an async function.")


# ---- start -------------------------------------------------------------------------------------


def serve(
    engine_args: "AsyncEngineArgs",
    settings: Mapping[str, Any],
    build: Callable[["Serving"], "Starlette"] = build_app,
) -> None:
    """Run until a signal ends the server; raises ConfigError if it can't start."""
    timer = StartupTimer()
    options = FrontendArgs(**settings)
    check_exposure(options)
    check_tls(options)
    if options.insecure and not api_keys(options):
        logger.warning("--insecure: everybody who can reach %s may use it", bind_host(options))
    set_process_name("APIServer")
    sock = bind(options)
    if options.port == 0 and options.uds is None:  # the system chose one
        options = replace(options, port=sock.getsockname()[1])
    error = _runner()(_serve(engine_args, options, sock, timer, build))
    if error is not None and not isinstance(error, asyncio.CancelledError):
        sys.exit(1)


def _runner() -> Callable[[Coroutine[Any, Any, BaseException | None]], BaseException | None]:
    """uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


async def _serve(
    engine_args: "AsyncEngineArgs",
    options: FrontendArgs,
    sock: socket.socket,
    timer: StartupTimer,
    build: Callable[["Serving"], "Starlette"],
) -> BaseException | None:
    """Start and serve; returns why the engine was lost, if it was."""
    main = asyncio.current_task()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, main.cancel)  # type: ignore[union-attr]
    engine = None
    try:
        engine, metrics = _start_engine(engine_args, timer)
        server = await _prepare(engine, metrics, options, timer, build)
        stats = asyncio.ensure_future(_log_stats(engine))
        await server.serve(sockets=[sock])
        stats.cancel()
        return server.engine_error
    except asyncio.CancelledError as cancelled:
        logger.info("Stopped before the model was ready")
        return cancelled
    finally:
        sock.close()
        if engine is not None:
            engine.shutdown()


def _start_engine(
    engine_args: "AsyncEngineArgs", timer: StartupTimer
) -> "tuple[AsyncLLM, Metrics | None]":
    """The engine process begins to load; nothing waits for it yet."""
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import LoggingStatLogger, StatLogger
    from vllm.v1.metrics.prometheus import PrometheusStatLogger

    config = engine_args.create_engine_config("server")
    for line in config_lines(config):
        logger.info("%s", line)
    timer.end_phase("read the configuration")
    metrics, loggers = None, list[StatLogger]()
    if not engine_args.disable_log_stats:
        metrics = PrometheusStatLogger(config)
        loggers = [LoggingStatLogger(), metrics]
    engine = AsyncLLM.from_vllm_config(config, stat_loggers=loggers)
    timer.end_phase("start the engine process")
    return engine, metrics


async def _prepare(
    engine: "AsyncLLM",
    metrics: "Metrics | None",
    options: FrontendArgs,
    timer: StartupTimer,
    build: Callable[["Serving"], "Starlette"],
) -> "ApiServer":
    """Everything but the model, while the engine loads that; then wait for it."""
    waiting = asyncio.ensure_future(engine.wait_ready())
    await asyncio.sleep(0)
    from vllm.entrypoints.openai.server import configure_logging, make_server
    from vllm.entrypoints.openai.serving import Serving

    configure_logging(options)
    serving = Serving(engine, options, metrics)
    app = build(serving)
    await asyncio.to_thread(serving.prepare)
    timer.end_phase("build the server")
    ready = await waiting
    timer.end_phase("wait for the model")

    def announce() -> None:
        timer.end_phase("listen")
        gc.freeze()   # what lives until the end is not worth searching again
        loaded = engine_lines(engine.vllm_config, ready.kernels, ready.phases)
        for line in [*loaded, *timer.lines(ready.phases)]:
            logger.info("%s", line)
        logger.info("Listening on %s", _address(options))
        logger.info("Application startup complete.")

    return make_server(app, serving, announce)


def _address(options: FrontendArgs) -> str:
    if options.uds is not None:
        return options.uds
    scheme = "https" if options.ssl_certfile else "http"
    host = bind_host(options)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{options.port}"


async def _log_stats(engine: "AsyncLLM") -> None:
    while True:
        await asyncio.sleep(envs.VLLM_LOG_STATS_INTERVAL)
        await engine.do_log_stats()


def main() -> None:
    """`python -m vllm.entrypoints.openai.api_server` is `vllm serve`."""
    from vllm.entrypoints.cli.main import main as command_line

    command_line(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    main()
