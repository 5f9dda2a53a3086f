"""Whose an error is that comes up in a scripted run: the program's own, which it may catch, or one of Smelt's steps.

    len(5)      Smelt calls `len` for the program: the TypeError is the program's, as in eager
    x + y       an operator that fails within Smelt's rules: the run ends, whatever the program catches

Invariant: a program catches no error that it would not meet in eager.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, TracebackType

from smelt.capture.convert import helpers
from smelt.capture.convert.runtime import PlainRuntime
from smelt.capture.scripting import builtins, calls, functions, quiet
from smelt.capture.scripting.domain import Open
from smelt.capture.scripting.recorder import OpenOperators
from smelt.capture.scripting.values import tensors
from smelt.capture.staging import calls as staged
from smelt.capture.staging import texts
from smelt.capture.staging.fakes import patches, symbols
from smelt.capture.staging.flow import choices, control, iterables, loop_statements
from smelt.capture.staging.flow.branches import is_raised_by_user
from smelt.ops.python import in_python

Doer = type | Callable[..., object]

_SMELT = f"{Path(__file__).resolve().parents[2]}/"
_STAND_IN = re.compile(r"\bFakeTensor\b")
_STAGED_NUMBER = re.compile(r"must be (bool|int|float|complex|str), not \1\b")


def codes_of(*doers: Doer) -> frozenset[CodeType]:
    """The code of functions, of the methods of classes, of what they wrap, and of all that is defined in them."""
    return frozenset(code for doer in doers for function in _functions_of(doer) for code in _nested(function.__code__))


def _functions_of(doer: Doer) -> Iterator[FunctionType]:
    if isinstance(doer, FunctionType):
        yield doer
        for cell in doer.__closure__ or ():
            if isinstance(cell.cell_contents, FunctionType):
                yield cell.cell_contents
    elif isinstance(doer, type):
        for found in vars(doer).values():
            method = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
            if isinstance(method, FunctionType):
                yield from _functions_of(method)
    else:
        raise TypeError(f"{doer!r} is neither a function nor a class of Python's")


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


# Where Smelt does for the program what Python does: calls something of C's, compares, reads an attribute. What is
# raised there is what Python raises. By kind: runtimes, builtins' handlers, staged values, what torch's methods are
# replaced by.
_DOERS = codes_of(
    PlainRuntime, control.StagingRuntime, control.compared, helpers.load, helpers.arguments,
    *builtins.HANDLERS.values(), *builtins.AS_PYTHON, *staged.HANDLERS.values(), *staged.AS_PYTHON,
    *calls.AS_PYTHON, functions.run_converted, quiet.read, texts.text_of, texts.text,
    *tensors.AS_PYTHON, *patches.AS_PYTHON,
    symbols.StagedInt, symbols.StagedFloat, symbols.StagedBool, symbols.StagedObject,
    iterables.StagedSequence, *iterables.StagedSequence.__subclasses__(),
    *choices.AS_PYTHON, *loop_statements.AS_PYTHON, Open.item, Open.read, Open.getitem, OpenOperators,
)  # fmt: skip


def note_error(domain: Open, error: Exception, runtime: frozenset[CodeType]) -> None:
    """Note that an error is the program's own. runtime: the code of what converted code asks.

    Raises: CannotStage where it came up in Smelt itself.
    """
    session = domain.session
    if any(error is known for known in (*session.raised, *session.refused)):
        return
    if symbols.StagedObject.__name__ in str(error) or _STAGED_NUMBER.search(str(error)):
        domain.cannot("code that is not converted receives a dynamic value", str(error))
    code = _innermost(error.__traceback__)
    is_smelts = code is not None and code.co_filename.startswith(_SMELT) and code.co_filename != in_python.__file__
    if is_smelts and code not in _DOERS and code not in runtime:
        domain.broken(error)
    if not is_raised_by_user(error):
        # What stands for a tensor has a class of its own, and Python names it.
        error.args = tuple(_STAND_IN.sub("Tensor", a) if isinstance(a, str) else a for a in error.args)
    session.raised.append(error)


def _innermost(trace: TracebackType | None) -> CodeType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else trace.tb_frame.f_code
