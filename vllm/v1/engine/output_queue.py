"""Where a request's outputs wait for their consumer; what it has not taken yet is merged.

A slow reader costs memory for its text, not for the number of steps, and time linear in both.
"""

import asyncio
from collections.abc import Sequence

from vllm.outputs import CompletionOutput, RequestOutput

MAX_PENDING = 64
"""So many deltas are merged into one; between, adding one costs nothing but its place."""


class OutputQueue:
    """One producer (the output processor), one consumer (the generator of the request)."""

    def __init__(self, merges_deltas: bool) -> None:
        self._merges_deltas = merges_deltas
        self._pending: list[RequestOutput] = []
        self._error: BaseException | None = None
        self._ready = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        """Add one output."""
        pending = self._pending
        if not self._merges_deltas:
            pending.clear()
        elif len(pending) == MAX_PENDING:
            pending[:] = [merge_deltas(pending)]
        pending.append(output)
        self._ready.set()

    def fail(self, error: BaseException) -> None:
        """End the request: the consumer gets what is pending, then the error."""
        self._error = error
        self._ready.set()

    def get_nowait(self) -> RequestOutput | None:
        """What is pending, or None. Raises the request's error once nothing is."""
        pending = self._pending
        if not pending:
            if self._error is not None:
                raise self._error
            return None
        self._pending = []
        if self._error is None:
            self._ready.clear()
        return pending[0] if len(pending) == 1 else merge_deltas(pending)

    async def get(self) -> RequestOutput:
        """Wait for an output."""
        while True:
            output = self.get_nowait()
            if output is not None:
                return output
            await self._ready.wait()


def merge_deltas(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """One output that says what these said in turn: the last one, with the text of all."""
    parts: dict[int, list[CompletionOutput]] = {}
    for output in outputs:
        for completion in output.outputs:
            parts.setdefault(completion.index, []).append(completion)
    merged = outputs[-1]
    merged.outputs = [_join(parts[index]) for index in sorted(parts)]
    merged.prompt_logprobs = outputs[0].prompt_logprobs or merged.prompt_logprobs
    return merged


def _join(parts: list[CompletionOutput]) -> CompletionOutput:
    joined = parts[-1]
    if len(parts) > 1:
        joined.text = "".join([part.text for part in parts])
        joined.token_ids = [token for part in parts for token in part.token_ids]
        if joined.logprobs is not None:
            joined.logprobs = [one for part in parts for one in part.logprobs or ()]
    return joined
