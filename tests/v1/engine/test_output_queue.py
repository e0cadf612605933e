"""Whatever the reader's pace, it gets every token once, in order, and then the error."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm.outputs import CompletionOutput, Logprob, RequestOutput
from vllm.v1.engine.output_queue import MAX_PENDING, OutputQueue


def delta(number: int, index: int, is_last: bool = False) -> RequestOutput:
    completion = CompletionOutput(
        index=index,
        text=f"{number} ",
        token_ids=[number],
        logprobs=[{number: Logprob(-float(number))}],
        finish_reason="length" if is_last else None,
    )
    prompt_logprobs = [None] if number == 0 else None
    return RequestOutput("r", None, [1], prompt_logprobs, [completion], is_last)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=400),
)
@settings(max_examples=100, deadline=None)
def test_nothing_is_lost_or_doubled(steps: list[tuple[int, bool]]) -> None:
    queue = OutputQueue(merges_deltas=True)
    taken: list[RequestOutput] = []
    for number, (index, reads) in enumerate(steps):
        queue.put(delta(number, index, number == len(steps) - 1))
        assert len(queue._pending) <= MAX_PENDING + 1
        output = queue.get_nowait() if reads else None
        taken += [output] if output else []
    rest = queue.get_nowait()
    taken += [rest] if rest else []
    assert queue.get_nowait() is None
    for index in range(3):
        right = [number for number, (i, _) in enumerate(steps) if i == index]
        parts = [c for output in taken for c in output.outputs if c.index == index]
        assert [t for part in parts for t in part.token_ids] == right
        assert "".join(part.text for part in parts) == "".join(f"{n} " for n in right)
        assert [next(iter(one)) for part in parts for one in part.logprobs or []] == right
    assert [output.finished for output in taken] == [False] * (len(taken) - 1) + [True]
    assert taken[0].prompt_logprobs == [None]
    assert all([c.index for c in o.outputs] == sorted({c.index for c in o.outputs}) for o in taken)


def test_cumulative_outputs_replace_each_other() -> None:
    queue = OutputQueue(merges_deltas=False)
    for number in range(3):
        queue.put(delta(number, 0))
    output = queue.get_nowait()
    assert output is not None and output.outputs[0].token_ids == [2]


async def test_error_comes_after_what_is_pending() -> None:
    queue = OutputQueue(merges_deltas=True)
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.put(delta(0, 0))
    queue.fail(ValueError("broken"))
    assert (await waiting).outputs[0].token_ids == [0]
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            await queue.get()


def test_many_deltas_of_a_reader_that_sleeps() -> None:
    """32,768 tokens that nobody takes: memory is one output, time stays linear."""
    queue: Any = OutputQueue(merges_deltas=True)
    for number in range(32_768):
        queue.put(delta(number, 0))
    output = queue.get_nowait()
    assert output.outputs[0].token_ids == list(range(32_768))
