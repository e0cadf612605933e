"""Request body -> checked struct. The one place where bytes from outside become typed values.

Invariant: nothing is allocated for a body that is too large or too deep, and whatever is wrong ends
in a 400-family error naming the field.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NoReturn, TypeVar

import msgspec
from starlette.requests import Request
from starlette.types import Message

from vllm.entrypoints.openai.disconnect import ClientDisconnectedError, forget_cancellation
from vllm.entrypoints.openai.errors import PayloadTooLargeError, RequestTimeoutError, SchemaError
from vllm.logger import init_logger

logger = init_logger(__name__)

MAX_BODY_BYTES = 8 * 1024 * 1024
LARGE_BODY_BYTES = 256 * 1024
"""Larger bodies are parsed by a thread, so that the event loop goes on."""

MAX_DEPTH = 64
BODY_TIMEOUT_S = 30.0
MAX_ERRORS = 10
MAX_ERROR_CHARS = 1000
MAX_ECHO_CHARS = 200

T = TypeVar("T", bound=msgspec.Struct)

_PATH = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_OFFSET = re.compile(r"\(byte (\d+)\)")
_NESTING = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)
_KEY_BEFORE = re.compile(rb'"([^"\\]{1,64})"\s*:\s*[-\[\s\d.,]*$')
_LITERAL = re.compile(rb"-?(?:NaN|Infinity)")


async def read_request(request: Request, kind: type[T]) -> T:
    """The request's body as a `kind`. Raises RequestError."""
    body = await _read_json(request)
    if len(body) < LARGE_BODY_BYTES:
        return decode(body, kind)
    return await asyncio.to_thread(decode, body, kind)


async def read_fields(request: Request) -> dict[str, Any]:
    """The request's body as an object of any fields. Raises RequestError."""
    body = await _read_json(request)
    _check_depth(body)
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise _malformed(body, str(error))


async def _read_json(request: Request) -> bytes:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise SchemaError("Unsupported Media Type: Only 'application/json' is allowed")
    return await read_body(request)


async def read_body(request: Request) -> bytes:
    """All bytes of the body; the limits hold while it arrives."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > MAX_BODY_BYTES:
        _too_large()
    with _time_limit(BODY_TIMEOUT_S):
        message = await _next_part(request)
        if not message.get("more_body"):
            body: bytes = message.get("body", b"")
            _check_size(len(body))
            return body
        chunks = [message.get("body", b"")]
        size = len(chunks[0])
        while message.get("more_body"):
            _check_size(size)
            message = await _next_part(request)
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
    _check_size(size)
    return b"".join(chunks)


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Like asyncio.timeout, which Python 3.10 lacks; wait_for would cost a task per request."""
    task = asyncio.current_task()
    is_late = False

    def cancel() -> None:
        nonlocal is_late
        is_late = True
        if task is not None:
            task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, cancel)
    try:
        yield
    except asyncio.CancelledError:
        if not is_late:
            raise
        forget_cancellation(task)
        raise RequestTimeoutError(f"The body did not arrive within {seconds:g} seconds.")
    finally:
        timer.cancel()


async def _next_part(request: Request) -> Message:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnectedError
    return message


def _check_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        _too_large()


def _too_large() -> NoReturn:
    raise PayloadTooLargeError(f"The body is larger than {MAX_BODY_BYTES} bytes.")


def decode(body: bytes, kind: type[T]) -> T:
    """Parse and check. Raises SchemaError."""
    _check_depth(body)
    try:
        value: T = decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        raise _schema_error(body, kind, error)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _malformed(body, str(error))
    if logger.isEnabledFor(10):
        _log_unknown_fields(body, kind)
    return value


@lru_cache
def decoder(kind: type[T]) -> "msgspec.json.Decoder[T]":
    """A decoder is compiled once per type."""
    return msgspec.json.Decoder(kind)


def _check_depth(body: bytes) -> None:
    if exceeds_depth(body):
        raise SchemaError(f"The JSON is nested more than {MAX_DEPTH} deep.")


def exceeds_depth(body: bytes) -> bool:
    """True if arrays and objects are nested more than MAX_DEPTH deep."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for match in _NESTING.finditer(body):
        first = body[match.start()]
        if first in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif first in b"]}":
            depth -= 1
    return False


def _malformed(body: bytes, message: str) -> SchemaError:
    """Not JSON. A NaN or Infinity is common enough to name the field it was meant for."""
    found = _OFFSET.search(message)
    if found is not None:
        offset = int(found[1])
        literal = _LITERAL.match(body, offset) or _LITERAL.match(body, max(0, offset - 1))
        if literal is not None:
            key = _KEY_BEFORE.search(body[max(0, offset - 200) : offset])
            param = key[1].decode("utf-8", "replace") if key is not None else None
            return SchemaError(
                f"The body is not JSON: {literal[0].decode()} is no number in JSON.", param=param
            )
    return SchemaError(f"The body is not JSON: {message}.")


def _schema_error(body: bytes, kind: type[T], first: Exception) -> SchemaError:
    """All fields that are wrong, not only the one that stopped the decoder."""
    try:
        problems = _problems_by_field(body, kind)
    except msgspec.DecodeError as error:
        return _malformed(body, str(error))
    problems = problems or [_problem(str(first), "", None)]
    lines = [line[:MAX_ERROR_CHARS] for _, line in problems[:MAX_ERRORS]]
    head = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''}:"
    return SchemaError("\n".join([head, *lines]), param=problems[0][0])


def _problems_by_field(body: bytes, kind: type[T]) -> list[tuple[str | None, str]]:
    try:
        raw_fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return []
    problems = []
    for field in msgspec.structs.fields(kind):
        raw = raw_fields.get(field.encode_name)
        if raw is None:
            if field.required:
                problems.append(_problem(f"missing required field `{field.encode_name}`", "", None))
            continue
        try:
            msgspec.json.decode(raw, type=field.type)
        except msgspec.ValidationError as error:
            problems.append(_problem(str(error), field.encode_name, bytes(raw)))
    return problems


def _problem(message: str, field: str, received: bytes | None) -> tuple[str | None, str]:
    """(path of the field, one line about it)."""
    found = _PATH.search(message)
    path = found[1].removesuffix("[...]") if found is not None else ""
    if field:
        path = f"{field}{'' if not path or path.startswith('[') else '.'}{path}"
    text = _PATH.sub("", message)
    missing = _MISSING.search(text)
    if missing is not None:
        path = f"{path}.{missing[1]}" if path else missing[1]
        text = "this field is required"
    echo = ""
    if received is not None:
        shown = received[:MAX_ECHO_CHARS].decode("utf-8", "replace")
        echo = f" (received {shown}{'...' if len(received) > MAX_ECHO_CHARS else ''})"
    return path or None, f"{path or 'body'}: {text}{echo}"


def _log_unknown_fields(body: bytes, kind: type[T]) -> None:
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    unknown = sorted(name[:64] for name in given if name not in known)
    if unknown:
        logger.debug("Fields of the request that are not known: %s", ", ".join(unknown[:20]))
