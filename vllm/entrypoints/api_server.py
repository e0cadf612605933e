"""The old demo server: POST /generate and GET /health. Use the OpenAI API for anything new.

It shares keys, host checks and limits with the OpenAI server. Start it with
`python -m vllm.entrypoints.api_server`.
"""

import sys
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import msgspec

from vllm.entrypoints.openai.api_server import Row, build_app, serve
from vllm.exceptions import VLLMValidationError
from vllm.inputs import TextPrompt
from vllm.logger import init_logger
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from vllm.entrypoints.openai.engine_stream import EngineStream
    from vllm.entrypoints.openai.serving import Serving
    from vllm.entrypoints.openai.sse import EventStream

logger = init_logger(__name__)

ROUTES = (
    Row(("POST",), "/generate", "legacy.generate", "Continue a text", is_counted=True),
    Row(("GET",), "/health", "management.health", "200 while it can serve", is_open=True),
)
_OWN_FIELDS = frozenset(["output_kind", "bad_words_token_ids"])
_FIELDS = frozenset(SamplingParams.__struct_fields__) - _OWN_FIELDS


class LegacyServing:
    """The endpoint."""

    def __init__(self, serving: "Serving") -> None:
        self._serving = serving

    async def generate(self, http: "Request") -> "Response | EventStream":
        """`{"text": [prompt + output, ...]}`, whole, or as JSON lines that grow."""
        from vllm.entrypoints.openai.body import read_fields
        from vllm.entrypoints.openai.errors import json_response
        from vllm.entrypoints.openai.protocol import GenerationRequest
        from vllm.entrypoints.openai.sse import JSON_LINES, EventStream

        fields = await read_fields(http)
        prompt, streams = fields.pop("prompt", None), fields.pop("stream", False) or False
        if not isinstance(prompt, str):
            raise VLLMValidationError("prompt must be a string.", param="prompt")
        if not isinstance(streams, bool):
            raise VLLMValidationError("stream must be true or false.", param="stream")
        kind = RequestOutputKind.CUMULATIVE if streams else RequestOutputKind.FINAL_ONLY
        params = sampling_params(fields, kind)
        request = GenerationRequest()
        request_id = self._serving.request_id("generate", request, http)
        self._serving.log.received(request_id, params, prompt)
        given = TextPrompt(prompt=prompt)
        started = await self._serving.start(request_id, [given], params, request, http)
        if streams:
            lines = self._lines(prompt, started[0])
            return EventStream(self._serving, request_id, lines, JSON_LINES)
        [output] = await self._serving.read_all(request_id, started, http)
        return json_response(_body(prompt, output))

    async def _lines(self, prompt: str, stream: "EngineStream") -> AsyncGenerator[bytes, None]:
        from vllm.entrypoints.openai.sse import json_line

        try:
            async for output in stream:
                yield json_line(_body(prompt, output))
        finally:
            await stream.close()


def sampling_params(fields: dict[str, Any], kind: RequestOutputKind) -> SamplingParams:
    """SamplingParams from the fields of a body. Raises VLLMValidationError."""
    values = {name: value for name, value in fields.items() if value is not None}
    unknown = sorted(values.keys() - _FIELDS)
    if unknown:
        raise VLLMValidationError(f"{unknown[0]} is not a sampling parameter.", param=unknown[0])
    try:
        return msgspec.convert({**values, "output_kind": int(kind)}, SamplingParams)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if isinstance(cause, VLLMValidationError):
            raise cause from None
        name = str(error).rpartition("`$.")[2].rstrip("`") if "`$." in str(error) else None
        raise VLLMValidationError(str(error), param=name) from None


def _body(prompt: str, output: RequestOutput) -> dict[str, list[str]]:
    return {"text": [prompt + part.text for part in output.outputs]}


def build_legacy_app(serving: "Serving") -> "Starlette":
    """The ASGI application of the demo server."""
    return build_app(serving, ROUTES, {"legacy": LegacyServing(serving)})


def main(argv: list[str] | None = None) -> None:
    """Serve; the flags are those of `vllm serve`, with the older name --log-level."""
    from vllm.entrypoints.cli.serve import parse
    from vllm.exceptions import ConfigError

    words = sys.argv[1:] if argv is None else argv
    renamed = [word.replace("--log-level", "--uvicorn-log-level", 1) for word in words]
    try:
        line = parse("serve", renamed)
        logger.warning("POST /generate is deprecated; `vllm serve` has the OpenAI API")
        serve(line.engine_args, line.server, build_legacy_app)
    except ConfigError as error:
        sys.exit(f"vllm.entrypoints.api_server: {error}")


if __name__ == "__main__":
    main()
