"""What is done outside of Python, kept from a run that is not the program's own: files, processes, the network.

A staged run goes ways that the program does not go, and a script goes all of them: what they do to Python's objects is
put back, and what they would do outside of it is refused before it is done.

    with nothing_outside():
        ...                     open("log", "a"), subprocess.run(...)      -> CannotStage

Invariant: nothing that `reads_effects` knows to act outside has begun when the refusal is raised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import FrameType
from typing import Any

from smelt.capture.reads.reads_effects import (
    OUTSIDE,
    SUSPECT_NAMES,
    acting_site,
    builtin_effect,
    code_effect,
    file_kind,
)
from smelt.capture.recording.spans import Site
from smelt.capture.staging import current
from smelt.capture.staging.flow.stops import OUTSIDE_OF_PYTHON, CannotStage
from smelt.diag.events import RECORDING, profiled, watched

_READING = frozenset(("read", "readline", "readlines", "readinto", "seek", "tell"))
_WRITING = frozenset("wax+")


def refuse_outside(what: str | None, name: str, frame: FrameType | None) -> None:
    """Refuse what this thread's staged run is about to do in a frame; nothing where no run is under way, or the
    interpreter does it on its own account.

    Raises: CannotStage.
    """
    session = current.found()
    if what in OUTSIDE and session is not None and not (frame is not None and _only_reads(name, frame)):
        place = acting_site(frame, session.base_frame)
        if place is not None:
            raise CannotStage(f"it {what} ({name})", OUTSIDE_OF_PYTHON, Site(*place))


def _only_reads(name: str, frame: FrameType) -> bool:
    """Whether a library reads a file in this frame: of one that it opens itself, nothing is changed."""
    if file_kind(frame.f_code.co_filename) != "stdlib":
        return False
    mode = frame.f_locals.get("mode") if name == "open" else None
    return name in _READING or (isinstance(mode, str) and not set(mode) & _WRITING)


def _hook(frame: FrameType, event: str, arg: Any) -> bool:
    """A profile hook; whether this function, or builtin, need not be shown again."""
    if event == "call":
        what, name, caller = code_effect(frame.f_code), frame.f_code.co_qualname, frame.f_back
    elif event == "c_call" and arg.__name__ in SUSPECT_NAMES:
        what, name, caller = builtin_effect(arg), arg.__name__, frame
    else:
        return event == "c_call"
    refuse_outside(what, name, caller)
    return event == "call" and what is None


@contextlib.contextmanager
def nothing_outside() -> Iterator[None]:
    """The block does nothing outside of Python in this thread, where no recording of reads looks at it already."""
    if watched.hook is not None:
        yield
        return
    is_alone = RECORDING.acquire(blocking=False)
    try:
        with profiled(_hook, natively=is_alone):
            yield
    finally:
        if is_alone:
            RECORDING.release()
