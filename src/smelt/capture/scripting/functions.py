"""The program's functions, each run as a converted copy that nobody else sees."""

from __future__ import annotations

import functools
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

import torch

from smelt.capture.convert import CannotConvert, convert
from smelt.capture.convert.runtime import Args, Kwargs
from smelt.capture.scripting.domain import DEEP, Open
from smelt.capture.scripting.joining import joined
from smelt.ops.python import in_python

TORCH: Final = f"{Path(torch.__file__).parent.resolve()}/"
"""What the files of torch begin with."""

_SMELT = f"{Path(__file__).resolve().parents[2]}/"
_STDLIB = f"{Path(sysconfig.get_path('stdlib')).resolve()}/"


# torch's Python code that asks tensors for what types may not tell.
_CONVERTED = tuple(
    f"{TORCH}{p}" for p in (
        "nn/", "functional.py", "_tensor.py", "utils/_contextlib.py", "distributions/", "ao/nn/quantized/dynamic/",
    )
)  # fmt: skip


_IN_PYTHON = in_python.__file__
_NOT_CONVERTED = (f"{TORCH}nn/parameter.py", f"{TORCH}nn/init.py")


class Functions:
    """The converted copies of functions."""

    def __init__(self) -> None:
        self.copies: dict[int, tuple[FunctionType, FunctionType, CodeType]] = {}
        self.codes: set[int] = set()
        self.refused: dict[int, CannotConvert] = {}
        self._keep: list[CodeType] = []

    def of(self, function: FunctionType) -> FunctionType:
        """What runs in place of a function."""
        if id(function.__code__) in self.codes or not is_converted(function.__code__.co_filename):
            return function
        known = self.copies.get(id(function))
        if known is not None and known[0] is function and known[2] is function.__code__:
            return known[1]
        try:
            made = convert(function)
        except CannotConvert as refused:
            self.refused[id(function.__code__)] = refused
            return function
        copy = FunctionType(
            made.code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__qualname__ = function.__qualname__
        copy.__dict__.update(function.__dict__)
        copy.__module__ = function.__module__
        self.copies[id(function)] = (function, copy, function.__code__)
        self._add(made.code)
        return copy

    def _add(self, code: CodeType) -> None:
        self._keep.append(code)
        self.codes.add(id(code))
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._add(constant)


@functools.lru_cache(maxsize=4096)
def is_converted(filename: str) -> bool:
    """Whether functions of a file run converted: the user's and libraries' own, and torch's that look at tensors."""
    if filename.startswith(TORCH):
        return filename.startswith(_CONVERTED) and not filename.startswith(_NOT_CONVERTED)
    if filename.startswith(_SMELT) or filename.startswith("<frozen"):
        return filename == _IN_PYTHON
    return not filename.startswith(_STDLIB) or "/site-packages/" in filename


def run_converted(domain: Open, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    """Run a function of the program's as its converted copy. Raises: CannotStage where it calls itself too deep."""
    code = fn.__code__
    domain.depth += 1
    domain.running[code] = domain.running.get(code, 0) + 1
    try:
        if min(domain.running[code], domain.recorder.depth) > domain.most_recursion:
            # As Python would further down, at a depth that depends on who called: what ends it depends on data.
            domain.too_deep += 1
            if domain.too_deep > domain.most_ends:
                domain.cannot(f"{fn.__qualname__} calls itself more than once at each of its levels", DEEP)
            error = RecursionError("maximum recursion depth exceeded")
            domain.session.raised.append(error)
            raise error
        if domain.depth > domain.most_depth:
            domain.cannot(
                f"{fn.__qualname__} calls itself more than {domain.most_depth} deep",
                DEEP,
            )
        run = domain.functions.of(fn)
        return joined(domain, fn, (args, kwargs), lambda: run(*args, **kwargs))
    finally:
        domain.depth -= 1
        domain.running[code] -= 1
        if not domain.running[code]:
            domain.too_deep = 0


def run_builtin(domain: Open, function: Callable[..., object], *args: object) -> object:
    """A builtin as a function of the program's."""
    assert isinstance(function, FunctionType)
    return run_converted(domain, function, args, {})
