"""POST /v1/chat/completions: messages in, one message per choice out, whole or as a stream.

Invariant: the chunks of a stream, put together, are the object that the same request gets without
`stream`.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from vllm.entrypoints.chat import ChatOptions, ChatPrompt
from vllm.entrypoints.messages import text_of
from vllm.entrypoints.openai.body import read_request
from vllm.entrypoints.openai.engine_stream import EngineStream
from vllm.entrypoints.openai.errors import UnfinishedError, json_response
from vllm.entrypoints.openai.logprobs import LogprobWriter, prompt_logprobs
from vllm.entrypoints.openai.protocol import ChatCompletionRequest, TokenizeRequest
from vllm.entrypoints.openai.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    Usage,
)
from vllm.entrypoints.openai.sampling import chat_sampling_params, renamed
from vllm.entrypoints.openai.serving import Serving, StreamUsage, now
from vllm.entrypoints.openai.sse import EventStream, event
from vllm.exceptions import VLLMValidationError
from vllm.inputs import TokensPrompt
from vllm.outputs import CompletionOutput, RequestOutput


@dataclass(slots=True)
class _Call:
    """One request on its way: what every chunk and the answer need."""

    request: ChatCompletionRequest
    id: str
    model: str
    prompt: ChatPrompt
    logprobs: LogprobWriter | None
    echo: str
    usage: StreamUsage
    created: int = field(default_factory=now)

    @property
    def num_choices(self) -> int:
        return 1 if self.request.n is None else self.request.n


class ChatServing:
    """The endpoint."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._role = serving.options.response_role

    async def create(self, http: Request) -> Response | EventStream:
        """Answer one request."""
        serving = self._serving
        request = await read_request(http, ChatCompletionRequest)
        model = serving.models.resolve(request.model)
        params = chat_sampling_params(request, serving.defaults, serving.context)
        options = chat_options(serving, request)
        prompt = await serving.in_thread(serving.renderer.render, request.messages, options)
        call = self._call(request, serving.request_id("chatcmpl", request, http), model, prompt)
        serving.log.received(call.id, params, prompt.text)
        tokens = TokensPrompt(prompt_token_ids=prompt.token_ids, prompt=prompt.text)
        salt = serving.cache_salt(request, http)
        if salt is not None:
            tokens["cache_salt"] = salt
        try:
            streams = await serving.start(call.id, [tokens], params, request, http)
        except VLLMValidationError as error:
            raise _in_chat_terms(error, request) from None
        if request.stream:
            return EventStream(serving, call.id, self._events(call, streams[0]))
        [output] = await serving.read_all(call.id, streams, http)
        size = len(prompt.token_ids) if request.prompt_logprobs is not None else 0
        return await serving.by_size(size, self._answer, call, output)

    def _call(
        self, request: ChatCompletionRequest, id: str, model: str, prompt: ChatPrompt
    ) -> _Call:
        serving, writer, echo = self._serving, None, ""
        if request.logprobs:
            num_top = None if request.logprob_token_ids else request.top_logprobs or 0
            ids_as_text = serving.ids_as_text(request)
            writer = LogprobWriter(serving.tokenizer, num_top, ids_as_text)
        if request.echo and request.messages[-1].get("role") == self._role:
            echo = text_of(request.messages[-1])
        usage = serving.stream_usage(request)
        return _Call(request, id, model, prompt, writer, echo, usage)

    def _usage(self, output: RequestOutput, num_tokens: int) -> Usage:
        num_prompt = len(output.prompt_token_ids)
        return self._serving.usage(num_prompt, num_tokens, output.num_cached_tokens)

    # ---- whole answers -------------------------------------------------------------------------

    def _answer(self, call: _Call, output: RequestOutput) -> Response:
        return json_response(self._full(call, output))

    def _full(self, call: _Call, output: RequestOutput) -> ChatCompletion:
        request = call.request
        asked, values = request.prompt_logprobs, output.prompt_logprobs
        num_tokens = sum(len(choice.token_ids) for choice in output.outputs)
        return ChatCompletion(
            id=call.id,
            created=call.created,
            model=call.model,
            choices=[self._choice(call, choice) for choice in output.outputs],
            system_fingerprint=self._serving.fingerprint,
            usage=self._usage(output, num_tokens),
            prompt_logprobs=None if asked is None or values is None else prompt_logprobs(values),
            prompt_token_ids=output.prompt_token_ids if request.return_token_ids else None,
            prompt_text=call.prompt.text if request.return_prompt_text else None,
        )

    def _choice(self, call: _Call, output: CompletionOutput) -> ChatChoice:
        self._serving.log.generated(call.id, output)
        return ChatChoice(
            index=output.index,
            message=ChatMessage(self._role, call.echo + output.text),
            logprobs=_logprobs(call, output),
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
            token_ids=output.token_ids if call.request.return_token_ids else None,
        )

    # ---- streams -------------------------------------------------------------------------------

    async def _events(self, call: _Call, stream: EngineStream) -> AsyncGenerator[bytes, None]:
        """The data of one event stream; chunks that are ready together go together."""
        request, usage = call.request, call.usage
        is_open = [True] * call.num_choices
        num_tokens, has_begun = 0, False
        log = self._serving.log.stream(call.id)
        output: RequestOutput | None = None
        try:
            if not request.return_token_ids and not usage.is_continuous:
                has_begun = True
                yield self._first_events(call, None)
            async for output in stream:
                events = [] if has_begun else [self._first_events(call, output)]
                has_begun = True
                for choice in output.outputs:
                    num_tokens += len(choice.token_ids)
                    if log is not None:
                        log.add(choice)
                    is_open[choice.index] &= choice.finish_reason is None
                    if _says_something(choice, request):
                        chunk = self._chunk(call, choice)
                        if usage.is_continuous:
                            chunk.usage = self._usage(output, num_tokens)
                        events.append(event(chunk))
                if events:
                    yield b"".join(events)
            if output is None or any(is_open):
                raise UnfinishedError
            if usage.is_included:
                yield event(_new_chunk(call, [], self._usage(output, num_tokens)))
        finally:
            await stream.close()

    def _first_events(self, call: _Call, output: RequestOutput | None) -> bytes:
        """One chunk per choice that says who speaks."""
        events = []
        for index in range(call.num_choices):
            choice = ChatChunkChoice(index, ChatDelta(self._role, call.echo))
            chunk = _new_chunk(call, [choice])
            if output is not None and call.request.return_token_ids and index == 0:
                chunk.prompt_token_ids = output.prompt_token_ids
            if output is not None and call.usage.is_continuous:
                chunk.usage = self._usage(output, 0)
            events.append(event(chunk))
        return b"".join(events)

    def _chunk(self, call: _Call, output: CompletionOutput) -> ChatChunk:
        choice = ChatChunkChoice(output.index, ChatDelta(content=output.text))
        if call.logprobs is not None:
            choice.logprobs = _logprobs(call, output)
        if call.request.return_token_ids:
            choice.token_ids = output.token_ids
        chunk = _new_chunk(call, [choice])
        if output.finish_reason is not None:
            choice.finish_reason = output.finish_reason
            choice.stop_reason = output.stop_reason
            chunk.system_fingerprint = self._serving.fingerprint
        return chunk


def chat_options(serving: Serving, request: ChatCompletionRequest | TokenizeRequest) -> ChatOptions:
    """How the prompt of a request is rendered. Raises VLLMValidationError."""
    options = serving.options
    if request.chat_template is not None and not options.trust_request_chat_template:
        raise VLLMValidationError(
            "chat_template is not allowed in requests; the operator can allow it with "
            "--trust-request-chat-template.",
            param="chat_template",
        )
    kwargs = dict(options.default_chat_template_kwargs or {})
    kwargs.update(request.chat_template_kwargs or {})
    documents, truncates = None, False
    if isinstance(request, ChatCompletionRequest):
        documents, truncates = request.documents, request.truncate_prompt_tokens is not None
        if request.reasoning_effort is not None:
            kwargs.setdefault("reasoning_effort", request.reasoning_effort)
    adds = request.add_generation_prompt
    return ChatOptions(
        add_generation_prompt=True if adds is None else adds,
        continue_final_message=bool(request.continue_final_message),
        add_special_tokens=bool(request.add_special_tokens),
        chat_template=request.chat_template,
        documents=documents,
        kwargs=kwargs,
        max_chars=None if truncates else serving.max_prompt_chars,
    )


def _new_chunk(
    call: _Call, choices: list[ChatChunkChoice], usage: Usage | None = None
) -> ChatChunk:
    return ChatChunk(
        call.id,
        "chat.completion.chunk",
        call.created,
        call.model,
        choices,
        call.usage.before_end if usage is None else usage,
    )


def _says_something(output: CompletionOutput, request: ChatCompletionRequest) -> bool:
    """False for a step whose text is held back, when nothing else of it is wanted."""
    if output.text or output.finish_reason is not None:
        return True
    return bool(output.token_ids) and bool(request.logprobs or request.return_token_ids)


def _logprobs(call: _Call, output: CompletionOutput) -> ChatLogprobs | None:
    if call.logprobs is None or output.logprobs is None:
        return None
    return call.logprobs.chat(output.token_ids, output.logprobs)


def _in_chat_terms(
    error: VLLMValidationError, request: ChatCompletionRequest
) -> VLLMValidationError:
    """What the engine refused, under the names of this endpoint's fields."""
    names = {
        "prompt": "messages",
        "prompt_token_ids": "messages",
        "logprobs": "top_logprobs",
        "extra_args": "vllm_xargs",
    }
    if request.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    return renamed(error, names)
