"""POST /tokenize and /detokenize: what the model would see, without running it."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from vllm.entrypoints.openai.body import read_request
from vllm.entrypoints.openai.chat import chat_options
from vllm.entrypoints.openai.errors import json_response
from vllm.entrypoints.openai.protocol import (
    DetokenizeRequest,
    TokenizeRequest,
    refuse_unsupported,
)
from vllm.entrypoints.openai.responses import DetokenizeResponse, TokenizeResponse
from vllm.entrypoints.openai.serving import Serving
from vllm.exceptions import VLLMValidationError


class TokenServing:
    """The two endpoints."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def tokenize(self, http: Request) -> Response:
        """Token ids of a text, or of the prompt that messages become."""
        request = await read_request(http, TokenizeRequest)
        self._serving.models.resolve(request.model)
        refuse_unsupported(request)
        token_ids = await self._token_ids(request)
        strings = None
        if request.return_token_strs:
            strings = self._serving.tokenizer.convert_ids_to_tokens(token_ids)
        context = self._serving.context
        return json_response(TokenizeResponse(len(token_ids), context, token_ids, strings))

    async def _token_ids(self, request: TokenizeRequest) -> list[int]:
        serving = self._serving
        if (request.prompt is None) == (request.messages is None):
            raise VLLMValidationError("Give either prompt or messages.", param="prompt")
        if request.messages is not None:
            options = chat_options(serving, request)
            prompt = await serving.in_thread(serving.renderer.render, request.messages, options)
            return prompt.token_ids
        text, adds = request.prompt or "", request.add_special_tokens is not False
        return await serving.by_size(len(text), serving.tokenizer.encode, text, adds)

    async def detokenize(self, http: Request) -> Response:
        """The text of token ids, special tokens included."""
        request = await read_request(http, DetokenizeRequest)
        self._serving.models.resolve(request.model)
        tokenizer, tokens = self._serving.tokenizer, request.tokens
        _check(tokens, tokenizer.vocab_size)
        text = await self._serving.by_size(len(tokens), tokenizer.decode, tokens, False)
        return json_response(DetokenizeResponse(text))


def _check(tokens: Sequence[int], vocab_size: int) -> None:
    for token in (min(tokens, default=0), max(tokens, default=0)):
        if not 0 <= token < vocab_size:
            raise VLLMValidationError(
                f"tokens holds {token}; token ids are from 0 to {vocab_size - 1}.", param="tokens"
            )
