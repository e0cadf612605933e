"""What the front end keeps about one running sequence: enough to show it, and to run it again.

Prompt ids, generated ids, parameters and seed determine the rest of a sequence, so an engine that
knows nothing of it continues exactly where another one stopped.
"""

from dataclasses import dataclass, field

import msgspec

from vllm.outputs import CompletionOutput, RequestOutput, RequestStateStats
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.detokenizer import Detokenizer
from vllm.v1.engine.logprobs import LogprobsCollector
from vllm.v1.engine.output_queue import OutputQueue
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.messages import (
    EngineCoreOutput,
    EngineCoreRequest,
    FinishReason,
)
from vllm.v1.metrics.stats import IterationStats


@dataclass(slots=True, eq=False)
class RequestState:
    """One sequence of a user's request; `index` is its place among the n."""

    request: EngineCoreRequest
    parent: ParentRequest
    index: int
    prompt: str | None
    detokenizer: Detokenizer | None
    logprobs: LogprobsCollector
    queue: OutputQueue | None
    kind: RequestOutputKind
    stream_interval: int
    stats: RequestStateStats
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    num_cached_tokens: int = 0
    num_sent: int = 0
    num_engine_deaths: int = 0
    has_sent_prompt_logprobs: bool = False

    @property
    def has_run(self) -> bool:
        """True once a step has produced something for it."""
        return bool(self.token_ids) or bool(self.stats.scheduled_ts)

    def add_output(self, output: EngineCoreOutput) -> str | None:
        """Take one step's tokens, up to the stop string that they complete; returns that."""
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        if output.new_prompt_logprobs:
            self.logprobs.add_prompt(output.new_prompt_logprobs)
        stop = None
        if self.detokenizer is None:
            self.token_ids += output.new_token_ids
            for entry in output.new_logprobs or ():
                self.logprobs.add_sample(entry, b"")
        else:
            stop = self._detokenize(self.detokenizer, output)
            if output.finish_reason is not None and stop is None:
                self.detokenizer.finish()
        return stop

    def _detokenize(self, detokenizer: Detokenizer, output: EngineCoreOutput) -> str | None:
        entries = output.new_logprobs
        hidden = -1
        if output.finish_reason is FinishReason.STOP:
            is_shown = self.request.sampling_params.include_stop_str_in_output
            hidden = -1 if is_shown else len(output.new_token_ids) - 1
        for position, token_id in enumerate(output.new_token_ids):
            if entries is not None:
                self.logprobs.add_sample(entries[position], detokenizer.open_bytes)
            self.token_ids.append(token_id)
            if position == hidden:
                return None
            stop = detokenizer.append(token_id)
            if stop is not None:
                del output.new_token_ids[position + 1 :]
                return stop
        return None

    def is_due(self, is_finished: bool) -> bool:
        """True if an output should go to the user now."""
        if is_finished:
            return True
        num_new = len(self.token_ids) - self.num_sent
        if num_new == 0 or self.kind is RequestOutputKind.FINAL_ONLY:
            return False
        return self.num_sent == 0 or num_new >= self.stream_interval

    def make_output(
        self, reason: FinishReason | None, stop_reason: int | str | None
    ) -> RequestOutput | None:
        """What the user gets now; None while a request with n > 1 waits for its other parts."""
        completion = self._completion(reason, stop_reason)
        outputs = self.parent.gather(completion)
        if not outputs:
            return None
        prompt_logprobs = self.logprobs.prompt
        if self.has_sent_prompt_logprobs and self.kind is RequestOutputKind.DELTA:
            prompt_logprobs = None
        self.has_sent_prompt_logprobs = True
        return RequestOutput(
            request_id=self.parent.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            prompt_logprobs=prompt_logprobs,
            outputs=outputs,
            finished=self.parent.finished,
            metrics=self.stats,
            num_cached_tokens=self.num_cached_tokens,
        )

    def _completion(
        self, reason: FinishReason | None, stop_reason: int | str | None
    ) -> CompletionOutput:
        new_text = "" if self.detokenizer is None else self.detokenizer.take()
        sample = self.logprobs.sample
        if self.kind is RequestOutputKind.DELTA:
            text, token_ids = new_text, self.token_ids[self.num_sent :]
            sample = None if sample is None else sample[self.num_sent :]
        else:
            self.text += new_text
            text, token_ids = self.text, self.token_ids.copy()
            sample = None if sample is None else sample.copy()
        self.num_sent = len(self.token_ids)
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=token_ids,
            cumulative_logprob=None if sample is None else self.logprobs.cumulative,
            logprobs=sample,
            finish_reason=None if reason is None else str(reason),
            stop_reason=stop_reason,
        )

    def finish(self, reason: FinishReason, iteration: IterationStats) -> None:
        """Account its end; it leaves its parent."""
        iteration.finish(
            self.stats,
            reason,
            len(self.request.prompt_token_ids),
            self.num_cached_tokens,
            self.request.sampling_params.max_tokens,
        )
        parent = self.parent
        parent.child_ids.discard(self.request.request_id)
        parent.max_generation_tokens = max(parent.max_generation_tokens, len(self.token_ids))
        if parent.finished:
            iteration.finish_group(parent.n, parent.max_generation_tokens)

    def resumed_request(self) -> EngineCoreRequest:
        """The same request for an engine that has never seen it."""
        self.num_engine_deaths += 1
        if not self.token_ids:
            self.logprobs.restart_prompt()
        return msgspec.structs.replace(self.request, output_token_ids=self.token_ids.copy())
