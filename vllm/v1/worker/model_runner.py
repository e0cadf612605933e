"""One step on one rank: SchedulerOutput -> arrays -> model -> logits -> ModelRunnerOutput.

Works on whole columns of the persistent batch; only what a single request asked for (custom
processors, prompt logprobs) is handled one request at a time. Invariant: what a request gets does
not depend on which other requests are in the step.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vllm.attention.backend import StepInput
from vllm.config.resolved import resolved
from vllm.logger import init_logger
from vllm.v1.messages import (
    KVCacheConfig,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
    TokenLogprobs,
)
from vllm.v1.sample.logits_processors import CustomProcessors, SamplingRequest
from vllm.v1.sample.logprobs import LogprobsMode, top_logprobs
from vllm.v1.sample.metadata import SamplingColumns
from vllm.v1.sample.sampler import Sampler, SamplerOutput
from vllm.v1.worker.input_batch import InputBatch

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.model_executor.model import Model

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

logger = init_logger(__name__)

PROMPT_LOGPROBS_ROWS = 32
"""Prompt logits are made for so many positions at a time: a whole prompt's would fill memory."""


@dataclass(slots=True)
class _Step:
    """The rows of one step in the order of the batch; `samples` are those that get a token."""

    request_ids: list[str]
    rows: I64
    num_scheduled: I32
    query_start: I32
    samples: I64


class ModelRunner:
    """Owns the batch and the sampler; runs the model it is given."""

    def __init__(
        self,
        vllm_config: "VllmConfig",
        model: "Model",
        kv_cache_config: KVCacheConfig,
        custom: CustomProcessors | None = None,
    ) -> None:
        max_num_seqs = resolved("max_num_seqs", vllm_config.scheduler_config.max_num_seqs)
        self.model = model
        self.block_size = kv_cache_config.block_size
        self.batch = InputBatch(
            max_num_seqs,
            resolved("max_model_len", vllm_config.model_config.max_model_len),
            self.block_size,
            len(kv_cache_config.groups),
            SamplingColumns(max_num_seqs),
        )
        self._mode = LogprobsMode(vllm_config.model_config.logprobs_mode)
        self._custom = custom
        self.sampler = Sampler(self._mode, custom)
        self._prompt_logprobs: dict[str, int] = {}
        self._requests: dict[str, SamplingRequest] = {}
        self._max_logits_rows = min(PROMPT_LOGPROBS_ROWS, max_num_seqs)

    def execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step."""
        errors = self._update_states(scheduled)
        step = self._begin_step(scheduled, errors)
        if not step.request_ids:
            return ModelRunnerOutput({}, errors=errors)
        logits = self.model.execute(self.prepare_inputs(step))
        output = self._sample(step, logits)
        output.errors.update(errors)
        if self._prompt_logprobs:
            output.prompt_logprobs = self._take_prompt_logprobs(step)
        self.batch.num_computed_tokens[step.rows] += step.num_scheduled
        return output

    def prepare_inputs(self, step: _Step) -> StepInput:
        """The arrays of a step: tokens of each sequence side by side.

            rows          [ 7        | 2 | 5     ]      a prefill chunk, a decode, a prefill's end
            query_start   [ 0          5   6      9 ]
            positions       0 1 2 3 4  90  30 31 32     computed tokens of the row, and on
        """
        batch, rows = self.batch, step.rows
        computed = batch.num_computed_tokens[rows]
        seq_lens = computed + step.num_scheduled
        if step.query_start[-1] == len(rows):  # one token each
            token_rows, positions = rows, computed
        else:
            token_rows = np.repeat(rows, step.num_scheduled)
            starts = np.repeat(computed - step.query_start[:-1], step.num_scheduled)
            positions = starts + np.arange(step.query_start[-1], dtype=np.int32)
        return StepInput(
            token_ids=batch.token_ids[token_rows, positions],
            positions=positions,
            query_start=step.query_start,
            seq_lens=seq_lens,
            logits_indices=step.query_start[1:][step.samples] - 1,
            block_tables=batch.blocks.gather(rows),
            slot_mapping=batch.blocks.slots(token_rows, positions),
            block_size=self.block_size,
        )

    def _update_states(self, scheduled: SchedulerOutput) -> dict[str, str]:
        """Follow the scheduler: who left, who came (back), who got blocks.

        Returns the requests whose own data can't be taken, with why; they have no row.
        """
        for request_id in scheduled.finished_req_ids:
            self.batch.remove(request_id)
            self._prompt_logprobs.pop(request_id, None)
            self._requests.pop(request_id, None)
        errors = {}
        for new in scheduled.new_reqs:
            try:
                self._add_request(new)
            except Exception as error:
                logger.exception("Request %s can't be run", new.request_id)
                self.batch.remove(new.request_id)
                errors[new.request_id] = f"The request can't be run: {error}"
        rows = self.batch.rows
        for cached in scheduled.cached_reqs:
            if cached.new_block_ids is not None:
                self.batch.blocks.append(rows[cached.request_id], cached.new_block_ids)
        return errors

    def _add_request(self, new: NewRequestData) -> None:
        self.batch.add(new)
        params = new.sampling_params
        num_prompt = new.num_prompt_tokens
        if params.prompt_logprobs is not None and len(new.token_ids) == num_prompt:
            self._prompt_logprobs[new.request_id] = params.prompt_logprobs
        if self._custom is not None:
            self._requests[new.request_id] = SamplingRequest(
                params, new.token_ids[:num_prompt], new.token_ids[num_prompt:]
            )

    def _begin_step(self, scheduled: SchedulerOutput, errors: dict[str, str]) -> _Step:
        batch, counts = self.batch, scheduled.num_scheduled_tokens
        if errors:
            counts = {one: count for one, count in counts.items() if one not in errors}
        request_ids = list(counts)
        rows = np.array([batch.rows[request_id] for request_id in request_ids], np.int64)
        num_scheduled = np.array(list(counts.values()), np.int32)
        query_start = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(num_scheduled, out=query_start[1:])
        ends = batch.num_computed_tokens[rows] + num_scheduled
        samples = np.flatnonzero(ends >= batch.num_tokens[rows])
        return _Step(request_ids, rows, num_scheduled, query_start, samples)

    def _sample(self, step: _Step, logits: NDArray[np.float32]) -> ModelRunnerOutput:
        """Choose a token for every row that has computed all that it knows."""
        if not len(step.samples):
            return ModelRunnerOutput({})
        rows = step.rows[step.samples]
        request_ids = [step.request_ids[i] for i in step.samples.tolist()]
        if self._custom is not None:
            self._custom.begin_step([self._requests[one] for one in request_ids])
        try:
            sampled = self._sample_rows(rows, logits)
        except Exception:
            if self._custom is not None:
                raise  # their state has moved on: this step can't be sampled again
            logger.exception("Sampling failed; each request of the step is sampled alone")
            sampled = self._sample_one_by_one(step, rows)
        self.batch.append_tokens(rows, sampled.token_ids)
        tokens = sampled.token_ids.tolist()
        for request_id, token_id in zip(request_ids, tokens, strict=True):
            if self._custom is not None:
                self._requests[request_id].output_ids.append(token_id)
        output = ModelRunnerOutput(
            {one: [token_id] for one, token_id in zip(request_ids, tokens, strict=True)}
        )
        output.logprobs = {request_ids[i]: [entry] for i, entry in sampled.logprobs.items()}
        output.errors = {request_ids[i]: message for i, message in sampled.errors.items()}
        return output

    def _sample_rows(self, rows: I64, logits: NDArray[np.float32]) -> SamplerOutput:
        batch = self.batch
        metadata = batch.sampling.select(
            rows, batch.token_ids, batch.num_tokens[rows], batch.num_prompt_tokens[rows]
        )
        return self.sampler.sample(logits, metadata)

    def _sample_one_by_one(self, step: _Step, rows: I64) -> SamplerOutput:
        """Find whose parameters the sampler can't handle; the others get the tokens they would."""
        output = SamplerOutput(np.zeros(len(rows), np.int32))
        indices = (step.query_start[1:][step.samples] - 1).astype(np.int32)
        for i in range(len(rows)):
            try:
                alone = self._sample_rows(
                    rows[i : i + 1], self.model.logits_rows(indices[i : i + 1])
                )
            except Exception as error:
                output.errors[i] = f"Sampling failed: {error}"
                continue
            output.token_ids[i] = alone.token_ids[0]
            for entry in alone.logprobs.values():
                output.logprobs[i] = entry
            for message in alone.errors.values():
                output.errors[i] = message
        return output

    def _take_prompt_logprobs(self, step: _Step) -> dict[str, list[TokenLogprobs]]:
        """Of the prompt positions of this step, for the requests that asked."""
        result = {}
        for i, request_id in enumerate(step.request_ids):
            num_top = self._prompt_logprobs.get(request_id)
            if num_top is None:
                continue
            row = int(step.rows[i])
            start = int(self.batch.num_computed_tokens[row])
            last = int(self.batch.num_prompt_tokens[row]) - 1
            end = min(start + int(step.num_scheduled[i]), last)
            if start < end:
                targets = self.batch.token_ids[row, start + 1 : end + 1]
                first = int(step.query_start[i])
                result[request_id] = self._prompt_slices(first, targets, num_top)
            if end == last:
                del self._prompt_logprobs[request_id]
        return result

    def _prompt_slices(self, first: int, targets: I32, num_top: int) -> list[TokenLogprobs]:
        """Logprobs of `targets`, which follow the step's tokens from `first` on."""
        entries: list[TokenLogprobs] = []
        for start in range(0, len(targets), self._max_logits_rows):
            part = np.ascontiguousarray(targets[start : start + self._max_logits_rows])
            indices = np.arange(first + start, first + start + len(part), dtype=np.int32)
            logits = self.model.logits_rows(indices)
            entries += top_logprobs(logits, part, num_top, self._mode.as_logits)
        return entries
