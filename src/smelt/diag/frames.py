"""Whose code a frame runs, and how far up the stack the user's own line is: for warnings and tracebacks."""

from __future__ import annotations

import sys
from types import FrameType

_OWN = ("smelt", "torch")
# The programs that come along call Smelt as anyone does.
_PROGRAMS = ("smelt.bench", "smelt.cli")


def is_own(frame: FrameType) -> bool:
    """Whether a frame runs Smelt's or torch's code, or code that Smelt generated."""
    module = str(frame.f_globals.get("__name__", ""))
    if frame.f_code.co_filename.startswith("<smelt"):
        return True
    is_program = any(module == p or module.startswith(p + ".") for p in _PROGRAMS)
    return module.partition(".")[0] in _OWN and not is_program


def user_level() -> int:
    """How many frames up the user's own code is, as `warnings.warn` counts from the caller of this function."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and is_own(frame):
        frame = frame.f_back
        level += 1
    return level
