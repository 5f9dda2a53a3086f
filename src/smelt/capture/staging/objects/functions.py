"""The functions that a staged run needs converted: found by their code, and installed for the time of the run."""

from __future__ import annotations

import contextlib
import dis
import threading
from collections.abc import Iterable, Iterator
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FunctionType

import torch

from smelt.capture.convert import CannotConvert, Converted, convert, living_functions, named_functions
from smelt.capture.recording.spans import is_users

_lock = threading.RLock()


# Functions that nobody holds: the one around it makes one at each use.
_COMPREHENSIONS = frozenset(("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"))


# Losses compare the sizes of their operands; distributions check their arguments, and say which do not fit; recurrent
# layers compare the number of packed sequences with that of their states, and what unpacks them the number of steps.
# Optimizers compute with the number of steps that they count in tensors; who scales their gradients asks whether one
# overflowed.
_OF_TORCH = (
    torch.nn.functional.mse_loss.__code__.co_filename,
    *torch.distributions.__path__,
    torch.nn.utils.rnn.pad_packed_sequence.__code__.co_filename,
    torch.nn.GRU.forward.__code__.co_filename,
    *torch.optim.__path__,
    torch.amp.GradScaler.step.__code__.co_filename,
)


# Python over a condition and a message, both of which may depend on data.
_CHECKS = frozenset(
    function.__code__
    for name in ("_check_with", "_check_tensor_all_with")
    if isinstance(function := getattr(torch, name, None), FunctionType)
)


class Functions:
    """Functions to convert; what could not be converted is remembered.

    reached: functions that the program holds. They and the names of modules are asked first for a function that runs
    some code; all objects of the process only where neither knows one, or where that code asks once more.
    """

    def __init__(self, reached: Iterable[FunctionType] = ()) -> None:
        self.converted: dict[int, tuple[FunctionType, Converted]] = {}
        self.refused: dict[CodeType, str] = {}
        self.codes: set[CodeType] = set()
        self._reached = tuple(reached)
        self._near: set[CodeType] = set()
        self._asked: set[CodeType] = set()

    def can(self, code: CodeType) -> bool:
        """Whether a code object that runs now can still be converted."""
        return (
            code not in self.codes
            and code not in self.refused
            and code not in self._asked
            and (is_users(code.co_filename) or code in _CHECKS or code.co_filename.startswith(_OF_TORCH))
        )

    def want(self, code: CodeType) -> bool:
        """Convert the functions that run a code object; whether there is one more than before."""
        if code in self._asked or code in self.codes:
            return False
        if code not in self._near:
            self._near.add(code)
            if self._convert(code, self._functions_near(code)):
                return True
            if code in self.refused:
                return False
        self._asked.add(code)
        found = self._convert(code, living_functions([code]))
        if not found:
            self.refused.setdefault(code, "no function with this code was found")
        return found

    def has(self, code: CodeType) -> bool:
        """Whether what runs a code object is converted; a generator is not, with the function around it."""
        around = [made.code for function, made in self.converted.values() if _runs(function, code)]
        return bool(around) and not any(code in _all_codes(made) for made in around)

    def _functions_near(self, code: CodeType) -> list[FunctionType]:
        """Functions that run a code object or make one that does, as far as names and the program lead to them."""
        known = {id(function): function for function in named_functions([code])}
        known.update((id(f), f) for f in self._reached if _runs(f, code))
        found = list(known.values())
        is_whole = code.co_name in _COMPREHENSIONS or any(function.__code__ is code for function in found)
        return found if is_whole else []

    def _convert(self, code: CodeType, functions: Iterable[FunctionType]) -> bool:
        """Convert those that are not yet; whether there were any."""
        found = False
        for function in functions:
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


def _runs(function: FunctionType, code: CodeType) -> bool:
    """Whether a function runs a code object, or makes functions that do."""
    outer = function.__code__
    return outer.co_filename == code.co_filename and any(inner is code for inner in _all_codes(outer))
