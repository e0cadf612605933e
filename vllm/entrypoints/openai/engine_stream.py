"""The outputs of requests that run in the engine, one request or several at a time.

Invariant: a stream that is closed before its end aborts its request.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from vllm.inputs import PromptType
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.transformers_utils.tokenizer import Tokenizer
    from vllm.v1.engine.output_queue import OutputQueue


class Engine(Protocol):
    """What the server needs of AsyncLLM."""

    vllm_config: "VllmConfig"

    async def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        *,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: dict[str, str] | None = None,
        priority: int = 0,
    ) -> "OutputQueue":
        """Check and start a request."""

    async def abort(self, request_id: str | Sequence[str]) -> None:
        """End requests early."""

    async def check_health(self) -> None:
        """Raise EngineDeadError if nothing can be generated any more."""

    def get_tokenizer(self) -> "Tokenizer | None":
        """The model's tokenizer."""

    def get_default_sampling_params(self) -> dict[str, Any]:
        """Sampling defaults of the model and of the operator."""

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prompt blocks."""


class EngineStream:
    """The outputs of one engine request; `close` aborts it if it has not ended."""

    def __init__(self, engine: Engine, request_id: str, queue: "OutputQueue") -> None:
        self._engine = engine
        self._request_id = request_id
        self._queue = queue
        self.is_finished = False

    def __aiter__(self) -> "EngineStream":
        return self

    async def __anext__(self) -> RequestOutput:
        if self.is_finished:
            raise StopAsyncIteration
        output = self._queue.get_nowait() or await self._queue.get()
        self.is_finished = output.finished
        return output

    async def last(self) -> RequestOutput:
        """The final output of a request that shows nothing before. Raises EngineGenerateError."""
        output = await self.__anext__()
        while not self.is_finished:
            output = await self.__anext__()
        return output

    async def close(self) -> None:
        """Idempotent."""
        if not self.is_finished:
            self.is_finished = True
            await self._engine.abort(self._request_id)


async def merge(streams: Sequence[EngineStream]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """(index of the stream, output) of several streams, as they come."""
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    arrived: asyncio.Queue[tuple[int, RequestOutput | BaseException]] = asyncio.Queue(2)
    readers = [
        asyncio.ensure_future(_read(index, stream, arrived)) for index, stream in enumerate(streams)
    ]
    num_open = len(streams)
    try:
        while num_open:
            index, arrival = await arrived.get()
            if isinstance(arrival, BaseException):
                raise arrival
            num_open -= arrival.finished
            yield index, arrival
    finally:
        for reader in readers:
            reader.cancel()


async def _read(index: int, stream: EngineStream, arrived: "asyncio.Queue[Any]") -> None:
    try:
        async for output in stream:
            await arrived.put((index, output))
    except Exception as error:
        await arrived.put((index, error))
