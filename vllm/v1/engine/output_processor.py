"""EngineCoreOutputs -> RequestOutputs: text, stop strings, logprobs, and to whom they go.

Invariant: a request that was added leaves exactly once, through `process`, `abort` or `fail`; what
the engine still says about it afterwards is ignored.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm.exceptions import EngineGenerateError, VLLMError, VLLMValidationError
from vllm.logger import init_logger
from vllm.outputs import RequestOutput, RequestStateStats
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.detokenizer import Detokenizer, TokenPieces
from vllm.v1.engine.logprobs import LogprobsCollector
from vllm.v1.engine.output_queue import OutputQueue
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.engine.request_state import RequestState
from vllm.v1.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.metrics.stats import IterationStats

if TYPE_CHECKING:
    from vllm.transformers_utils.tokenizer import Tokenizer

logger = init_logger(__name__)

MAX_ENGINE_DEATHS = 2
"""A sequence that saw so many engines die may be the cause: it isn't given to another one."""


@dataclass(slots=True)
class Processed:
    """Result of one frame: its numbers, outputs without a queue, ids that the engine must drop."""

    stats: IterationStats = field(default_factory=lambda: IterationStats(time.monotonic()))
    outputs: list[RequestOutput] = field(default_factory=list)
    to_abort: list[str] = field(default_factory=list)


class OutputProcessor:
    """The running sequences by engine id, and the user's requests that they belong to."""

    def __init__(
        self, get_tokenizer: "Callable[[], Tokenizer | None]", stream_interval: int = 1
    ) -> None:
        self.states: dict[str, RequestState] = {}
        self.parents: dict[str, ParentRequest] = {}
        self._get_tokenizer = get_tokenizer
        self._stream_interval = stream_interval
        self._pieces: dict[bool, TokenPieces] = {}

    def add_request(
        self,
        request: EngineCoreRequest,
        children: Sequence[EngineCoreRequest],
        prompt: str | None,
        queue: OutputQueue | None,
    ) -> None:
        """Expect the outputs of a user's request, which runs as these n engine requests."""
        request_id, params = request.request_id, request.sampling_params
        if request_id in self.parents:
            raise VLLMValidationError(
                f"request_id {request_id!r} is in use; ids must be unique while requests run.",
                param="request_id",
            )
        parent = ParentRequest(
            request_id, [child.request_id for child in children], params.output_kind
        )
        self.parents[request_id] = parent
        for index, child in enumerate(children):
            self.states[child.request_id] = self._new_state(
                child, params, parent, index, prompt, queue
            )

    def process(self, outputs: Iterable[EngineCoreOutput], timestamp: float) -> Processed:
        """Take what one step produced, or a slice of it."""
        processed = Processed(IterationStats(timestamp))
        for output in outputs:
            state = self.states.get(output.request_id)
            if state is None:
                continue
            try:
                self._process_one(state, output, processed)
            except Exception:
                logger.exception("Handling the output of request %s failed", output.request_id)
                processed.to_abort.append(output.request_id)
                state.detokenizer = None  # whatever text it holds can't be trusted
                self._fail_state(state, "Handling the request's output failed.", processed)
        return processed

    def abort(self, request_ids: Iterable[str]) -> Processed:
        """End requests of users early. Their consumers get a last output that says so."""
        processed = Processed()
        for request_id in request_ids:
            for state in self._states_of(request_id):
                processed.to_abort.append(state.request.request_id)
                self._deliver(state, FinishReason.ABORT, None, processed)
        return processed

    def drop_queue(self, request_id: str, queue: OutputQueue, processed: Processed) -> None:
        """As `drop`, if the request still is the one that this queue belongs to."""
        if any(state.queue is queue for state in self._states_of(request_id)):
            self.drop(request_id, processed)

    def drop(
        self,
        request_id: str,
        processed: Processed,
        reason: FinishReason = FinishReason.ABORT,
    ) -> None:
        """Forget a request whose consumer has gone, or has been told why."""
        for state in self._states_of(request_id):
            processed.to_abort.append(state.request.request_id)
            self._remove(state, reason, processed)

    def fail_all(self, error: VLLMError) -> Processed:
        """Nothing more will come: end every request with `error`."""
        processed = Processed()
        for state in list(self.states.values()):
            if state.queue is not None:
                state.queue.fail(error)
            self._remove(state, FinishReason.ERROR, processed)
        return processed

    def resume(self) -> tuple[list[EngineCoreRequest], Processed]:
        """After the engine died: the requests to give to the next one, and those that end now."""
        processed = Processed()
        for state in list(self.states.values()):
            is_suspect = state.num_engine_deaths + 1 >= MAX_ENGINE_DEATHS
            if is_suspect and state.request.request_id in self.states:
                message = f"The engine ended {MAX_ENGINE_DEATHS} times while this request ran."
                self._fail_state(state, message, processed)
        return [state.resumed_request() for state in self.states.values()], processed

    def _process_one(
        self, state: RequestState, output: EngineCoreOutput, processed: Processed
    ) -> None:
        stop = state.add_output(output)
        processed.stats.record(output, state.stats, len(state.request.prompt_token_ids))
        reason, stop_reason = output.finish_reason, output.stop_reason
        if stop is not None:
            if reason is None:
                processed.to_abort.append(output.request_id)
            reason, stop_reason = FinishReason.STOP, stop
        if reason is FinishReason.ERROR:
            message = output.error or "The request failed."
            logger.error("Request %s failed: %s", state.parent.request_id, message)
            self._fail_state(state, message, processed)
        elif state.is_due(reason is not None):
            self._deliver(state, reason, stop_reason, processed)

    def _new_state(
        self,
        request: EngineCoreRequest,
        params: SamplingParams,
        parent: ParentRequest,
        index: int,
        prompt: str | None,
        queue: OutputQueue | None,
    ) -> RequestState:
        tokenizer = self._get_tokenizer() if params.detokenize else None
        detokenizer = None
        if tokenizer is not None:
            pieces = self._pieces_of(tokenizer, params.skip_special_tokens)
            detokenizer = Detokenizer(pieces, params, request.prompt_token_ids)
        return RequestState(
            request=request,
            parent=parent,
            index=index,
            prompt=prompt,
            detokenizer=detokenizer,
            logprobs=LogprobsCollector(
                tokenizer,
                request.prompt_token_ids,
                wants_sample=params.logprobs is not None or params.logprob_token_ids is not None,
                wants_prompt=params.prompt_logprobs is not None,
            ),
            queue=queue,
            kind=params.output_kind,
            stream_interval=params.stream_interval or self._stream_interval,
            stats=RequestStateStats(arrival_time=request.arrival_time),
        )

    def _pieces_of(self, tokenizer: "Tokenizer", skips_special_tokens: bool) -> TokenPieces:
        pieces = self._pieces.get(skips_special_tokens)
        if pieces is None:
            pieces = self._pieces[skips_special_tokens] = TokenPieces(
                tokenizer, skips_special_tokens
            )
        return pieces

    def _states_of(self, request_id: str) -> list[RequestState]:
        parent = self.parents.get(request_id)
        return [] if parent is None else [self.states[child] for child in sorted(parent.child_ids)]

    def _deliver(
        self,
        state: RequestState,
        reason: FinishReason | None,
        stop_reason: int | str | None,
        processed: Processed,
    ) -> None:
        if reason is not None:
            self._remove(state, reason, processed)
        output = state.make_output(reason, stop_reason)
        if output is None:
            return
        if state.queue is None:
            processed.outputs.append(output)
        else:
            state.queue.put(output)

    def _fail_state(self, state: RequestState, message: str, processed: Processed) -> None:
        """A consumer gets the error itself; a synchronous caller an output that says so."""
        if state.queue is None:
            self._deliver(state, FinishReason.ERROR, message, processed)
            return
        state.queue.fail(EngineGenerateError(message))
        self.drop(state.parent.request_id, processed, FinishReason.ERROR)

    def _remove(self, state: RequestState, reason: FinishReason, processed: Processed) -> None:
        del self.states[state.request.request_id]
        state.finish(reason, processed.stats)
        if state.parent.finished:
            self.parents.pop(state.parent.request_id, None)
