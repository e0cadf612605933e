"""Custom logits processors: the interface that plugins implement, and the calls to them.

`apply` gets the logits of the rows that sample in this step as a writable numpy array
[rows, vocab] of float32 and returns it, or another of the same shape. Before each step
`update_state` says how the rows changed since the last one: removed, then added, then moved.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vllm.exceptions import ConfigError
from vllm.logger import init_logger
from vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from vllm.config import VllmConfig

F32 = NDArray[np.float32]

logger = init_logger(__name__)


class MoveDirectionality(Enum):
    """UNIDIRECTIONAL: row i goes to row j, which was empty. SWAP: they change places."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


AddedRequest = tuple[int, SamplingParams, "list[int] | None", list[int]]
"""Row, parameters, prompt token ids, output token ids (the list grows as the request runs)."""


@dataclass(frozen=True, slots=True)
class BatchUpdate:
    """How the rows changed; apply `removed`, then `added`, then `moved`, each in order."""

    batch_size: int
    removed: Sequence[int]
    added: Sequence[AddedRequest]
    moved: Sequence[tuple[int, int, MoveDirectionality]]


class LogitsProcessor(ABC):
    """A processor of the whole batch. One object per engine."""

    @abstractmethod
    def __init__(self, vllm_config: "VllmConfig", device: str, is_pin_memory: bool) -> None:
        """`device` is "cpu"."""

    @classmethod  # noqa: B027 (optional)
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ValueError if a request's `extra_args` can't be used. Called by the front end."""

    @abstractmethod
    def apply(self, logits: F32) -> F32:
        """The new logits, [rows, vocab]."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """True if the most probable token stays: greedy steps skip it then."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the rows of the batch; None if they are those of the last step."""


RowProcessor = Callable[..., Any]
"""(output_ids, logits_row) or (prompt_ids, output_ids, logits_row) -> logits_row."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Lets a callable per request be used. One that raises ends its own request only."""

    def __init__(self, vllm_config: "VllmConfig", device: str, is_pin_memory: bool) -> None:
        self._rows: dict[int, Callable[[F32], F32]] = {}
        self.errors: dict[int, str] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RowProcessor | None:
        """The callable of a new request, or None."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Keep each request's callable at its row."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._rows.pop(row, None)
        for row, params, prompt_ids, output_ids in batch_update.added:
            self._rows.pop(row, None)
            processor = self.new_req_logits_processor(params)
            if processor is not None:
                self._rows[row] = _bind(processor, prompt_ids, output_ids)
        for source, target, _ in batch_update.moved:
            moving, staying = self._rows.pop(source, None), self._rows.pop(target, None)
            if moving is not None:
                self._rows[target] = moving
            if staying is not None:
                self._rows[source] = staying

    def apply(self, logits: F32) -> F32:
        """Call each request's callable on its row."""
        self.errors = {}
        for row, processor in self._rows.items():
            try:
                logits[row] = processor(logits[row])
            except Exception as error:
                logger.exception("The logits processor %s failed", type(self).__name__)
                self.errors[row] = f"Logits processor {type(self).__name__}: {error}"
        return logits


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """A request as processors see it; compared by identity of its output list."""

    params: SamplingParams
    prompt_ids: list[int]
    output_ids: list[int]


class CustomProcessors:
    """The loaded processors and the rows that they saw last."""

    def __init__(self, processors: Sequence[LogitsProcessor]) -> None:
        self._rows: list[SamplingRequest] = []
        self._invariant = [p for p in processors if p.is_argmax_invariant()]
        self._others = [p for p in processors if not p.is_argmax_invariant()]
        self.errors: dict[int, str] = {}

    @property
    def has_invariant(self) -> bool:
        """True if some run after the temperature."""
        return bool(self._invariant)

    def begin_step(self, rows: list[SamplingRequest]) -> None:
        """Tell the processors which requests sample now."""
        self.errors = {}
        update = make_batch_update(self._rows, rows)
        self._rows = rows
        for processor in (*self._others, *self._invariant):
            processor.update_state(update)

    def apply(self, logits: F32) -> F32:
        """Those that may change the most probable token."""
        return self._apply(self._others, logits)

    def apply_invariant(self, logits: F32) -> F32:
        """The others; for rows that draw."""
        return self._apply(self._invariant, logits)

    def _apply(self, processors: Sequence[LogitsProcessor], logits: F32) -> F32:
        for processor in processors:
            changed = processor.apply(logits)
            if not isinstance(changed, np.ndarray):
                raise RuntimeError(
                    f"Logits processor {type(processor).__name__} returned a value of type "
                    f"{type(changed).__name__}; apply must return the logits."
                )
            if changed.shape != logits.shape:
                raise RuntimeError(
                    f"Logits processor {type(processor).__name__} returned logits of shape "
                    f"{changed.shape}; they must stay {logits.shape}."
                )
            logits = np.ascontiguousarray(changed, np.float32)
            if isinstance(processor, AdapterLogitsProcessor):
                self.errors.update(processor.errors)
        return logits


def make_batch_update(
    before: list[SamplingRequest], after: list[SamplingRequest]
) -> BatchUpdate | None:
    """The changes that turn the rows `before` into the rows `after`; None if there are none."""
    if len(before) == len(after) and all(a is b for a, b in zip(before, after, strict=True)):
        return None
    wanted = {id(request): row for row, request in enumerate(after)}
    rows: list[SamplingRequest | None] = [
        request if id(request) in wanted else None for request in before
    ]
    removed = [row for row, request in enumerate(rows) if request is None]
    rows += [None] * (len(after) - len(rows))
    known = {id(request) for request in rows if request is not None}
    holes = [row for row, request in enumerate(rows) if request is None]
    added: list[AddedRequest] = []
    for request in (r for r in after if id(r) not in known):
        row = holes.pop(0)
        rows[row] = request
        added.append((row, request.params, request.prompt_ids, request.output_ids))
    return BatchUpdate(len(after), removed, added, _sort_rows(rows, after))


def load_processors(
    named: Sequence[Any], vllm_config: "VllmConfig"
) -> CustomProcessors | None:
    """Make one object of each class; None if there are none."""
    processors = []
    for cls in named:
        if not (isinstance(cls, type) and issubclass(cls, LogitsProcessor)):
            raise ConfigError(f"--logits-processors: {cls!r} is not a LogitsProcessor class.")
        processors.append(cls(vllm_config, "cpu", False))
    return CustomProcessors(processors) if processors else None


def _sort_rows(
    rows: "list[SamplingRequest | None]", after: list[SamplingRequest]
) -> list[tuple[int, int, MoveDirectionality]]:
    """Moves that bring each request to its row of `after`; `rows` holds them all somewhere."""
    moved = []
    where = {id(request): row for row, request in enumerate(rows) if request is not None}
    for target, request in enumerate(after):
        source = where[id(request)]
        if source == target:
            continue
        other = rows[target]
        rows[target], rows[source] = request, other
        where[id(request)] = target
        if other is None:
            moved.append((source, target, MoveDirectionality.UNIDIRECTIONAL))
        else:
            where[id(other)] = source
            moved.append((source, target, MoveDirectionality.SWAP))
    return moved


def _bind(
    processor: RowProcessor, prompt_ids: "list[int] | None", output_ids: list[int]
) -> Callable[[F32], F32]:
    """The callable on a row of logits alone; its number of parameters says what it takes."""
    from inspect import signature

    if len(signature(processor).parameters) == 3:
        return lambda logits: processor(prompt_ids, output_ids, logits)
    return lambda logits: processor(output_ids, logits)
