"""Which variable outside of a function keeps something, a global or one of a function around it, and what binds it."""

from __future__ import annotations

import dis
from collections.abc import Iterator, Sequence
from types import CellType, CodeType, FunctionType

from smelt.capture.staging.objects.heap import Change
from smelt.diag import Span


def outer_variable(functions: Sequence[object], change: Change) -> tuple[str, Span] | None:
    """What is to be said of a variable that one of these functions binds, and the line that does; None for all else."""
    for function in functions:
        if not isinstance(function, FunctionType):
            continue
        if function.__globals__ is change.container:
            kind, name = "global", change.key
        elif isinstance(change.container, CellType):
            held = dict(zip(map(id, function.__closure__ or ()), function.__code__.co_freevars, strict=True))
            kind, name = "nonlocal", held.get(id(change.container))
        else:
            continue
        for code in _codes(function.__code__):
            line = _line_that_binds(code, "STORE_GLOBAL" if kind == "global" else "STORE_DEREF", name)
            if line is not None:
                what = f"{kind} variable {name} keeps what depends on data"
                return what, Span(code.co_filename, line, code.co_qualname)
    return None


def _line_that_binds(code: CodeType, op: str, name: object) -> int | None:
    steps = dis.get_instructions(code)
    return next((s.positions.lineno for s in steps if s.opname == op and s.argval == name and s.positions), None)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
