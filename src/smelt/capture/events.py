"""The profile hook that sees what a recorded program calls, put aside while Smelt does work of its own.

Each of our own calls would be an event for it, too: several for each that the program makes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Hook = Callable[[FrameType, str, Any], None]


class _Thread(threading.local):
    """hook: what sees this thread's calls, None where nobody looks."""

    hook: Hook | None = None


watched = _Thread()


@contextmanager
def profiled(hook: Hook) -> Iterator[None]:
    """Install a profile hook for this thread; whatever profiler was there is put back after."""
    before: Any = sys.getprofile()
    watched.hook = hook
    sys.setprofile(hook)
    try:
        yield
    finally:
        sys.setprofile(None)
        watched.hook = None
        if callable(before):
            sys.setprofile(before)
        elif hasattr(before, "enable"):  # cProfile installs itself below Python
            before.enable()
