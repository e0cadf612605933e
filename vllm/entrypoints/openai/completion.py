"""POST /v1/completions: prompts as text or token ids in, text out, whole or as a stream.

Choice i*n + j is answer j to prompt i. With `max_tokens` 0 nothing is generated: the prompt is
scored. Invariant: as for chat, a stream put together is the whole answer.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import NoReturn

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from vllm import envs
from vllm.entrypoints.openai.body import read_request
from vllm.entrypoints.openai.engine_stream import EngineStream, merge
from vllm.entrypoints.openai.errors import UnfinishedError, json_response
from vllm.entrypoints.openai.logprobs import (
    LogprobWriter,
    OutputOffsets,
    prompt_logprobs,
    prompt_offsets,
)
from vllm.entrypoints.openai.protocol import CompletionRequest
from vllm.entrypoints.openai.responses import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Usage,
)
from vllm.entrypoints.openai.sampling import completion_sampling_params, renamed, scores_only
from vllm.entrypoints.openai.serving import Serving, StreamUsage, now
from vllm.entrypoints.openai.sse import EventStream, event
from vllm.exceptions import VLLMValidationError
from vllm.inputs import PromptType, TextPrompt, TokensPrompt
from vllm.outputs import CompletionOutput, Logprob, RequestOutput


@dataclass(slots=True)
class _Call:
    """One request on its way; `texts` are the prompts as they are echoed."""

    request: CompletionRequest
    id: str
    model: str
    texts: list[str | None]
    num_choices: int
    logprobs: LogprobWriter | None
    usage: StreamUsage
    created: int = field(default_factory=now)


class CompletionServing:
    """The endpoint."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def create(self, http: Request) -> Response | EventStream:
        """Answer one request."""
        serving = self._serving
        request = await read_request(http, CompletionRequest)
        model = serving.models.resolve(request.model)
        params = completion_sampling_params(request, serving.defaults, serving.context)
        prompts = split_prompts(request.prompt)
        if len(prompts) * params.n > envs.VLLM_MAX_N_SEQUENCES:
            _fail(
                "n",
                f"{len(prompts)} prompts with n = {params.n} are too many sequences; "
                f"at most {envs.VLLM_MAX_N_SEQUENCES} are allowed.",
            )
        call = await self._call(request, serving.request_id("cmpl", request, http), model, prompts)
        serving.log.received(call.id, params, request.prompt)
        salt = serving.cache_salt(request, http)
        given = [_engine_prompt(prompt, salt) for prompt in prompts]
        try:
            streams = await serving.start(call.id, given, params, request, http)
        except VLLMValidationError as error:
            names = {"prompt_token_ids": "prompt", "extra_args": "vllm_xargs"}
            raise renamed(error, names) from None
        if request.stream:
            return EventStream(serving, call.id, self._events(call, streams))
        outputs = await serving.read_all(call.id, streams, http)
        size = 0
        if params.prompt_logprobs is not None:
            size = sum(len(output.prompt_token_ids) for output in outputs)
        return await serving.by_size(size, self._answer, call, outputs)

    async def _call(
        self, request: CompletionRequest, id: str, model: str, prompts: list[str | list[int]]
    ) -> _Call:
        serving, writer = self._serving, None
        if request.logprobs is not None:
            num_top = None if request.logprob_token_ids else request.logprobs
            writer = LogprobWriter(serving.tokenizer, num_top, serving.ids_as_text(request))
        texts: list[str | None] = [None] * len(prompts)
        if request.echo:
            texts = await serving.in_thread(self._prompt_texts, request, prompts)
        n = request.n or 1
        usage = serving.stream_usage(request)
        return _Call(request, id, model, texts, n, writer, usage)

    def _prompt_texts(
        self, request: CompletionRequest, prompts: list[str | list[int]]
    ) -> list[str | None]:
        skips = request.skip_special_tokens is not False
        decode, size = self._serving.tokenizer.decode, self._serving.tokenizer.vocab_size
        texts: list[str | None] = []
        for prompt in prompts:
            if isinstance(prompt, list):
                _check_token_ids(prompt, size)
                prompt = decode(prompt, skip_special_tokens=skips)
            texts.append(prompt)
        return texts

    # ---- whole answers -------------------------------------------------------------------------

    def _answer(self, call: _Call, outputs: list[RequestOutput]) -> Response:
        return json_response(self._full(call, outputs))

    def _full(self, call: _Call, outputs: list[RequestOutput]) -> Completion:
        choices = []
        for prompt_index, output in enumerate(outputs):
            for part in output.outputs:
                self._serving.log.generated(call.id, part)
                writer = _ChoiceWriter(self._serving, call, prompt_index, part.index)
                choices.append(writer.whole(output, part))
        is_scored = scores_only(call.request)
        num_tokens = 0 if is_scored else sum(len(p.token_ids) for o in outputs for p in o.outputs)
        return Completion(
            id=call.id,
            created=call.created,
            model=call.model,
            choices=choices,
            system_fingerprint=self._serving.fingerprint,
            usage=self._usage(outputs, num_tokens),
        )

    def _usage(self, outputs: list[RequestOutput], num_tokens: int) -> Usage:
        num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
        num_cached = sum(output.num_cached_tokens for output in outputs)
        return self._serving.usage(num_prompt, num_tokens, num_cached)

    # ---- streams -------------------------------------------------------------------------------

    async def _events(
        self, call: _Call, streams: list[EngineStream]
    ) -> AsyncGenerator[bytes, None]:
        writers: dict[tuple[int, int], _ChoiceWriter] = {}
        seen: dict[int, RequestOutput] = {}
        num_tokens = num_ended = 0
        log = self._serving.log.stream(call.id)
        try:
            async for prompt_index, output in merge(streams):
                seen[prompt_index] = output
                events = []
                for part in output.outputs:
                    key = prompt_index, part.index
                    if log is not None:
                        log.add(part)
                    if key not in writers:
                        writers[key] = _ChoiceWriter(self._serving, call, *key)
                    num_tokens += 0 if scores_only(call.request) else len(part.token_ids)
                    num_ended += part.finish_reason is not None
                    choice = writers[key].next(output, part)
                    if choice is not None:
                        chunk = _new_chunk(call, [choice])
                        if call.usage.is_continuous:
                            chunk.usage = self._usage(list(seen.values()), num_tokens)
                        events.append(event(chunk))
                if events:
                    yield b"".join(events)
            if num_ended != len(streams) * call.num_choices:
                raise UnfinishedError
            if call.usage.is_included:
                yield event(_new_chunk(call, [], self._usage(list(seen.values()), num_tokens)))
        finally:
            for stream in streams:
                await stream.close()


class _ChoiceWriter:
    """Writes one choice, in one piece or in several; keeps where its text is."""

    def __init__(self, serving: Serving, call: _Call, prompt_index: int, index: int) -> None:
        self._serving = serving
        self._call = call
        self._request = call.request
        self._index = prompt_index * call.num_choices + index
        self._prompt_text = call.texts[prompt_index]
        self._has_begun = False
        self._offsets: OutputOffsets | None = None

    def whole(self, output: RequestOutput, part: CompletionOutput) -> CompletionChoice:
        """The choice of a complete answer."""
        choice = self._piece(output, part)
        request, values = self._request, output.prompt_logprobs
        wants = request.prompt_logprobs is not None and values is not None
        choice.prompt_logprobs = prompt_logprobs(values or []) if wants else None
        if not request.return_token_ids:
            choice.token_ids = choice.prompt_token_ids = None
        return choice

    def next(self, output: RequestOutput, part: CompletionOutput) -> CompletionChoice | None:
        """What a chunk adds, or None if that is nothing."""
        is_first = not self._has_begun
        choice = self._piece(output, part)
        shows = choice.text or choice.finish_reason is not None or (is_first and self._prompt_text)
        wants_tokens = self._request.logprobs is not None or self._request.return_token_ids
        return choice if shows or (wants_tokens and part.token_ids) else None

    def _piece(self, output: RequestOutput, part: CompletionOutput) -> CompletionChoice:
        if scores_only(self._request):
            part = CompletionOutput(part.index, "", [], None, [], "length")
        text = part.text
        echoes = not self._has_begun and self._prompt_text is not None
        if echoes:
            text = (self._prompt_text or "") + text
        prompt_token_ids: list[int] | UnsetType = UNSET
        token_ids: list[int] | UnsetType = UNSET
        if self._request.return_token_ids:
            token_ids = part.token_ids
            if not self._has_begun:
                prompt_token_ids = output.prompt_token_ids
        logprobs = self._logprobs(output, part, echoes)
        self._has_begun = True
        return CompletionChoice(
            index=self._index,
            text=text,
            logprobs=logprobs,
            finish_reason=part.finish_reason,
            stop_reason=part.stop_reason,
            token_ids=token_ids,
            prompt_token_ids=prompt_token_ids,
        )

    def _logprobs(
        self, output: RequestOutput, part: CompletionOutput, echoes: bool
    ) -> CompletionLogprobs | None:
        writer = self._call.logprobs
        if writer is None or part.logprobs is None:
            return None
        tokenizer = self._serving.tokenizer
        if self._offsets is None:
            skips = self._request.skip_special_tokens is not False
            start = len(self._prompt_text or "")
            self._offsets = OutputOffsets(tokenizer, start, skips)
        token_ids, entries = list(part.token_ids), list[dict[int, Logprob] | None](part.logprobs)
        offsets = self._offsets.extend(token_ids)
        if echoes:
            prompt_ids = output.prompt_token_ids
            token_ids = prompt_ids + token_ids
            entries = [*(output.prompt_logprobs or [None] * len(prompt_ids)), *entries]
            offsets = prompt_offsets(tokenizer, prompt_ids, self._prompt_text or "") + offsets
        return writer.completion(token_ids, entries, offsets)


def split_prompts(prompt: str | list[str | int | list[int]] | None) -> list[str | list[int]]:
    """The prompts of a request. Raises VLLMValidationError."""
    if prompt is None:
        _fail("prompt", "prompt is missing; it must be a string or a list.")
    if isinstance(prompt, str):
        return [prompt]
    if len(prompt) == 0:
        _fail("prompt", "prompt is an empty list; it needs at least one prompt.")
    token_ids = [item for item in prompt if isinstance(item, int)]
    if len(token_ids) == len(prompt):
        return [token_ids]
    if len(prompt) > envs.VLLM_MAX_COMPLETION_PROMPTS:
        _fail(
            "prompt",
            f"prompt has {len(prompt)} prompts; at most "
            f"{envs.VLLM_MAX_COMPLETION_PROMPTS} are allowed.",
        )
    prompts = [item for item in prompt if not isinstance(item, int)]
    if len(prompts) != len(prompt):
        _fail("prompt", "prompt mixes token ids with other prompts; use one list per prompt.")
    return prompts


def _engine_prompt(prompt: str | list[int], cache_salt: str | None) -> PromptType:
    given: TextPrompt | TokensPrompt
    if isinstance(prompt, str):
        given = TextPrompt(prompt=prompt)
    else:
        given = TokensPrompt(prompt_token_ids=prompt)
    if cache_salt is not None:
        given["cache_salt"] = cache_salt
    return given


def _new_chunk(
    call: _Call, choices: list[CompletionChoice], usage: Usage | None = None
) -> Completion:
    return Completion(
        id=call.id,
        created=call.created,
        model=call.model,
        choices=choices,
        usage=call.usage.before_end if usage is None else usage,
    )


def _check_token_ids(token_ids: list[int], vocab_size: int) -> None:
    for token in (min(token_ids, default=0), max(token_ids, default=0)):
        if not 0 <= token < vocab_size:
            _fail("prompt", f"prompt holds token id {token}; ids are from 0 to {vocab_size - 1}.")


def _fail(param: str, message: str) -> NoReturn:
    raise VLLMValidationError(message, param=param)
