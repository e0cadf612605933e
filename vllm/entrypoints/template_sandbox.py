"""A jinja environment for chat templates of unknown origin: what they may call, metered.

Every loop iteration and call costs a step, and whatever builds text or lists is paid for before it
runs (`template_budget`). Invariant: a render ends within its budget whatever the template does, and
reaches nothing but the values it was given.
"""

import functools
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.environment import Environment
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from vllm.entrypoints.template_budget import (
    MAX_NUMBER,
    MAX_WIDTH,
    Budget,
    BudgetExceededError,
    size_of,
    words,
)

_FILTERS = words(
    "abs attr batch capitalize center count d default dictsort e escape first float format groupby "
    "indent int items join last length list lower map max min reject rejectattr replace reverse "
    "round safe select selectattr slice sort string sum title trim truncate unique upper wordcount"
)
_COMPARING_TESTS = words("== != < > <= >= eq equalto ne lt lessthan gt greaterthan le ge in")
_MAX_DATE_PATTERN = 256


class _Counted:
    """The items of a `for`, each of which costs a step."""

    def __init__(self, items: Iterable[Any], budget: Budget) -> None:
        self._items = items
        self._budget = budget

    def __iter__(self) -> Iterator[Any]:
        step = self._budget.step
        for item in self._items:
            step()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]


class _Metered(NodeTransformer):
    """Sends the expressions that jinja evaluates on its own through the environment."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _through("counted", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _through("joined", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _through("measured", node.expr)
        for operand in node.ops:
            operand.expr = _through("measured", operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _through("copied", node.node)
        else:
            node.arg = _through("measured", node.arg)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = _through("measured", node.key)
        return node


def _through(method: str, *expressions: Any) -> nodes.Expr:
    """A call of a method of the environment; a lone constant needs none."""
    first: nodes.Expr = expressions[0]
    if len(expressions) == 1 and isinstance(first, nodes.Const):
        return first
    called = nodes.EnvironmentAttribute(method)
    call = nodes.Call(called, list(expressions), [], None, None)
    call.set_lineno(first.lineno)
    if first.environment is not None:
        call.set_environment(first.environment)
    return call


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}` marks what a model wrote; it renders its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The names that chat templates expect, each one metered."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[_Generation, loopcontrols],
            finalize=self._printed,
        )
        self._local = threading.local()
        self.filters = {name: self._metered(name, self.filters[name]) for name in _FILTERS}
        self.filters["tojson"] = self._to_json
        for name in _COMPARING_TESTS:
            self.tests[name] = self._measured_test(self.tests[name])
        self.globals = {
            "range": _range,
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        self.concat = self._concat  # type: ignore[method-assign]

    def compile_chat_template(self, source: str) -> jinja2.Template:
        """Compile within a budget of its own; raises jinja2.TemplateError."""
        self.start(len(source))
        return self.from_string(source)

    def start(self, num_input_chars: int) -> None:
        """Give the next compilation or render of this thread a full budget."""
        self._local.budget = Budget(num_input_chars)

    @property
    def budget(self) -> Budget:
        """The budget of what runs in this thread."""
        budget: Budget | None = getattr(self._local, "budget", None)
        if budget is None:
            budget = self._local.budget = Budget()
        return budget

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Metered().visit(source), *args, **kwargs)

    # ---- called by the code that _Metered writes

    def counted(self, items: Any) -> Any:
        """What a `for` iterates over."""
        if isinstance(items, Undefined):
            return items
        counted = _Counted(items, self.budget)
        return counted if isinstance(items, Sized) else iter(counted)

    def joined(self, *values: Any) -> str:
        """`a ~ b`."""
        return self._concat(
            [value if isinstance(value, str) else self._text(value) for value in values]
        )

    def measured(self, value: Any) -> Any:
        """An operand of a comparison, or a key."""
        self.budget.measure(value)
        return value

    def copied(self, value: Any) -> Any:
        """A sequence that is about to be sliced."""
        self.budget.charge(size_of(value))
        return value

    # ---- called by jinja

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Any call in a template."""
        __self.budget.step()
        owner = _owner(__obj)
        if owner is __self:
            return __obj(*args)
        if isinstance(__obj, LoopContext):
            args = (__self.counted(args[0]), *args[1:])
        elif not isinstance(__obj, Macro):
            given = [value for key, value in kwargs.items() if not key.startswith("_")]
            name = getattr(__obj, "__name__", "")
            __self.budget.pay_for_call(name, owner, [*args, *given])
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators of `intercepted_binops`."""
        self.budget.pay_for_operator(operator, left, right)
        value = super().call_binop(context, operator, left, right)
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise BudgetExceededError("The chat template computes a huge number.")
        return value

    def _concat(self, pieces: Iterable[str]) -> str:
        charge, kept = self.budget.charge, []
        for piece in pieces:
            charge(len(piece))
            kept.append(piece)
        return "".join(kept)

    def _printed(self, value: Any) -> Any:
        """`{{ value }}`."""
        return value if isinstance(value, (str, Undefined)) else self._text(value)

    def _text(self, value: Any) -> str:
        if not isinstance(value, Undefined):
            self.budget.charge(self.budget.walk(value))
        return str(value)

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as Transformers writes it in templates: no HTML escapes."""
        if isinstance(indent, int) and indent > 64:
            raise BudgetExceededError(f"The chat template passes {indent} to tojson.")
        self.budget.charge(self.budget.walk(value))
        options: dict[str, Any] = {"indent": indent, "separators": separators}
        return json.dumps(value, ensure_ascii=ensure_ascii, sort_keys=sort_keys, **options)

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that pays for what it reads and for what it returns."""

        @functools.wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            first = 1 if isinstance(args[0], (Environment, EvalContext, Context)) else 0
            self.budget.step()
            self.budget.pay_for_call(name, args[first], [*args[first + 1 :], *kwargs.values()])
            value = function(*args, **kwargs)
            if isinstance(value, Sized):
                self.budget.charge(len(value))
            return value

        return metered

    def _measured_test(self, function: Any) -> Callable[[Any, Any], Any]:
        """A test such as `is eq(x)`, which compares."""

        def measured(left: Any, right: Any) -> Any:
            return function(self.measured(left), self.measured(right))

        return measured


def _owner(function: Any) -> Any:
    """The object whose method this is; the sandbox wraps `str.format` once more."""
    wrapped = getattr(function, "__wrapped__", function)
    owner = getattr(wrapped, "__self__", None)
    return None if isinstance(owner, type) else owner


def _range(*args: int) -> range:
    items = range(*args)
    if len(items) > MAX_WIDTH:
        raise BudgetExceededError(f"The chat template asks for a range of {len(items)}.")
    return items


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    if len(pattern) > _MAX_DATE_PATTERN:
        raise BudgetExceededError("The chat template uses a huge date pattern.")
    return datetime.now().strftime(pattern)
