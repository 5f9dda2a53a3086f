"""Runs functions as they are and converted, and tells all that can be told of a run."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from copy import deepcopy
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any

from smelt.capture.convert import UNDEF, PlainRuntime, Runtime, convert, installed


@dataclass
class Outcome:
    """A run: what came back or was raised (type, message, the user's lines it passed), printed, left in arguments."""

    value: Any
    error: Any
    lines: list[tuple[str, int]]
    printed: str
    args: Any


def run(fn: Callable[..., Any], args: tuple[Any, ...], file: str) -> Outcome:
    """One call. Lines are told without the repetitions that functions of the conversion make of a statement."""
    args = deepcopy(args)
    out = io.StringIO()
    value = error = None
    lines: list[tuple[str, int]] = []
    with redirect_stdout(out), each_instruction_alone():
        try:
            value = fn(*args)
        except Exception as raised:
            error = (type(raised), str(raised), type(raised.__cause__), type(raised.__context__))
            for frame in traceback.extract_tb(raised.__traceback__):
                if frame.filename == file:
                    lines.append((frame.name, frame.lineno or 0))
    return Outcome(value, error, lines, out.getvalue(), args)


@contextmanager
def each_instruction_alone() -> Iterator[None]:
    """CPython 3.11 fuses a store with the load behind it once code is warm, and tells the store's line of a load that
    fails, so that one and the same function tells two lines. Traced code runs instruction by instruction."""

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def told(value: Any) -> Any:
    """A value for comparison: functions by name, -0.0 apart from 0.0, nan equal to itself."""
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(told(v) for v in value))
    if isinstance(value, dict):
        return ("dict", *((told(k), told(v)) for k, v in value.items()))
    if callable(value):
        return (type(value).__name__, getattr(value, "__qualname__", None), getattr(value, "__doc__", None))
    return (type(value).__name__, repr(value))


def assert_equal(plain: Outcome, converted: Outcome, where: str) -> None:
    assert converted.error == plain.error, where
    assert told(converted.value) == told(plain.value), where
    assert converted.printed == plain.printed, where
    assert told(converted.args) == told(plain.args), where
    # A statement's arm is a function of its own, called at the statement's line: the lines that Python tells are among
    # these, and the last is the same.
    assert converted.lines[-1:] == plain.lines[-1:], where
    left = iter(converted.lines)
    assert all(line in left for line in plain.lines), where


@contextmanager
def as_converted(fn: FunctionType, runtime: Runtime):
    """`fn` with its converted code."""
    old, new = fn.__code__, convert(fn).code
    assert new.co_freevars == old.co_freevars
    assert (
        new.co_varnames[: new.co_argcount + new.co_kwonlyargcount]
        == old.co_varnames[: old.co_argcount + old.co_kwonlyargcount]
    )
    assert (new.co_name, new.co_qualname, new.co_filename, new.co_firstlineno, new.co_flags) == (
        old.co_name, old.co_qualname, old.co_filename, old.co_firstlineno, old.co_flags,
    )  # fmt: skip
    fn.__code__ = new
    try:
        with installed(runtime):
            yield fn
    finally:
        fn.__code__ = old


class Scrambling(PlainRuntime):
    """Runs both arms of every `if`, the other one first and for nothing: what it rebinds is put back."""

    def if_(self, at, test, then, orelse, names, get, set):
        assert len(names) == len({*names})
        chosen, other = (then, orelse) if test else (orelse, then)
        before = get()
        assert len(before) == len(names)
        with suppress(Exception):
            other()
        set(before)
        assert all(a is b for a, b in zip(get(), before, strict=True))
        chosen()
        after = get()
        set(tuple(UNDEF for _ in names))
        assert all(value is UNDEF for value in get())
        set(after)


class Lowering(PlainRuntime):
    """Not the plain runtime, so that generator expressions are lowered."""
