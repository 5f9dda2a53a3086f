"""Late calls: functions that are asked again at each tuple of sizes, with any structure around their numbers.

A structure is taken apart into a template, with holes for the numbers that depend on sizes, and these numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from smelt.diag.records import record
from smelt.ir import size_terms as terms
from smelt.ir.size_numbers import Size, SizeFloat
from smelt.ir.size_trace import INFINITY, Bounds, Late, LateCall, SizeLeak, Trace


@record
class Hole:
    """Where a number stands that depends on sizes."""


@record
class Plain:
    """A constant with its type: 1, 1.0 and True are equal, and not the same."""

    kind: type
    value: Any


@record
class Group:
    """A list or a mapping (of the keys), or a dataclass (the constant it is like, for what is no field)."""

    like: Any
    parts: tuple[Any, ...]


_HOLE = Hole()


_NAMES: dict[type, tuple[str, ...] | None] = {}


def field_names(kind: type) -> tuple[str, ...] | None:
    """The fields that a dataclass is made of; None for any other type."""
    if kind not in _NAMES:
        _NAMES[kind] = tuple(field.name for field in fields(kind) if field.init) if is_dataclass(kind) else None
    return _NAMES[kind]


def stripped(x: Any, numbers: list[Any]) -> Any:
    """The template of a structure; `numbers` gets its sizes, in order."""
    kind = type(x)
    if kind is Size or kind is SizeFloat:
        numbers.append(x)
        return _HOLE
    if kind is tuple:
        return tuple([stripped(y, numbers) for y in x])
    if kind is int or kind is str or x is None:
        return x
    if kind is float or kind is bool:
        return Plain(kind, x)
    if kind is list:
        return Group(list, tuple([stripped(y, numbers) for y in x]))
    if kind is dict:
        return Group(tuple(x), tuple([stripped(y, numbers) for y in x.values()]))
    names = field_names(kind)
    if names is not None:
        before = len(numbers)
        parts = tuple([(name, stripped(getattr(x, name), numbers)) for name in names])
        # One without sizes stands for itself.
        return x if len(numbers) == before else Group(kind, parts)
    return x


def filled(template: Any, numbers: Iterator[Any]) -> Any:
    """The structure again, with numbers in the holes."""
    kind = type(template)
    if kind is Hole:
        return next(numbers)
    if kind is tuple:
        return tuple([filled(part, numbers) for part in template])
    if kind is Plain:
        return template.value
    if kind is Group:
        if template.like is list:
            return [filled(part, numbers) for part in template.parts]
        if type(template.like) is tuple:
            return {key: filled(part, numbers) for key, part in zip(template.like, template.parts, strict=True)}
        return template.like(**{name: filled(part, numbers) for name, part in template.parts})
    return template


@record
class Applied:
    """A late function on the numbers of its holes alone, giving those of its result."""

    function: Callable[..., Any]
    template: Any
    is_float: bool
    low: float
    result: Any = None
    kinds: tuple[type, ...] = ()

    def raw(self, numbers: Iterator[Any]) -> tuple[Any, list[Any]]:
        args, kwargs = filled(self.template, numbers)
        found: list[Any] = []
        return _taken(self.function(*args, **kwargs), found, self.is_float), found

    def __call__(self, *numbers: Any) -> tuple[Any, ...]:
        template, found = self.raw(iter(numbers))
        if template != self.result or tuple(map(type, found)) != self.kinds:
            raise SizeLeak(f"{self.function.__qualname__}{numbers} gives {found} in another structure")
        for number in found:
            if number < self.low and type(number) is int:
                raise SizeLeak(f"{self.function.__qualname__}{numbers} gives {number}, less than {self.low}")
        return tuple(found)


def _taken(x: Any, numbers: list[Any], is_float: bool) -> Any:
    """The template of a result: all its numbers are holes."""
    kind = type(x)
    if kind is int or kind is float:
        numbers.append(float(x) if is_float else x)
        return _HOLE
    if kind is bool:
        raise TypeError("a late function may not give a bool: it would be no word")
    if kind is tuple:
        return tuple([_taken(y, numbers, is_float) for y in x])
    if kind is list:
        return Group(list, tuple([_taken(y, numbers, is_float) for y in x]))
    names = field_names(kind)
    if names is not None:
        parts = tuple([(name, _taken(getattr(x, name), numbers, is_float)) for name in names])
        return Group(kind, parts)
    return x


def call_late(
    trace: Trace,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    bounds: Bounds,
    kwargs: Mapping[str, Any] | None = None,
    is_float: bool = False,
) -> Any:
    """The results of a function as terms of the trace; its plain results where no argument depends on sizes."""
    operands: list[Any] = []
    template = stripped((args, dict(kwargs or {})), operands)
    if not operands:
        return function(*args, **(kwargs or {}))
    exprs = tuple([x.poly if type(x) is Size else x.expr for x in operands])
    are_float = tuple([type(x) is SizeFloat for x in operands])
    for x in operands:
        if x.trace is not trace:
            raise x.trace.leak(f"{x} (in another trace)")
    key = (function, template, exprs, are_float)
    known = trace.call_ids.get(key)
    if known is None:
        applied = Applied(function, template, is_float, bounds[0])
        result, found = applied.raw(iter([x.value for x in operands]))
        applied = replace(applied, result=result, kinds=tuple(map(type, found)))
        name = f"{function.__module__}.{function.__qualname__}{template}"
        known = trace.call_ids[key] = len(trace.calls)
        trace.calls.append(LateCall(applied, exprs, are_float, tuple(found), name))
    call = trace.calls[known]
    applied = call.function  # type: ignore[assignment]
    terms_made: list[Any] = []
    for leaf, number in enumerate(call.leaves):
        if type(number) is int:
            index = trace.atom(Late(known, leaf), number, bounds)
            terms_made.append(Size(trace, terms.atom(index), number))
        else:
            index = trace.atom(Late(known, leaf), number, (-INFINITY, INFINITY))
            terms_made.append(SizeFloat(trace, ("atom", index), number, (-INFINITY, INFINITY)))
    return filled(applied.result, iter(terms_made))
