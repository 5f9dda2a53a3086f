"""`convert`: a function's code, calling a runtime for whatever could depend on data."""

from __future__ import annotations

import inspect
import weakref
from types import CodeType, FunctionType, MethodType
from typing import Any

from smelt.capture.convert.assemble import assemble
from smelt.capture.convert.errors import CannotConvert, cannot
from smelt.capture.convert.names import Names
from smelt.capture.convert.source import find
from smelt.diag import Span
from smelt.diag.records import distinct_record

_NOT_FUNCTIONS = {
    inspect.CO_GENERATOR: "it is a generator",
    inspect.CO_COROUTINE: "it is a coroutine",
    inspect.CO_ASYNC_GENERATOR: "it is an asynchronous generator",
}


@distinct_record
class Converted:
    """Code that may take the place of the original in any function that has it."""

    code: CodeType
    span: Span


# By identity: code objects of different files may be equal. What cannot be converted is remembered, too.
_known: dict[int, tuple[weakref.ref[CodeType], Converted | CannotConvert]] = {}


def convert(target: CodeType | FunctionType | MethodType) -> Converted:
    """The converted code of a function, made once; converted code is its own. Raises: CannotConvert."""
    function = target.__func__ if isinstance(target, MethodType) else target
    code = function if isinstance(function, CodeType) else getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        raise CannotConvert("it has no Python code", Span(f"<{type(target).__name__}>", 0))
    module = function.__globals__ if isinstance(function, FunctionType) else None
    known = _known.get(id(code))
    if known is None or known[0]() is not code:
        try:
            outcome: Converted | CannotConvert = _convert(code, module)
        except CannotConvert as error:
            outcome = error.with_traceback(None)
        known = _remember(code, outcome)
        if isinstance(outcome, Converted):
            _remember(outcome.code, outcome)
    if isinstance(known[1], CannotConvert):
        raise CannotConvert(known[1].reason, known[1].span)
    if module is not None and "super" in module and "super" in code.co_names:
        raise cannot("its module has a `super` of its own", code)
    return known[1]


def _remember(code: CodeType, outcome: Converted | CannotConvert) -> tuple[weakref.ref[CodeType], Any]:
    key = id(code)
    forget = _known.pop  # held by the callback: at the interpreter's end a module has no names
    known = _known[key] = (weakref.ref(code, lambda _: forget(key, None)), outcome)
    return known


def _convert(code: CodeType, module: dict[str, object] | None) -> Converted:
    for flag, reason in _NOT_FUNCTIONS.items():
        if code.co_flags & flag:
            raise cannot(reason, code)
    if code.co_name.startswith("<") and code.co_name != "<lambda>":
        raise cannot(f"{code.co_name} is a part of the function around it", code)
    if not code.co_flags & inspect.CO_NEWLOCALS:
        raise cannot("it is the body of a class", code)
    node = find(code, module)
    try:
        names = Names(node, code.co_freevars)
        if names.root.refusal is not None:
            raise cannot(names.root.refusal[0], code, names.root.refusal[1])
        new = assemble(node, names, code)
    except RecursionError:
        raise cannot("it is nested too deeply", code) from None
    return Converted(new, Span(code.co_filename, code.co_firstlineno, code.co_qualname))
