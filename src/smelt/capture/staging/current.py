"""The staged run of this thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smelt.capture.staging.session import Session


class _Thread(threading.local):
    session: Session | None = None


_thread = _Thread()


def session() -> Session:
    """The session of this thread. Raises: RuntimeError where a staged value outlived its run."""
    if _thread.session is None:
        raise RuntimeError("a value of the staging run is used after that run")
    return _thread.session


def found() -> Session | None:
    """The session of this thread, or None."""
    return _thread.session


def enter(new: Session | None) -> Session | None:
    """Make a session this thread's; the one that was."""
    was, _thread.session = _thread.session, new
    return was
