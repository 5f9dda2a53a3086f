"""Warnings that a graph gives: the program's own, at its line and in the registry of its module.

Invariant: Python's filters decide at each call whether one is shown, ignored or raised, as they do for the program.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections import deque
from types import FrameType
from typing import Any, NamedTuple

from smelt.diag.frames import is_own
from smelt.ops.python.python_calls import exception_of

_KEPT = 256


class Given(NamedTuple):
    """A warning: its text, its class and where it points."""

    text: str
    category: type[Warning]
    file: str
    line: int


class _Thread(threading.local):
    """What graphs gave in a thread: how many in all, and the last ones."""

    def __init__(self) -> None:
        self.count = 0
        self.last: deque[Given] = deque(maxlen=_KEPT)


given = _Thread()
_registries: dict[str, dict[Any, Any]] = {}  # of modules that nobody can import


def warn(category: str, file: str, line: int, module: str, *args: Any, above: int | None = None) -> None:
    """Warn as the program does at a line; above: so many frames above the compiled program instead."""
    kind: Any = exception_of(category)
    message = kind(*args)
    known = sys.modules.get(module)
    names = _registries.setdefault(module, {}) if known is None else vars(known)
    if above is not None:
        file, line, module, names = _place(above)
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, kind, file, line, module, registry)
    given.count += 1
    given.last.append(Given(str(message), kind, file, line))


def _place(above: int) -> tuple[str, int, str, dict[str, Any]]:
    """File, line, name of the module, and globals of a frame above the compiled program; 1 is its caller's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_own(frame):
        frame = frame.f_back
    for _ in range(above - 1):
        frame = None if frame is None else frame.f_back
    if frame is None:
        return "sys", 1, "sys", vars(sys)
    return frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", "<string>"), frame.f_globals
