"""How much work and memory one render of a chat template may use, and what each operation costs.

Sizes are paid for *before* an operation runs, so a template that asks for a gigabyte is refused
without allocating it. Sizes are rough bytes: a list entry counts 8, a dict entry 100.
"""

import math
import time
from collections.abc import Iterable, Sized
from typing import Any

from jinja2 import TemplateRuntimeError
from jinja2.utils import Namespace

from vllm import envs

MAX_STEPS = 250_000
MAX_BYTES = 8_000_000
MAX_CPU_S = 0.25
MAX_NUMBER = 1 << 63
MAX_WIDTH = 100_000
"""Largest width, count or indent that a call may be given, and the longest range."""

_BYTES_PER_INPUT_CHAR = 32
_CPU_S_PER_INPUT_CHAR = 2e-7
_STEPS_BETWEEN_CLOCK_READS = 256
_BYTES_BETWEEN_CLOCK_READS = 10_000


def words(text: str) -> frozenset[str]:
    """A set of names, written as one text."""
    return frozenset(text.split())


_WIDTH_CALLS = words("center ljust rjust zfill batch slice truncate")
_NESTED_CALLS = words("sort min max unique groupby dictsort sum string map")
_LISTING_CALLS = words("split rsplit splitlines list title wordcount")
_READING_CALLS = words(
    "startswith endswith find rfind index rindex count length default d first get"
)
_REFUSED_CALLS = words("translate maketrans")
_BYTES_PER_SHORT_STRING = 60


class BudgetExceededError(TemplateRuntimeError):
    """The template asked for more work or memory than one render may use."""


class Budget:
    """What one render has left; the more text the user brought, the larger it starts."""

    def __init__(self, num_input_chars: int = 0) -> None:
        self._steps = MAX_STEPS
        self._bytes = MAX_BYTES + _BYTES_PER_INPUT_CHAR * num_input_chars
        self._unread = 0
        # The CPU time of this thread: a busy machine does not make an honest template fail.
        self._deadline = time.thread_time() + _cpu_seconds(num_input_chars)

    def step(self, count: int = 1) -> None:
        """Pay for iterations or calls."""
        self._steps -= count
        self._unread += count
        if self._steps < 0:
            raise BudgetExceededError("The chat template loops too long.")
        if self._unread >= _STEPS_BETWEEN_CLOCK_READS:
            self._read_clock()

    def charge(self, num_bytes: int) -> None:
        """Pay for what is about to be built or scanned."""
        self._bytes -= num_bytes
        if self._bytes < 0:
            raise BudgetExceededError("The chat template builds too much text.")
        if num_bytes > _BYTES_BETWEEN_CLOCK_READS:
            self._read_clock()

    def _read_clock(self) -> None:
        self._unread = 0
        if time.thread_time() > self._deadline:
            raise BudgetExceededError("The chat template takes too long.")

    def walk(self, value: Any) -> int:
        """Size of nested data as text, paying a step for each entry that is visited."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, (list, tuple)):
            self.step(len(value))
            return 2 * len(value) + sum(map(self.walk, value))
        if isinstance(value, dict):
            self.step(len(value))
            return sum(self.walk(key) + self.walk(item) + 8 for key, item in value.items())
        if isinstance(value, Namespace):
            raise BudgetExceededError("The chat template prints a namespace.")
        return 24

    def pay_for_call(self, name: str, subject: Any, args: list[Any]) -> None:
        """Pay for a method or filter `name` of `subject`, or a function if that is None."""
        self.step(len(args))
        for value in args:
            self.measure(value)
        if name in _REFUSED_CALLS:
            raise BudgetExceededError(f"Chat templates can't call {name}.")
        if name in _READING_CALLS:
            if name in ("index", "count"):
                self.measure(subject)
            return
        for value in (subject, *args):
            self.charge(size_of(value))
        if name in _NESTED_CALLS:
            self.charge(self.walk(subject))
        elif "join" in name:
            self._pay_for_join([subject, *args])
        elif name in ("format", "format_map"):
            self.pay_for_format(subject, args)
        elif isinstance(subject, str):
            self.charge(_result_size(name, subject, args))
        elif name in _WIDTH_CALLS:
            self.charge(_width(name, args))

    def measure(self, value: Any) -> None:
        """Pay for comparing or hashing `value`, which visits all that is nested in it."""
        if isinstance(value, (list, tuple, dict)):
            self.walk(value)

    def _pay_for_join(self, values: list[Any]) -> None:
        separator = max((len(value) for value in values if isinstance(value, str)), default=0)
        for items in values:
            if isinstance(items, (list, tuple, dict)):
                self.charge(self.walk(items) + separator * len(items))

    def pay_for_format(self, template: Any, args: Any) -> None:
        """Refuse widths of more than 4 digits or out of an argument; pay for what is filled in."""
        if not isinstance(template, str):
            return
        digits = 0
        for char in template:
            digits = digits + 1 if char.isdigit() else 0
            if digits > 4:
                raise BudgetExceededError("The chat template formats with a huge width.")
        for value in _integers(args):
            if abs(value) > MAX_WIDTH and ("*" in template or "{:{" in template):
                raise BudgetExceededError("The chat template formats with a huge width.")
        places = template.count("%") + template.count("{")
        self.charge(len(template) + places * (self.walk(args) + 9_999 * (digits > 0)))

    def pay_for_operator(self, operator: str, left: Any, right: Any) -> None:
        """Pay for `left operator right` of +, *, ** and %."""
        if operator == "%":
            self.pay_for_format(left, right)
        elif operator == "**":
            if not all(
                isinstance(value, (int, float)) and abs(value) < 1e4 for value in (left, right)
            ):
                raise BudgetExceededError("The chat template computes a huge power.")
        elif operator == "+":
            self.charge(size_of(left) + size_of(right))
        else:
            for sequence, count in ((left, right), (right, left)):
                if isinstance(count, int) and not isinstance(sequence, (int, float)):
                    self.charge(size_of(sequence) * max(0, count))


def _cpu_seconds(num_input_chars: int) -> float:
    """VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT can lower the limit, or lift it with 0."""
    timeout = envs.VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT
    if timeout == 0:
        return math.inf
    return min(timeout, MAX_CPU_S + _CPU_S_PER_INPUT_CHAR * num_input_chars)


def size_of(value: Any) -> int:
    """Rough bytes of a copy of `value`."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return 100 * len(value)
    return 8 * len(value) if isinstance(value, Sized) else 0


def _integers(values: Any) -> Iterable[int]:
    if isinstance(values, dict):
        values = list(values.values())
    items = values if isinstance(values, (list, tuple)) else [values]
    return [item for item in items if isinstance(item, int)]


def _width(name: str, args: list[Any]) -> int:
    width = max((abs(value) for value in _integers(args)), default=8)
    text = max((len(value) for value in args if isinstance(value, str)), default=0)
    if width > MAX_WIDTH:
        raise BudgetExceededError(f"The chat template passes {width} to {name}.")
    return width + text


def _result_size(name: str, subject: str, args: list[Any]) -> int:
    """An upper bound of what a method of a string builds beyond a copy."""
    if name == "replace" and len(args) >= 2:
        old, new = str(args[0]), str(args[1])
        return (subject.count(old) if old else len(subject) + 1) * len(new)
    if name in ("indent", "expandtabs"):
        breaks = subject.count("\n" if name == "indent" else "\t")
        return (breaks + 1) * _width(name, args)
    if name in _WIDTH_CALLS:
        return _width(name, args)
    if name in _LISTING_CALLS:
        separator = args[0] if args and isinstance(args[0], str) else ""
        count = subject.count(separator) + 1 if separator else len(subject) // 2
        return _BYTES_PER_SHORT_STRING * count
    return 0
