"""Who handles an exception that comes up where the program stands: told by the exception tables of the running frames.

A library's `finally`, and its `with`, put the library's own state back and let the exception go on: where a run ends
with it, nothing of that is seen, so they handle nothing. The user's own may do anything.
"""

from __future__ import annotations

import dis
import sys
from functools import lru_cache
from types import CodeType
from typing import TYPE_CHECKING, Any

from smelt.capture.recording.spans import is_users

if TYPE_CHECKING:
    from smelt.capture.recording.recorder import Recorder
    from smelt.capture.staging.session import Session

_SUPPRESSING = frozenset(("suppress", "ExitStack", "AsyncExitStack", "raises", "assertRaises"))
_LIBRARIES = ("/site-packages/", "/dist-packages/")


def is_catchable(session: Session, is_strict: bool = True) -> bool:
    """Whether a frame of the program between here and its start handles exceptions where it stands.

    is_strict: the user's `with` may handle them, too; else only where its function speaks of what does that.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame is not session.base_frame:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("smelt.", "torch.nn.modules.module")):
            known = _answers(frame.f_code)
            asked = frame.f_lasti, is_strict
            if asked not in known:
                known[asked] = _handles(frame.f_code, *asked)
            if known[asked]:
                return True
        frame = frame.f_back
    return False


def is_caught(run: Session | Recorder) -> bool:
    """Whether a function of the program's catches exceptions where it stands; a `with` only where it speaks of that."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame is not run.base_frame:
        if is_users(frame.f_code.co_filename) and _ends(frame.f_code, frame.f_lasti):
            return True
        frame = frame.f_back
    return False


# What `_handles` has said of instructions of a code object: that is asked of each operator of the program. By identity,
# since the hash of a code object goes through all of it; held, so that it stays.
_known: dict[int, tuple[CodeType, dict[tuple[int, bool], bool]]] = {}
_MOST_KNOWN = 4096


def _answers(code: CodeType) -> dict[tuple[int, bool], bool]:
    found = _known.get(id(code))
    if found is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        found = _known[id(code)] = code, {}
    return found[1]


def _handles(code: CodeType, instruction: int, is_strict: bool) -> bool:
    entries = _entries(code)
    if entries is None:
        return True
    is_own = not _is_librarys(code)
    with_too = (is_strict and is_own) or _speaks_of_it(code)
    around = [e for e in entries if e.start <= instruction < e.end]
    return any(with_too if e.lasti else is_own or _catches(code, e.target) for e in around)


def _ends(code: CodeType, instruction: int) -> bool:
    entries = _entries(code)
    if entries is None:
        return True
    with_too = _speaks_of_it(code)
    around = [e for e in entries if e.start <= instruction < e.end]
    return any(with_too if e.lasti else not _is_librarys(code) or _catches(code, e.target) for e in around)


@lru_cache(maxsize=1024)
def _speaks_of_it(code: CodeType) -> bool:
    """Whether a function names what suppresses exceptions; converted code has names of attributes as constants."""
    return not _SUPPRESSING.isdisjoint((*code.co_names, *(c for c in code.co_consts if isinstance(c, str))))


def _entries(code: CodeType) -> list[Any] | None:
    parse = getattr(dis, "_parse_exception_table", None)
    return None if parse is None else parse(code)


def _is_librarys(code: CodeType) -> bool:
    return any(place in code.co_filename for place in _LIBRARIES)


@lru_cache(maxsize=1024)
def _catches(code: CodeType, target: int) -> bool:
    """Whether a handler may end the exception that it is entered with."""
    for step in dis.get_instructions(code):
        if step.offset >= target:
            if step.opname in ("POP_EXCEPT", "CHECK_EXC_MATCH", "CHECK_EG_MATCH"):
                return True
            if step.opname == "RERAISE":
                return False
    return True
