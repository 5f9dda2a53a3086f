"""The profile hook that sees what a recorded program calls, put aside while Smelt does work of its own.

Each of our own calls would be an event for it, too: several for each that the program makes. Native code, where there
is some, asks the hook only of what it has not yet answered True for; a Python hook gets each event.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Protocol

Hook = Callable[[FrameType, str, Any], bool]


class Profiler(Protocol):
    """Native code that stands before a hook."""

    def start(self, hook: Hook) -> Callable[[], None]:
        """Install it for this thread; what installs it again."""


class _Thread(threading.local):
    """hook: what sees this thread's calls; resume: installs it after `sys.setprofile(None)`. None: nobody looks."""

    hook: Hook | None = None
    resume: Callable[[], None] | None = None

    def put_back(self, profile: Any) -> None:
        """Install a profile function that was put aside, this thread's hook or another."""
        if self.resume is not None and profile is self.hook:
            self.resume()
        else:
            sys.setprofile(profile)


class _Native:
    """The native profiler: not known yet, or None where there cannot be one."""

    def __init__(self) -> None:
        self.is_known = False
        self.profiler: Profiler | None = None

    def set(self, profiler: Profiler | None) -> None:
        """Use this one from the next recording on."""
        self.is_known, self.profiler = True, profiler


watched = _Thread()
native = _Native()
RECORDING = threading.Lock()
"""Held by whoever profiles: what the native profiler knows is the process's."""


@contextmanager
def put_aside() -> Iterator[None]:
    """This thread's hook, where there is one, does not see the block, which is work of our own."""
    resume, watched.resume = watched.resume, None  # nor does anything in it install the hook again
    if resume is not None:
        sys.setprofile(None)
    try:
        yield
    finally:
        watched.resume = resume
        if resume is not None:
            resume()


@contextmanager
def profiled(hook: Hook, *, natively: bool = True) -> Iterator[None]:
    """Install a profile hook for this thread; whatever profiler was there is put back after.

    hook: told of calls and of calls of builtins; True: it need not be told of that code object or builtin again.
    natively: by native code, where there is some; one block at a time, in all threads: the caller holds `RECORDING`.
    """
    before: Any = sys.getprofile()
    watched.hook = hook
    try:
        if natively and native.profiler is not None:
            watched.resume = native.profiler.start(hook)
        else:
            watched.resume = partial(sys.setprofile, hook)
            watched.resume()
        yield
    finally:
        sys.setprofile(None)
        watched.hook = watched.resume = None
        if callable(before):
            sys.setprofile(before)
        elif hasattr(before, "enable"):  # cProfile installs itself below Python
            before.enable()


class Returns:
    """What calls of the recorded thread return, which no profile hook is asked for: each frame that is watched tells.

    Where somebody else traces the thread (a debugger, a coverage tool), nothing is told.
    """

    def __init__(self) -> None:
        self._open = 0

    def expect(self, frame: FrameType, told: Callable[[Any], object]) -> None:
        """Have `told` be called with what this call returns; it has just begun."""
        if sys.gettrace() not in (None, _traces_nothing):
            return

        def watch(frame: FrameType, event: str, result: Any) -> Any:
            if event == "return":
                self._open -= 1
                if self._open == 0:
                    sys.settrace(None)
                told(result)
            return watch

        self._open += 1
        frame.f_trace, frame.f_trace_lines = watch, False
        sys.settrace(_traces_nothing)


def _traces_nothing(frame: FrameType, event: str, arg: Any) -> None:
    """A call that is not watched."""
