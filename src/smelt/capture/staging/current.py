"""The staged run of this thread."""

from __future__ import annotations

import threading
from typing import Any


class _Thread(threading.local):
    session: Any = None


_thread = _Thread()


def session() -> Any:
    """The session of this thread. Raises: RuntimeError where a staged value outlived its run."""
    if _thread.session is None:
        raise RuntimeError("a value of the staging run is used after that run")
    return _thread.session


def found() -> Any:
    """The session of this thread, or None."""
    return _thread.session


def enter(new: Any) -> Any:
    """Make a session this thread's; the one that was."""
    was, _thread.session = _thread.session, new
    return was
