"""Between the router and an endpoint: whatever is raised becomes an answer in the API's shape."""

import asyncio
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from vllm.entrypoints.openai.disconnect import ClientDisconnectedError, forget_cancellation
from vllm.entrypoints.openai.errors import (
    NotReadyError,
    error_body,
    error_response,
    json_response,
)
from vllm.entrypoints.openai.exposure import ApiKeys
from vllm.entrypoints.openai.middleware import Endpoint, unauthorized
from vllm.entrypoints.openai.serving import Serving
from vllm.entrypoints.openai.sse import EventStream
from vllm.exceptions import RequestError, VLLMError
from vllm.logger import init_logger

logger = init_logger(__name__)

CLIENT_CLOSED = 499


def answering(endpoint: Endpoint, serving: Serving, is_counted: bool) -> Endpoint:
    """The endpoint, with errors answered and, for generation, counted in `/load`."""

    async def answer(request: Request) -> Any:
        try:
            return await endpoint(request)
        except ClientDisconnectedError:
            return Response(status_code=CLIENT_CLOSED)
        except asyncio.CancelledError:
            if not serving.is_stopping:
                raise
            forget_cancellation(asyncio.current_task())
            return error_response(NotReadyError("The server is shutting down."))
        except RequestError as error:
            logger.debug("%s refused: %s", request.url.path, error)
            return error_response(error)
        except VLLMError as error:
            return error_response(error)
        except Exception as error:
            logger.error("%s failed", request.url.path, exc_info=error)
            return error_response(error)

    async def counted(request: Request) -> Any:
        serving.num_running += 1
        response: Any = None
        try:
            response = await answer(request)
        finally:
            if not isinstance(response, EventStream):
                serving.num_running -= 1
        return response

    return counted if is_counted else answer


def exception_handlers(keys: ApiKeys, serving: Serving) -> dict[Any, Any]:
    """Answers for what has no endpoint: unknown paths and methods, and faults of middlewares."""

    async def on_http_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        if not keys.allow(request.headers.get("authorization")):
            return unauthorized()
        if error.status_code == 404:
            body = error_body(404, f"There is no {request.url.path[:200]} here.", kind="Not Found")
        elif error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            body = error_body(405, f"{request.method} is not allowed here; allowed: {allowed}.")
        else:
            body = error_body(error.status_code, str(error.detail))
        return json_response(body, error.status_code, dict(error.headers or {}))

    async def on_fault(request: Request, error: Exception) -> Response:
        logger.error("%s failed", request.url.path, exc_info=error)
        return error_response(error)

    return {HTTPException: on_http_error, Exception: on_fault}
