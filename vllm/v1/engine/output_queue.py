"""Where a request's outputs wait for their consumer; what it has not taken yet is merged.

A slow reader costs memory for its text only, never for the number of steps.
"""

import asyncio
from dataclasses import replace

from vllm.outputs import CompletionOutput, RequestOutput


class OutputQueue:
    """One producer (the output processor), one consumer (the generator of the request)."""

    def __init__(self, merges_deltas: bool) -> None:
        self._merges_deltas = merges_deltas
        self._pending: RequestOutput | None = None
        self._error: BaseException | None = None
        self._ready = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        """Add one output."""
        if self._pending is None or not self._merges_deltas:
            self._pending = output
        else:
            self._pending = merge_deltas(self._pending, output)
        self._ready.set()

    def fail(self, error: BaseException) -> None:
        """End the request: the consumer gets what is pending, then the error."""
        self._error = error
        self._ready.set()

    def get_nowait(self) -> RequestOutput | None:
        """What is pending, or None. Raises the request's error once nothing is."""
        output, self._pending = self._pending, None
        if output is None and self._error is not None:
            raise self._error
        if self._error is None:
            self._ready.clear()
        return output

    async def get(self) -> RequestOutput:
        """Wait for an output."""
        while True:
            output = self.get_nowait()
            if output is not None:
                return output
            await self._ready.wait()


def merge_deltas(first: RequestOutput, then: RequestOutput) -> RequestOutput:
    """One output that says what two said in turn."""
    by_index = {output.index: output for output in first.outputs}
    for output in then.outputs:
        before = by_index.get(output.index)
        by_index[output.index] = output if before is None else _join(before, output)
    return replace(
        then,
        outputs=[by_index[index] for index in sorted(by_index)],
        prompt_logprobs=first.prompt_logprobs or then.prompt_logprobs,
    )


def _join(first: CompletionOutput, then: CompletionOutput) -> CompletionOutput:
    logprobs = first.logprobs
    if then.logprobs is not None:
        logprobs = [*(logprobs or []), *then.logprobs]
    return replace(
        then,
        text=first.text + then.text,
        token_ids=[*first.token_ids, *then.token_ids],
        logprobs=logprobs,
    )
