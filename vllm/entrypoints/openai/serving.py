"""What the generation endpoints share: the engine, names of requests, and the outputs of each.

Invariant: a request that was started in the engine is either read to its end or aborted.
"""

import asyncio
import contextlib
import hashlib
import re
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request

from vllm import envs
from vllm.entrypoints.chat import ChatRenderer, load_chat_template
from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.entrypoints.openai.disconnect import ClientDisconnectedError, DisconnectWatch
from vllm.entrypoints.openai.engine_stream import Engine, EngineStream
from vllm.entrypoints.openai.errors import NotReadyError
from vllm.entrypoints.openai.middleware import TENANT
from vllm.entrypoints.openai.models import ServedModels
from vllm.entrypoints.openai.protocol import GenerationRequest, StreamOptions
from vllm.entrypoints.openai.request_log import RequestLog
from vllm.entrypoints.openai.responses import PromptTokensDetails, Usage
from vllm.exceptions import (
    EngineGenerateError,
    QueueOverflowError,
    VLLMError,
    VLLMValidationError,
)
from vllm.inputs import PromptType
from vllm.logger import init_logger
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.version import __version__

if TYPE_CHECKING:
    from vllm.transformers_utils.tokenizer import Tokenizer

logger = init_logger(__name__)

T = TypeVar("T")

LONG_TEXT_CHARS = 4096
"""Longer texts are handled by a thread: the event loop never stands still for long."""

MAX_CACHE_SALT = 1024
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Metrics(Protocol):
    """What the server needs of the Prometheus logger."""

    def record_rejection(self, reason: str) -> None:
        """Count a request that was refused because too many wait."""

    def render(self) -> bytes:
        """The body of /metrics."""


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """Usage in a stream: in one last chunk, or `continuous` in every chunk too."""

    is_included: bool
    is_continuous: bool

    @property
    def before_end(self) -> UnsetType | None:
        """`usage` of the other chunks: null if there will be one at the end, else left out."""
        return None if self.is_included else UNSET


class Serving:
    """One per server process; endpoints are methods of its parts."""

    def __init__(
        self, engine: Engine, options: FrontendArgs, metrics: Metrics | None = None
    ) -> None:
        self.engine = engine
        self.options = options
        self.metrics = metrics
        self.config = engine.vllm_config
        self.defaults = engine.get_default_sampling_params()
        self.models = ServedModels(self.config, self.defaults)
        self.context = self.models.context
        self.log = RequestLog(options)
        self.num_running = 0
        self.is_stopping = False
        self._pool = ThreadPoolExecutor(self.config.model_config.renderer_num_workers, "text")

    # ---- text ----------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> "Tokenizer":
        """The model's tokenizer. Raises VLLMValidationError if there is none."""
        tokenizer = self.engine.get_tokenizer()
        if tokenizer is None:
            raise VLLMValidationError(
                "This server runs without a tokenizer (--skip-tokenizer-init); send token ids.",
                param="prompt",
            )
        return tokenizer

    @cached_property
    def renderer(self) -> ChatRenderer:
        """The chat template, compiled."""
        return ChatRenderer(
            self.tokenizer,
            chat_template=load_chat_template(self.options.chat_template),
            content_format=_content_format(self.options.chat_template_content_format),
            allow_control_tokens=self.options.allow_special_tokens_in_messages,
        )

    def prepare(self) -> None:
        """Do at start-up what the first request would wait for. Raises ConfigError."""
        if self.engine.get_tokenizer() is not None and self.renderer.has_template:
            # A template may refuse this conversation and still be right.
            with contextlib.suppress(VLLMValidationError):
                self.renderer.render([{"role": "user", "content": "."}])

    async def by_size(self, size: int, function: Callable[..., T], *args: Any) -> T:
        """Call it here, or in a thread if it has so many characters or tokens to handle."""
        if size < LONG_TEXT_CHARS:
            return function(*args)
        return await self.in_thread(function, *args)

    async def in_thread(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run string work that may take long; the number of threads is bounded."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    # ---- requests ------------------------------------------------------------------------------

    def request_id(self, prefix: str, request: GenerationRequest, http: Request) -> str:
        """The public id: the client's own, if it is short and printable."""
        asked = http.headers.get("x-request-id") or request.request_id
        if asked is None or not _REQUEST_ID.fullmatch(asked):
            asked = uuid.uuid4().hex
        return f"{prefix}-{asked}"

    def cache_salt(self, request: GenerationRequest, http: Request) -> str | None:
        """With what the prompt's blocks are cached: the client's salt, apart for each tenant."""
        salt, tenant = request.cache_salt, http.scope.get(TENANT)
        if tenant is None or (salt is not None and not 1 <= len(salt) <= MAX_CACHE_SALT):
            return salt
        return hashlib.sha256(f"{tenant}/{salt or ''}".encode()).hexdigest()

    async def start(
        self,
        request_id: str,
        prompts: Sequence[PromptType],
        params: SamplingParams,
        request: GenerationRequest,
        http: Request,
    ) -> list[EngineStream]:
        """Start one engine request per prompt; if one is refused, none stays.

        The engine's ids begin with the public one, for the log; their end is chosen here.
        """
        if self.is_stopping:
            raise NotReadyError("The server is shutting down.")
        priority, options = _priority(request, http), _tokenization(request)
        streams: list[EngineStream] = []
        try:
            for prompt in prompts:
                if streams:
                    await asyncio.sleep(0)
                engine_id = f"{request_id}-{uuid.uuid4().hex[:12]}"
                streams.append(await self._start_one(engine_id, prompt, params, priority, options))
        except BaseException:
            for stream in streams:
                await stream.close()
            raise
        return streams

    async def _start_one(
        self,
        engine_id: str,
        prompt: PromptType,
        params: SamplingParams,
        priority: int,
        options: dict[str, Any],
    ) -> EngineStream:
        try:
            queue = await self.engine.add_request(
                engine_id, prompt, params, priority=priority, tokenization_kwargs=options
            )
        except QueueOverflowError as error:
            if self.metrics is not None and error.code is not None:
                self.metrics.record_rejection(error.code)
            raise
        return EngineStream(self.engine, engine_id, queue)

    def log_failure(self, request_id: str, error: BaseException) -> None:
        """One line for a request that ended in an error after it was accepted.

        The engine has written it already for failures of its own, with an id that begins with
        the public one.
        """
        if isinstance(error, EngineGenerateError):
            return
        wanted = self.options.log_error_stack or envs.VLLM_SERVER_DEV_MODE
        stack = wanted or not isinstance(error, VLLMError)
        logger.error("Request %s failed: %s", request_id, error, exc_info=error if stack else None)

    # ---- answers -------------------------------------------------------------------------------

    async def read_all(
        self, request_id: str, streams: Sequence[EngineStream], http: Request
    ) -> list[RequestOutput]:
        """The final outputs, unless the client goes first."""
        try:
            work = asyncio.gather(*(stream.last() for stream in streams))
            async with DisconnectWatch(http.receive):
                return await work
        except ClientDisconnectedError:
            logger.info("Request %s: the client disconnected", request_id)
            raise
        except VLLMError as error:
            self.log_failure(request_id, error)
            raise
        finally:
            for stream in streams:
                await stream.close()

    def stream_usage(self, request: GenerationRequest) -> "StreamUsage":
        """What a stream says about usage."""
        asked = request.stream_options or StreamOptions()
        included = bool(asked.include_usage) or self.options.enable_force_include_usage
        return StreamUsage(included, included and bool(asked.continuous_usage_stats))

    def ids_as_text(self, request: GenerationRequest) -> bool:
        """True if logprobs name tokens as `token_id:N`."""
        if request.return_tokens_as_token_ids is None:
            return self.options.return_tokens_as_token_ids
        return request.return_tokens_as_token_ids

    @cached_property
    def max_prompt_chars(self) -> int | None:
        """No longer text can fit into the model's context."""
        tokenizer = self.engine.get_tokenizer()
        return None if tokenizer is None else self.context * tokenizer.max_chars_per_token

    def usage(self, num_prompt: int, num_completion: int, num_cached: int) -> Usage:
        """The usage object."""
        details = None
        if self.options.enable_prompt_tokens_details:
            details = PromptTokensDetails(num_cached)
        return Usage(num_prompt, num_prompt + num_completion, num_completion, details)

    @cached_property
    def fingerprint(self) -> str | None:
        """`system_fingerprint`: changes when the answers may."""
        mode = self.options.fingerprint_mode
        if mode == "none":
            return None
        if mode == "custom":
            return self.options.fingerprint_value
        digest = self.models.config_hash
        return digest if mode == "hash" else f"vllm-{__version__}-{digest}"


def _content_format(word: str) -> Literal["auto", "string", "openai"]:
    return "string" if word == "string" else "openai" if word == "openai" else "auto"


def _priority(request: GenerationRequest, http: Request) -> int:
    """The header of a gateway beats what the client wrote."""
    rank = http.headers.get("x-data-parallel-rank", "")
    if rank.isdecimal() and int(rank) != 0:
        raise VLLMValidationError(
            f"X-data-parallel-rank is {rank[:20]}; this server has one engine, rank 0.",
            param="X-data-parallel-rank",
        )
    header = http.headers.get("x-vllm-priority")
    if header is None:
        return request.priority or 0
    if not re.fullmatch(r"-?\d{1,9}", header):
        raise VLLMValidationError(
            "X-Vllm-Priority must be an integer of at most 9 digits.", param="X-Vllm-Priority"
        )
    return int(header)


def _tokenization(request: GenerationRequest) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if request.truncate_prompt_tokens is not None:
        options["truncate_prompt_tokens"] = request.truncate_prompt_tokens
    if request.add_special_tokens is not None:
        options["add_special_tokens"] = request.add_special_tokens
    return options


def now() -> int:
    """`created` of an answer."""
    return int(time.time())


encode = msgspec.json.Encoder().encode
