"""Puts converted code in place of functions for a while, and finds the functions that run a code object.

The code of a function belongs to the process: while it is swapped, other threads run the converted code, too, with the
plain runtime, so that nothing changes for them but speed. One thread at a time swaps.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from smelt.capture.convert.convert import convert
from smelt.capture.convert.runtime import Runtime, installed

_lock = threading.RLock()
_LOCALS = ".<locals>."


@contextmanager
def swapped(targets: Iterable[FunctionType | MethodType | CodeType], runtime: Runtime) -> Iterator[None]:
    """Runs the block with `runtime` installed and the targets converted; a code object stands for all its functions.

    All targets are converted before any is touched. Raises: CannotConvert.
    """
    with _lock:
        functions: dict[int, FunctionType] = {}
        codes = []
        for target in targets:
            if isinstance(target, CodeType):
                codes.append(target)
            else:
                function = target.__func__ if isinstance(target, MethodType) else target
                assert isinstance(function, FunctionType)
                functions[id(function)] = function
        for function in functions_of(codes):
            functions[id(function)] = function
        news = [(f, convert(f).code) for f in functions.values()]
        olds = [(f, f.__code__) for f in functions.values()]
        try:
            for function, code in news:
                function.__code__ = code
            with installed(runtime):
                yield
        finally:
            for function, code in olds:
                function.__code__ = code


def functions_of(codes: Iterable[CodeType], hints: Iterable[object] = ()) -> list[FunctionType]:
    """The living functions that run one of `codes`, or make functions that do.

    A nested function, a lambda or a comprehension is made anew from the code around it, so the function around it is
    found as well. `hints` are frames, functions, modules or any objects to look at first. What neither they nor the
    modules' names lead to is looked for among all objects, once for all codes.
    """
    wanted = {id(code): code for code in codes}
    if not wanted:
        return []
    found = {id(function): function for function in named_functions(wanted.values(), hints)}
    if any(_LOCALS in c.co_qualname or not _is_found(c, found) for c in wanted.values()):
        found.update((id(function), function) for function in living_functions(wanted.values()))
    return list(found.values())


def living_functions(codes: Iterable[CodeType]) -> list[FunctionType]:
    """The functions that run one of `codes` or make functions that do, by looking at all objects of the process."""
    # Nothing refers back from a code object, nor from the constants that hold it.
    wanted = {id(code): code for code in codes}
    files = {code.co_filename for code in wanted.values()}
    found: dict[int, FunctionType] = {}
    for candidate in gc.get_objects():
        if type(candidate) is FunctionType and candidate.__code__.co_filename in files:
            _take(candidate, wanted, found)
    return list(found.values())


def named_functions(codes: Iterable[CodeType], hints: Iterable[object] = ()) -> list[FunctionType]:
    """Those to which the hints and the modules' names lead."""
    wanted = {id(code): code for code in codes}
    found: dict[int, FunctionType] = {}
    seen: set[int] = set()
    for hint in hints:
        for start in _in_hint(hint):
            _look(start, wanted, found, seen)
    for code in wanted.values():
        for name in _modules_of(len(sys.modules), next(reversed(sys.modules), "")).get(code.co_filename, ()):
            held = getattr(sys.modules.get(name), "__dict__", None)
            if held is not None:
                _resolve(held, code.co_qualname, wanted, found, seen)
    return list(found.values())


@functools.lru_cache(maxsize=1)
def _modules_of(count: int, last: str) -> dict[str, list[str]]:
    """The names of the modules of each file; known again while as many are there, and the last one is the same.

    Should that not tell (a module was put in another's place), a function is found among all objects instead.
    """
    found: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            found.setdefault(file, []).append(name)
    return found


def _is_found(code: CodeType, found: dict[int, FunctionType]) -> bool:
    return any(f.__code__ is code for f in found.values())


def _contains(code: CodeType, wanted: dict[int, CodeType]) -> bool:
    """Whether a code object is wanted, or makes one that is."""
    if id(code) in wanted:
        return True
    return any(isinstance(c, CodeType) and _contains(c, wanted) for c in code.co_consts)


def _take(function: FunctionType, wanted: dict[int, CodeType], found: dict[int, FunctionType]) -> None:
    if _contains(function.__code__, wanted):
        found[id(function)] = function


def _resolve(
    names: dict[str, object],
    qualname: str,
    wanted: dict[int, CodeType],
    found: dict[int, FunctionType],
    seen: set[int],
) -> None:
    """Follows a qualified name up to the first function in it."""
    value: object = None
    for part in qualname.partition(_LOCALS)[0].split("."):
        if part not in names:
            return
        value = names[part]
        names = dict(vars(value)) if isinstance(value, type) else {}
    _look(value, wanted, found, seen)


def _look(value: Any, wanted: dict[int, CodeType], found: dict[int, FunctionType], seen: set[int]) -> None:
    """A value and what it wraps: decorated functions, methods, properties, closures."""
    left = [value]
    while left:
        at = left.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        if isinstance(at, FunctionType):
            _take(at, wanted, found)
            for cell in at.__closure__ or ():
                try:
                    left.append(cell.cell_contents)
                except ValueError:
                    continue
        elif isinstance(at, MethodType | staticmethod | classmethod):
            left.append(at.__func__)
        elif isinstance(at, property):
            left.extend(f for f in (at.fget, at.fset, at.fdel) if f is not None)
        elif isinstance(at, functools.partial | functools.cached_property):
            left.append(at.func)
        if "__wrapped__" in getattr(at, "__dict__", ()):
            left.append(at.__wrapped__)


def _in_hint(hint: object) -> list[object]:
    if isinstance(hint, FrameType):
        self = hint.f_locals.get("self")
        return [*hint.f_locals.values(), *(() if self is None else _in_class(type(self)))]
    if isinstance(hint, ModuleType):
        return list(vars(hint).values())
    if isinstance(hint, type):
        return _in_class(hint)
    return [hint, *_in_class(type(hint))]


def _in_class(cls: type) -> list[object]:
    return [value for base in cls.__mro__ for value in list(vars(base).values())]
