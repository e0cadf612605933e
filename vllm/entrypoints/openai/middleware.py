"""What happens to every HTTP message around the endpoints: who may ask, ids, numbers.

Authorisation is a property of the *routed* endpoint: `guard` wraps the endpoint itself, so no
spelling of a path can lead around it.
"""

import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vllm.entrypoints.openai.errors import error_body, json_response
from vllm.entrypoints.openai.exposure import ApiKeys, host_name
from vllm.entrypoints.openai.http_metrics import HttpMetrics

TENANT = "vllm.tenant"
"""Where the scope of a request says whose key it carries."""

Endpoint = Callable[[Request], Awaitable[Any]]


def guard(endpoint: Endpoint, keys: ApiKeys) -> Endpoint:
    """The endpoint for holders of a key."""

    async def guarded(request: Request) -> Any:
        authorization = request.headers.get("authorization")
        if request.method != "OPTIONS" and not keys.allow(authorization):
            return unauthorized()
        request.scope[TENANT] = keys.tenant(authorization)
        return await endpoint(request)

    return guarded


def unauthorized() -> Response:
    """The answer to a missing or wrong key."""
    return json_response({"error": "Unauthorized"}, 401, {"WWW-Authenticate": "Bearer"})


class HostGuard:
    """Refuses malformed Host headers; with `allowed` hosts also foreign names and foreign pages."""

    def __init__(self, app: ASGIApp, allowed: frozenset[str] | None, origins: list[str]) -> None:
        self._app = app
        self._allowed = allowed
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer for the application or hand over to it."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        host = host_name(hosts[0].decode("latin-1")) if len(hosts) == 1 else None
        if host is None:
            return _refuse(400, "The request needs exactly one valid Host header.")
        if self._allowed is None:
            return None
        if host not in self._allowed:
            return _refuse(
                403,
                "This server has no API key and answers to local names only. Set --api-key, or "
                "--insecure to answer to every name.",
            )
        origin = Headers(scope=scope).get("origin")
        if origin is not None and not self._trusts(origin, hosts[0].decode("latin-1")):
            return _refuse(403, "Requests of other web pages need --allowed-origins.")
        return None

    def _trusts(self, origin: str, host: str) -> bool:
        if origin in self._origins or "*" in self._origins:
            return True
        try:
            return urlsplit(origin).netloc.lower() == host.lower()
        except ValueError:
            return False


def _refuse(status: int, message: str) -> Response:
    return json_response(error_body(status, message), status)


class RequestIds:
    """Puts X-Request-Id on every response: the client's own, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wrap one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = Headers(scope=scope).get("x-request-id") or uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class Measure:
    """Feeds HttpMetrics."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Time one request and count its bytes."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, num_sent = time.perf_counter(), 500, 0

        async def counting_send(message: Message) -> None:
            nonlocal status, num_sent
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                num_sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, counting_send)
        finally:
            length = Headers(scope=scope).get("content-length", "")
            sizes = int(length) if length.isdecimal() else 0, num_sent
            seconds = time.perf_counter() - started
            self._metrics.record(scope["path"], scope["method"], status, seconds, sizes)
