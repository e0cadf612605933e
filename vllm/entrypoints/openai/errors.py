"""What goes wrong -> the error object that clients see.

Invariant: an error body says what was received, what is allowed and which field it is about; it
never holds a traceback, a file path or an address, whatever was raised.
"""

import re
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from vllm.exceptions import (
    EngineDeadError,
    EngineGenerateError,
    QueueOverflowError,
    RequestError,
    VLLMError,
)

MAX_MESSAGE = 10_000
_PUBLIC_CODES = frozenset(["context_length_exceeded"])
"""Codes that stand in the place of the status, because clients look for them."""

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "Method Not Allowed",
    408: "RequestTimeoutError",
    413: "RequestEntityTooLargeError",
    422: "UnprocessableEntityError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
_HIDDEN = re.compile(
    r'File "[^"]*", line \d+[^\n]*'
    r"|Traceback \(most recent call last\):?"
    r"|\bat 0x[0-9a-fA-F]+"
    r"|\b0x[0-9a-fA-F]{6,}"
    r"|(?<![\w/:.])/(?:[\w.+-]+/)+[\w.+-]+\.\w{1,6}\b"
)


class ErrorInfo(msgspec.Struct):
    """`code` is the HTTP status, or a stable word for the cases that programs handle."""

    message: str
    type: str
    param: str | None
    code: int | str


class ErrorBody(msgspec.Struct):
    """The whole body of an error answer, or of an error event of a stream."""

    error: ErrorInfo


class SchemaError(RequestError):
    """The body does not have the shape of the request."""


class PayloadTooLargeError(RequestError):
    """The body is larger than a request may be."""

    status = 413


class RequestTimeoutError(RequestError):
    """The body did not arrive in time."""

    status = 408


class NotReadyError(RequestError):
    """The server stops, or the engine is gone; another one may answer."""

    status = 503


class UnfinishedError(VLLMError):
    """The engine stopped telling about a request that had not ended."""

    def __init__(self) -> None:
        super().__init__("The engine ended the request without an answer.")


def describe(error: BaseException) -> tuple[int, ErrorBody]:
    """HTTP status and body for whatever was raised."""
    if isinstance(error, RequestError):
        kind = "Bad Request" if isinstance(error, SchemaError) else None
        return error.status, error_body(
            error.status, error.message, kind=kind, param=error.param, code=error.code
        )
    if isinstance(error, EngineDeadError):
        return 500, error_body(500, f"The engine stopped: {error}")
    if isinstance(error, EngineGenerateError):
        return 500, error_body(500, f"Generation failed: {error}")
    if isinstance(error, VLLMError):
        return 500, error_body(500, str(error))
    return 500, error_body(500, "The server failed to handle this request; its log says why.")


def error_body(
    status: int,
    message: str,
    *,
    kind: str | None = None,
    param: str | None = None,
    code: str | None = None,
) -> ErrorBody:
    """An error object whose text is safe to show."""
    text = _HIDDEN.sub("...", message)[:MAX_MESSAGE]
    kind = kind or _TYPES.get(status) or HTTPStatus(status).phrase
    shown_code = code if code is not None and code in _PUBLIC_CODES else status
    return ErrorBody(ErrorInfo(text, kind, param, shown_code))


def error_response(error: BaseException) -> Response:
    """The answer to a request that failed before anything was sent."""
    status, body = describe(error)
    headers = {"Retry-After": "1"} if isinstance(error, QueueOverflowError) else None
    return json_response(body, status, headers)


def json_response(
    value: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """A struct as JSON."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")
