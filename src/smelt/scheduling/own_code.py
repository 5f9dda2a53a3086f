"""Calls of the user's own code in a step: what it raises is the step's refusal, with the line that raised it.

Invariant: what it raises as an error of Smelt, or to take the step back, is left as it is.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from smelt.diag import ScheduleError, SmeltError, Span
from smelt.diag.frames import is_own
from smelt.scheduling.draft import Withdrawn

T = TypeVar("T")


def call_own(name: str, function: Callable[..., T], *given: Any, **named: Any) -> T:
    """What a function of the user's gives. name: what it is called in errors.

    Raises: ScheduleError (S0607) where it does not take these arguments, or raises an error of its own.
    """
    try:
        return function(*given, **named)
    except (SmeltError, Withdrawn):
        raise
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
        if error.__traceback__ is None or error.__traceback__.tb_next is None:
            options = "".join(f", {key}={value!r}" for key, value in named.items())
            raise ScheduleError(
                f"{name} cannot be called as the step calls it", why=raised,
                fix=f"it receives {len(given)} arguments by position{options}; it takes {_signature(function)}",
                code="S0607", notes=_written_at(function),
            ) from error  # fmt: skip
        raise ScheduleError(
            f"{name} raises {raised}", _raised_at(error), why="a step whose code raises is not applied",
            fix="fix that line; the schedule is unchanged", code="S0607",
        ) from error  # fmt: skip


def _signature(function: Callable[..., Any]) -> str:
    try:
        return str(inspect.signature(function))
    except (TypeError, ValueError):
        return "none: it is no function"


def _written_at(function: Callable[..., Any]) -> tuple[str, ...]:
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return () if code is None else (f"it is written at {Span(code.co_filename, code.co_firstlineno)}",)


def _raised_at(error: Exception) -> Span | None:
    """The user's line that the error comes from, the innermost."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if not is_own(frame)]
    if not frames:
        return None
    frame, line = frames[-1]
    return Span(frame.f_code.co_filename, line, frame.f_code.co_qualname)
