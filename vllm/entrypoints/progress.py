"""The progress bar of offline generation: prompts done, and tokens per second in and out."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from vllm.outputs import RequestOutput


class Progress:
    """`use_tqdm` is False, True, or a function that is called like `tqdm.tqdm`."""

    def __init__(self, total: int, use_tqdm: bool | Callable[..., Any]) -> None:
        self._bar: Any = None
        self._start = time.monotonic()
        self._num_input = self._num_output = 0
        if use_tqdm is not False and total:
            self._bar = _make_bar(use_tqdm)(
                total=total,
                desc="Processed prompts",
                dynamic_ncols=True,
                postfix="est. speed input: 0.00 toks/s, output: 0.00 toks/s",
            )

    def add(self, output: RequestOutput) -> None:
        """One prompt is done."""
        self._num_input += len(output.prompt_token_ids)
        self._num_output += sum(len(one.token_ids) for one in output.outputs)
        if self._bar is not None:
            seconds = max(time.monotonic() - self._start, 1e-9)
            self._bar.postfix = (
                f"est. speed input: {self._num_input / seconds:.2f} toks/s, "
                f"output: {self._num_output / seconds:.2f} toks/s"
            )
            self._bar.update(1)

    def update(self, count: int) -> None:
        """So many more prompts are done."""
        if self._bar is not None:
            self._bar.update(count)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def _make_bar(use_tqdm: bool | Callable[..., Any]) -> Callable[..., Any]:
    if callable(use_tqdm):
        return use_tqdm
    from tqdm import tqdm

    make: Callable[..., Any] = tqdm
    return make
