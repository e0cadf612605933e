"""Batch updates say exactly how rows changed; processors see the rows that sample."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm.exceptions import ConfigError
from vllm.sampling_params import SamplingParams
from vllm.v1.messages import NewRequestData
from vllm.v1.sample.logits_processors import (
    BatchUpdate,
    CustomProcessors,
    LogitsProcessor,
    MoveDirectionality,
    SamplingRequest,
    load_processors,
    make_batch_update,
)
from vllm.v1.sample.logprobs import LogprobsMode
from vllm.v1.sample.metadata import SamplingColumns
from vllm.v1.sample.sampler import Sampler

REQUESTS = [SamplingRequest(SamplingParams(max_tokens=i + 1), [i], []) for i in range(8)]


def follow(rows: dict[int, Any], update: BatchUpdate) -> dict[int, Any]:
    """What a processor that obeys the interface holds after an update."""
    rows = dict(rows)
    for row in update.removed:
        del rows[row]
    for row, params, prompt_ids, _ in update.added:
        assert row not in rows, "an added request takes a free row"
        rows[row] = (params.max_tokens, prompt_ids)
    for source, target, how in update.moved:
        if how is MoveDirectionality.SWAP:
            rows[source], rows[target] = rows[target], rows[source]
        else:
            assert target not in rows
            rows[target] = rows.pop(source)
    return rows


@given(
    st.lists(st.lists(st.sampled_from(range(8)), max_size=8, unique=True), min_size=1, max_size=6)
)
@settings(max_examples=300, deadline=None)
def test_updates_lead_from_batch_to_batch(batches: list[list[int]]) -> None:
    before: list[SamplingRequest] = []
    held: dict[int, Any] = {}
    for batch in batches:
        after = [REQUESTS[i] for i in batch]
        update = make_batch_update(before, after)
        if before == after:
            assert update is None
        else:
            assert update is not None and update.batch_size == len(after)
            held = follow(held, update)
        assert held == {row: (i + 1, [i]) for row, i in enumerate(batch)}
        before = after


class Recorder(LogitsProcessor):
    """Adds 100 to one token; remembers what it saw."""

    token, invariant = 4, False

    def __init__(self, vllm_config: Any, device: str, is_pin_memory: bool) -> None:
        self.seen: list[Any] = []

    def apply(self, logits: Any) -> Any:
        self.seen.append(logits.copy())
        changed = logits.copy()
        changed[:, self.token] += 100
        return changed

    def is_argmax_invariant(self) -> bool:
        return self.invariant

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        pass


class Invariant(Recorder):
    invariant = True


def sample(processor: LogitsProcessor, temperature: float, mode: str) -> Any:
    columns = SamplingColumns(1)
    params = SamplingParams(temperature=temperature, logprobs=0, logit_bias={2: 7.0})
    columns.add(0, NewRequestData("a", [1], 1, params, 0, [], [[0]], 0))
    one = np.ones(1, np.int32)
    metadata = columns.select(np.zeros(1, np.int64), np.ones((1, 4), np.int32), one, one)
    custom = CustomProcessors([processor])
    custom.begin_step([SamplingRequest(params, [1], [])])
    logits = np.zeros((1, 8), np.float32)
    return Sampler(LogprobsMode(mode), custom).sample(logits, metadata)


def test_others_run_after_the_bias_and_count_for_greedy() -> None:
    processor = Recorder(None, "cpu", False)
    output = sample(processor, 0.0, "raw_logits")
    assert output.token_ids.tolist() == [4]
    assert processor.seen[0][0].tolist() == [0, 0, 7, 0, 0, 0, 0, 0]
    assert output.logprobs[0].logprobs == [0.0], "raw logits are those of the model"


def test_invariant_ones_run_after_the_temperature_and_never_for_greedy() -> None:
    processor = Invariant(None, "cpu", False)
    assert sample(processor, 0.0, "raw_logits").token_ids.tolist() == [2]
    assert processor.seen == []
    output = sample(processor, 0.5, "processed_logits")
    assert processor.seen[0][0].tolist() == [0, 0, 14, 0, 0, 0, 0, 0]
    assert output.token_ids.tolist() == [4] and output.logprobs[0].logprobs == [100.0]


def test_wrong_shape_is_refused() -> None:
    class Wrong(Recorder):
        def apply(self, logits: Any) -> Any:
            return logits[:, :3]

    with pytest.raises(RuntimeError, match=r"must stay \(1, 8\)"):
        sample(Wrong(None, "cpu", False), 0.0, "raw_logprobs")


def test_a_processor_that_returns_nothing_is_named() -> None:
    class Forgetful(Recorder):
        def apply(self, logits: Any) -> Any:
            logits[:] = 0

    with pytest.raises(RuntimeError, match="Forgetful returned a value of type NoneType"):
        sample(Forgetful(None, "cpu", False), 0.0, "raw_logprobs")


def test_loading() -> None:
    assert load_processors([], None) is None  # type: ignore[arg-type]
    assert load_processors([Recorder], None) is not None  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not a LogitsProcessor"):
        load_processors([dict], None)  # type: ignore[arg-type]
