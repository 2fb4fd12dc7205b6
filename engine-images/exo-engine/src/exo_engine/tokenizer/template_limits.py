"""A Jinja sandbox in which a template can use up neither memory nor time.

Jinja's own sandbox keeps a template from reaching the machine, but lets it write `"a" * 10**10`. Here
everything that makes a value larger than what it was made from (operators, string methods, filters,
output) is measured beforehand, and loops and macros look at the clock. `chat_template` builds its
environment from this and opens a `budget` around each rendering.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import jinja2
import jinja2.compiler
import jinja2.nodes
import jinja2.sandbox

MAX_SECONDS = 3.0
"""Of the processor's time, so that a busy machine fails nothing."""
MAX_SIZE = 16_000_000
"""Characters or items of one value; a context of a million tokens is about 4,000,000."""
MAX_TOTAL = 16 * MAX_SIZE
"""Of all values together, for text that grows piece by piece."""
_MAX_COUNT = 10_000
"""Widths, indents and the like."""
_MAX_BITS = 10_000
_GROWING_FILTERS = ("batch", "center", "format", "indent", "round", "slice", "tojson", "wordwrap")
_TEXT_FILTERS = (
    "capitalize", "e", "escape", "forceescape", "join", "lower", "pprint", "replace", "string",
    "striptags", "sum", "title", "trim", "truncate", "upper", "urlencode", "urlize", "xmlattr",
)  # fmt: skip
"""They write out whatever they are given, all that is nested in it too."""
_LIST_FILTERS = ("list", "sort", "unique")
_GROWING_METHODS = ("center", "expandtabs", "ljust", "rjust", "to_bytes", "zfill")
_LARGE_WIDTH = re.compile(r"\d{5}")


class TemplateTooCostly(Exception):
    """A template went over its budget."""


class _Budget:
    def __init__(self) -> None:
        self.deadline = time.thread_time() + MAX_SECONDS
        self.num_left = MAX_TOTAL


_budget: ContextVar[_Budget | None] = ContextVar("template_budget", default=None)


@contextlib.contextmanager
def budget() -> Iterator[None]:
    """Limit what templates do inside the block, in this thread."""
    token = _budget.set(_Budget())
    try:
        yield
    finally:
        _budget.reset(token)


def render(template: jinja2.Template, scope: Mapping[str, Any]) -> str:
    """Render a template of a `BoundedEnvironment`.

    Raises:
        TemplateTooCostly: it went over its budget.
    """
    with budget():
        pieces = []
        size = 0
        for piece in template.generate(scope):
            size += len(piece)
            _check_size(size)
            pieces.append(piece)
        return "".join(pieces)


class _CodeGenerator(jinja2.compiler.CodeGenerator):
    def visit_Concat(  # noqa: N802  (Jinja's name for it)
        self, node: jinja2.nodes.Concat, frame: jinja2.compiler.Frame
    ) -> None:
        """Let `~` join within limits."""
        self.write("environment.join_within_limits((")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("))")


class BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The immutable sandbox, with limits."""

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_measured, **options)
        del self.globals["lipsum"]
        for name in (*_GROWING_FILTERS, *_TEXT_FILTERS, *_LIST_FILTERS):
            self.filters[name] = bounded_filter(name, self.filters[name])

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Compute an operator whose result may be large."""
        _charge(_size_of_result(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call something; methods of strings and numbers within limits."""
        # The sandbox wraps `format`.
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(owner, str | bytes | int):
            args = tuple(_settled(each) for each in args)
            _check_method(owner, str(getattr(__obj, "__name__", "")), args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def tick(self) -> str:
        """Look at the clock; called by every turn of a loop and every call of a macro."""
        current = _budget.get()
        if current is not None and time.thread_time() > current.deadline:
            raise TemplateTooCostly(f"it takes more than {MAX_SECONDS:g} seconds")
        return ""

    def join_within_limits(self, values: Iterable[Any]) -> str:
        """Compute `~`."""
        parts = list(values)
        _charge(_size(parts))
        return "".join(map(str, parts))

    def _generate(
        self,
        source: jinja2.nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        nodes: list[Any] = [
            *source.find_all(jinja2.nodes.For),
            *source.find_all(jinja2.nodes.Macro),
        ]
        for node in nodes:
            attribute = jinja2.nodes.EnvironmentAttribute("tick")
            tick = jinja2.nodes.ExprStmt(jinja2.nodes.Call(attribute, [], [], None, None))
            node.body.insert(0, tick.set_lineno(node.lineno).set_environment(self))
        return super()._generate(source, name, filename, defer_init)


def bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that refuses to make something too large."""
    takes_context = hasattr(function, "jinja_pass_arg")

    @functools.wraps(function)  # keeps Jinja's own marks on the function
    def call(*words: Any, **named: Any) -> Any:
        head, rest = (words[:1], words[1:]) if takes_context else ((), words)
        rest = tuple(_settled(each) for each in rest)
        value, args = (rest[0], rest[1:]) if rest else (named.get("value"), ())
        if name in _GROWING_FILTERS:
            _check_counts([*args, *named.values()])
        if name not in _LIST_FILTERS:
            _size([value, *args, *named.values()])
        if name == "format":
            _charge(_size_of_format(str(value), (*args, named)))
        elif name == "replace":
            _charge(_size_of_replace(str(value), [*args, *named.values()]))
        elif name == "join":
            items = list(value) if isinstance(value, Iterable) else []
            separators = sum(_size(each) for each in (*args, *named.values()))
            _check_size(_size(value) + len(items) * separators)
        result = function(*head, *rest, **named)
        _charge(len(result) if isinstance(result, str | list) else 0)
        return result

    return call


def _check_method(owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    values = [*args, *kwargs.values()]
    _size(values)
    if name in _GROWING_METHODS:
        _check_counts(values)
        tabs = owner.count("\t") if name == "expandtabs" and isinstance(owner, str) else 1
        _charge(_size(owner) + _MAX_COUNT * tabs)
    elif name == "replace":
        _charge(_size_of_replace(str(owner), values))
    elif name == "join":
        _charge(_size(values) + len(owner) * sum(len(each) for each in args))
    elif name == "translate":
        table = args[0] if args and isinstance(args[0], Mapping) else {}
        _charge(_size(owner) * max([1, *(_size(each) for each in table.values())]))
    elif name in ("format", "format_map"):
        _charge(_size_of_format(str(owner), (*args, kwargs)))
    else:
        _charge(_size(owner) if isinstance(owner, str) else 0)


def _size_of_result(operator: str, left: Any, right: Any) -> int:
    """Return how large the result of an operator becomes."""
    if operator == "%":
        return _size_of_format(left, (right,)) if isinstance(left, str | bytes) else 0
    if operator == "+":
        return sum(len(each) for each in (left, right) if isinstance(each, _SIZED))
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        bits = bits * max(0, right) if operator == "**" else bits + right.bit_length()
        if bits > _MAX_BITS:
            raise TemplateTooCostly("it computes a number of thousands of digits")
        return 0
    for values, count in ((left, right), (right, left)):
        if isinstance(values, str | bytes | list | tuple) and isinstance(count, int):
            return _size(values) * max(0, count)
    return 0


def _size_of_replace(text: str, args: list[Any]) -> int:
    old, new = (str(each) for each in [*args, "", ""][:2])
    return len(text) + text.count(old) * len(new)


def _size_of_format(form: Any, args: tuple[Any, ...]) -> int:
    text = form.decode("latin-1") if isinstance(form, bytes) else str(form)
    if _LARGE_WIDTH.search(text) or "*" in text or re.search(r"{[^}]*{", text):
        _check_counts(_leaves(args))
        if _LARGE_WIDTH.search(text):
            raise TemplateTooCostly("it formats text with a width of more than four digits")
    # Any field may show any of the values.
    return len(text) + (text.count("%") + text.count("{")) * (_size(args) + _MAX_COUNT)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for each in values:
        if isinstance(each, Mapping):
            yield from _leaves(each.values())
        elif isinstance(each, list | tuple):
            yield from _leaves(each)
        else:
            yield each


def _check_counts(values: Iterable[Any]) -> None:
    if any(isinstance(each, int | float) and abs(each) > _MAX_COUNT for each in values):
        raise TemplateTooCostly(f"it asks for a width or a count of more than {_MAX_COUNT}")


_LAZY = (types.GeneratorType, map, filter, zip, reversed)
_SIZED = (str, bytes, list, tuple, dict)


def _size(value: Any) -> int:
    """Return about how long a value is when it is written out; stops counting when too long."""
    total, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str | bytes):
            total += len(each)
        elif isinstance(each, dict):
            total += len(each)
            waiting += [*each, *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            total += len(each)
            waiting += each
        else:
            total += 1
        _check_size(total)
    return total


def _settled(value: Any) -> Any:
    """Return a list of what a generator yields, so that it can be measured and used."""
    if not isinstance(value, _LAZY):
        return value
    items = []
    for each in value:
        items.append(each)
        if not len(items) % 1000:
            _check_size(len(items))
    return items


def _measured(value: Any) -> Any:
    """Check what is about to be put out."""
    _charge(_size(value))
    return value


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise TemplateTooCostly(f"it makes a text or list of more than {MAX_SIZE} elements")


def _charge(size: int) -> None:
    _check_size(size)
    current = _budget.get()
    if current is None:  # folding constants while a template is compiled
        return
    current.num_left -= size
    if current.num_left < 0:
        raise TemplateTooCostly(f"it makes more than {MAX_TOTAL} characters of text")
