"""Server-sent events: writes what a generator yields, and ends every stream exactly once.

Invariant: a stream that began ends with `[DONE]`, after the last chunk or after one error event,
unless the client has gone; and the generator is always closed, which aborts what still runs.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from time import monotonic

from starlette.types import Receive, Scope, Send

from vllm.entrypoints.openai.disconnect import (
    ClientDisconnectedError,
    DisconnectWatch,
    forget_cancellation,
)
from vllm.entrypoints.openai.errors import NotReadyError, describe
from vllm.entrypoints.openai.serving import Serving, encode
from vllm.logger import init_logger

logger = init_logger(__name__)

Events = AsyncGenerator[bytes, None]

_KEEP_ALIVE = b": keep-alive\n\n"


def event(value: object) -> bytes:
    """One event."""
    return b"data: %b\n\n" % encode(value)


def json_line(value: object) -> bytes:
    """One line of newline-delimited JSON."""
    return encode(value) + b"\n"


@dataclass(frozen=True, slots=True)
class Framing:
    """How a stream looks on the wire: its type, its pieces and its last one."""

    media_type: bytes
    piece: Callable[[object], bytes]
    done: bytes
    has_comments: bool


SSE = Framing(b"text/event-stream; charset=utf-8", event, b"data: [DONE]\n\n", True)
JSON_LINES = Framing(b"application/x-ndjson", json_line, b"", False)


class EventStream:
    """The answer of a streaming endpoint, as an ASGI application.

    `status_code`, `headers` and friends of Starlette's Response are not needed: middlewares work
    on the messages.
    """

    def __init__(
        self, serving: Serving, request_id: str, events: Events, framing: Framing = SSE
    ) -> None:
        self._serving = serving
        self._request_id = request_id
        self._events = events
        self._framing = framing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, or stop as soon as the client has gone."""
        writer = _Writer(send, self._framing, self._serving.options.sse_keep_alive_interval)
        try:
            async with DisconnectWatch(receive):
                await writer.start()
                await self._send_events(writer)
                await writer.finish()
        except ClientDisconnectedError:
            logger.info("Request %s: the client disconnected", self._request_id)
        finally:
            self._serving.num_running -= 1
            writer.stop_keep_alive()
            await self._events.aclose()

    async def _send_events(self, writer: "_Writer") -> None:
        try:
            async for data in self._events:
                await writer.send(data)
        except asyncio.CancelledError:
            if not self._serving.is_stopping:
                raise
            forget_cancellation(asyncio.current_task())
            await writer.send_error(NotReadyError("The server is shutting down."))
        except Exception as error:
            self._serving.log_failure(self._request_id, error)
            await writer.send_error(error)


class _Writer:
    """Sends body parts; says something now and then while there are none."""

    def __init__(self, send: Send, framing: Framing, keep_alive_s: float) -> None:
        self._send = send
        self._framing = framing
        self._keep_alive_s = keep_alive_s if framing.has_comments else 0.0
        self._last_sent = monotonic()
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        headers = [
            (b"content-type", self._framing.media_type),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        if self._keep_alive_s > 0:
            self._keeper = asyncio.ensure_future(self._keep_alive())

    async def send(self, data: bytes) -> None:
        self._last_sent = monotonic()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def send_error(self, error: BaseException) -> None:
        await self.send(self._framing.piece(describe(error)[1]))

    async def finish(self) -> None:
        self.stop_keep_alive()
        done = self._framing.done
        await self._send({"type": "http.response.body", "body": done, "more_body": False})

    def stop_keep_alive(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()

    async def _keep_alive(self) -> None:
        while True:
            idle = monotonic() - self._last_sent
            await asyncio.sleep(max(0.01, self._keep_alive_s - idle))
            if monotonic() - self._last_sent >= self._keep_alive_s:
                await self.send(_KEEP_ALIVE)
