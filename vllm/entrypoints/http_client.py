"""A small HTTP/1.1 client for event streams, used by `vllm chat` and `vllm bench serve`.

It exists because a load generator must be cheap: it shares the machine with what it measures.
Connections are kept and used again. Invariant: a connection goes back to the pool only after its
answer was read to the end.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from vllm.exceptions import ConfigError

_MAX_LINE = 1 << 20
_READ_SIZE = 1 << 16
_DATA = b"data: "


class HttpError(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_used: bool = False


@dataclass(slots=True)
class _Head:
    """Status line and headers of an answer; header names are in lower case."""

    status: int
    headers: dict[str, str]

    @property
    def is_chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def keeps_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


class HttpClient:
    """Talks to one server; `base_url` may have a path, which is put before every path."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        verify: bool = True,
    ) -> None:
        url = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(f"{base_url!r} is not an http or https URL.")
        self._host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._prefix = url.path.rstrip("/")
        self._tls = _tls(verify) if url.scheme == "https" else None
        fields = {"Host": url.netloc.rpartition("@")[2], **(headers or {})}
        if api_key:
            fields["Authorization"] = f"Bearer {api_key}"
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._idle: list[_Connection] = []

    async def get(self, path: str) -> Any:
        """The JSON at a path. Raises HttpError, OSError."""
        connection, head = await self._exchange("GET", path, None)
        return _parsed(head, await self._read_all(connection, head))

    async def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> Any:
        """The JSON answer to a JSON body. Raises HttpError, OSError."""
        connection, head = await self._exchange("POST", path, body, headers)
        return _parsed(head, await self._read_all(connection, head))

    async def stream(
        self, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        """The data of the events that answer a JSON body, up to [DONE]. Raises HttpError, OSError.

        Events that arrive together are given one after another.
        """
        connection, head = await self._exchange("POST", path, body, headers)
        if head.status != 200:
            _parsed(head, await self._read_all(connection, head))
        pending = b""
        is_complete = False
        try:
            async for part in self._parts(connection, head):
                *events, pending = (pending + part).split(b"\n\n")
                for event in events:
                    if event.startswith(_DATA) and event != b"data: [DONE]":
                        yield event[len(_DATA) :]
            is_complete = True
        finally:
            self._release(connection, head, is_complete)

    async def close(self) -> None:
        """Close idle connections."""
        for connection in self._idle:
            connection.writer.close()
        self._idle.clear()

    # ---- the wire ------------------------------------------------------------------------------

    async def _exchange(
        self, method: str, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> tuple[_Connection, _Head]:
        """Send a request and read the head of the answer."""
        data = b"" if body is None else json.dumps(body).encode()
        fields = self._fields + "".join(f"{k}: {v}\r\n" for k, v in (headers or {}).items())
        if body is not None:
            fields += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        request = f"{method} {self._prefix}{path} HTTP/1.1\r\n{fields}\r\n".encode() + data
        while True:
            connection = self._idle.pop() if self._idle else await self._connect()
            try:
                connection.writer.write(request)
                return connection, await _read_head(connection.reader)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                connection.writer.close()
                # A server may close a connection that was idle; only then it is worth another try.
                if not connection.is_used:
                    raise ConnectionError(f"The server closed the connection: {error}") from error
            except BaseException:
                connection.writer.close()
                raise

    async def _connect(self) -> _Connection:
        reader, writer = await asyncio.open_connection(
            self._host, self._port, ssl=self._tls, limit=_MAX_LINE
        )
        return _Connection(reader, writer)

    async def _read_all(self, connection: _Connection, head: _Head) -> bytes:
        is_complete = False
        try:
            body = b"".join([part async for part in self._parts(connection, head)])
            is_complete = True
            return body
        finally:
            self._release(connection, head, is_complete)

    async def _parts(self, connection: _Connection, head: _Head) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        reader = connection.reader
        if head.is_chunked:
            while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
                yield (await reader.readexactly(size + 2))[:-2]
            await reader.readuntil(b"\r\n")
            return
        remaining = int(head.headers.get("content-length", "0"))
        while remaining:
            part = await reader.read(min(remaining, _READ_SIZE))
            if not part:
                raise ConnectionError("The server closed the connection within its answer.")
            remaining -= len(part)
            yield part

    def _release(self, connection: _Connection, head: _Head, is_complete: bool) -> None:
        if is_complete and head.keeps_alive:
            connection.is_used = True
            self._idle.append(connection)
        else:
            connection.writer.close()


async def _read_head(reader: asyncio.StreamReader) -> _Head:
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status_line, *lines = text.rstrip("\r\n").split("\r\n")
    fields = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    return _Head(int(status_line.split(" ")[1]), headers)


def _parsed(head: _Head, body: bytes) -> Any:
    if head.status != 200:
        raise HttpError(head.status, _error_text(head.status, body))
    return json.loads(body) if body else None


def _error_text(status: int, body: bytes) -> str:
    """What an error body says."""
    try:
        error = json.loads(body)["error"]
        text = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        text = body[:200].decode("utf-8", "replace")
    return f"{status}: {text}"


def _tls(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
