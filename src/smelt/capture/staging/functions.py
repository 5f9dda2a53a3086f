"""The functions that a staged run needs converted: found by their code, and installed for the time of the run."""

from __future__ import annotations

import contextlib
import dis
import gc
import threading
from collections.abc import Iterator
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FunctionType

from smelt.capture.convert import CannotConvert, Converted, convert
from smelt.capture.spans import is_users

_lock = threading.RLock()


class Functions:
    """Functions to convert; what could not be converted is remembered."""

    def __init__(self) -> None:
        self.converted: dict[int, tuple[FunctionType, Converted]] = {}
        self.refused: dict[CodeType, str] = {}
        self.codes: set[CodeType] = set()
        self._asked: set[CodeType] = set()

    def can(self, code: CodeType) -> bool:
        """Whether a code object that runs now can still be converted."""
        return (
            code not in self.codes
            and code not in self.refused
            and code not in self._asked
            and is_users(code.co_filename)
        )

    def want(self, code: CodeType) -> bool:
        """Convert the functions that run a code object; whether there is one more than before."""
        if code in self._asked or code in self.codes:
            return False
        self._asked.add(code)
        found = False
        for function in _functions_of(code):
            if id(function) in self.converted:
                continue
            try:
                made = convert(function)
            except CannotConvert as refused:
                self.refused[code] = refused.reason
                continue
            self.converted[id(function)] = (function, made)
            as_before = set(_all_codes(function.__code__))
            self.codes.update(c for c in _all_codes(made.code) if c not in as_before or _asks_nothing(c))
            found = True
        if not found:
            self.refused.setdefault(code, "no function with this code was found")
        return found

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """The functions run their converted code in the block."""
        with _lock:
            originals = [(function, function.__code__) for function, _ in self.converted.values()]
            try:
                for function, made in self.converted.values():
                    function.__code__ = made.code
                yield
            finally:
                for function, code in originals:
                    function.__code__ = code


def _asks_nothing(code: CodeType) -> bool:
    """Whether code that conversion left as it was asks nothing of a value (generators and methods are left, too)."""
    if code.co_names or code.co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR):
        return False
    return all(instruction.opname != "IS_OP" for instruction in dis.get_instructions(code))


def _all_codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_codes(constant)


def _functions_of(code: CodeType) -> list[FunctionType]:
    """The functions that run a code object, and those in whose code the function is made anew."""
    # By looking at all functions: nothing refers back from a code object, nor from the constants that hold it.
    return [
        found
        for found in gc.get_objects()
        if type(found) is FunctionType
        and found.__code__.co_filename == code.co_filename
        and any(inner is code for inner in _all_codes(found.__code__))
    ]
