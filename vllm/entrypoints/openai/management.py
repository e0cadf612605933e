"""Endpoints about the server itself: alive, version, load, metrics, models, documentation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from vllm.entrypoints.openai.errors import json_response
from vllm.entrypoints.openai.http_metrics import HttpMetrics
from vllm.entrypoints.openai.serving import Serving
from vllm.exceptions import EngineDeadError
from vllm.version import __version__

if TYPE_CHECKING:
    from vllm.entrypoints.openai.api_server import Row

_TRUE = frozenset(["true", "1"])


class Management:
    """The endpoints."""

    def __init__(self, serving: Serving, http_metrics: HttpMetrics, rows: Sequence["Row"]) -> None:
        self._serving = serving
        self._http_metrics = http_metrics
        self._rows = rows

    async def health(self, http: Request) -> Response:
        """200 while requests can be served, 503 when the engine is lost."""
        try:
            await self._serving.engine.check_health()
        except EngineDeadError:
            return Response(status_code=503)
        return Response(status_code=200)

    async def version(self, http: Request) -> Response:
        """The version of this package."""
        return json_response({"version": __version__})

    async def load(self, http: Request) -> Response:
        """How many generation requests are in work."""
        return json_response({"server_load": self._serving.num_running})

    async def metrics(self, http: Request) -> Response:
        """Prometheus text."""
        metrics = self._serving.metrics
        text = b"" if metrics is None else await self._serving.in_thread(metrics.render)
        text += self._http_metrics.render()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self, http: Request) -> Response:
        """The served names."""
        return json_response(self._serving.models.cards())

    async def reset_prefix_cache(self, http: Request) -> Response:
        """Forget cached prompt blocks."""
        running = http.query_params.get("reset_running_requests", "").lower() in _TRUE
        return json_response({"success": await self._serving.engine.reset_prefix_cache(running)})

    async def openapi(self, http: Request) -> Response:
        """The schema of the API, made on demand."""
        from vllm.entrypoints.openai.docs import openapi_document

        return json_response(openapi_document(self._rows))

    async def docs(self, http: Request) -> Response:
        """The same for people; needs nothing from the network."""
        from vllm.entrypoints.openai.docs import html_page

        return Response(html_page(self._rows), media_type="text/html; charset=utf-8")
