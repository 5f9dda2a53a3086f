"""The traceback of an error that a program raises in a compiled call: the user's frames, as eager mode has them.

Invariant: the error is the same object; only entries of Smelt's own frames are left out. A defect of Smelt keeps all of
them: an InternalError, and whatever no frame of the program had a part in.
"""

from __future__ import annotations

from types import TracebackType

from smelt.capture.reads.reads_effects import file_kind
from smelt.diag import InternalError, SmeltError


def of_program(error: BaseException) -> BaseException:
    """The error as the plain program would raise it: without Smelt's frames in its traceback."""
    if isinstance(error, InternalError):
        return error
    rest = _without_smelt(error.__traceback__)
    if rest is not None or isinstance(error, SmeltError):
        error.__traceback__ = rest
    return error


def _without_smelt(traceback: TracebackType | None) -> TracebackType | None:
    kept = []
    while traceback is not None:
        if file_kind(traceback.tb_frame.f_code.co_filename) != "smelt":
            kept.append(traceback)
        traceback = traceback.tb_next
    rest = None
    for entry in reversed(kept):
        rest = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rest
