"""Machine code that was made quickly, so that a first call need not wait, and is replaced by better code in use.

    promise(draft, finish)      some code is at hand now; finish() makes what takes its place, at leisure
    load(draft, ..)             the code in memory, whose functions are called through jumps
    begin()                     a first native run is over: a thread finishes what was promised, and calls go there

Invariant: both do the same, so that a call may go to either. What is promised is done before the process ends, even
where nothing has run natively, so that later processes find it in the cache; and a fork waits for the thread, since
its child would find LLVM's locks held by nobody.
"""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from smelt.diag import SmeltWarning
from smelt.runtime.machine.loader import LoadedCode, load_object

_FORK_WAITS_S = 10.0
_CALM_S = 0.2  # in which the call that ran natively first may come to its end


class _Drafts:
    """What was promised in this process, and the thread that keeps it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open: dict[bytes, deque[tuple[LoadedCode, Mapping[str, int]]]] = {}
        self.to_do: deque[tuple[bytes, Callable[[], bytes]]] = deque()
        self.has_begun = False
        self.hurry = threading.Event()
        self.thread: threading.Thread | None = None

    def wake(self) -> None:
        """Have a thread do what is to be done; the lock is held."""
        if self.has_begun and self.to_do and self.thread is None:
            self.thread = threading.Thread(target=self._in_thread, name="smelt-drafts", daemon=False)
            self.thread.start()

    def _in_thread(self) -> None:
        self.hurry.wait(_CALM_S)
        while True:
            self.work()
            with self.lock:
                if not self.to_do:
                    self.thread = None
                    return

    def work(self) -> None:
        """Do all that is to be done."""
        while self.to_do:
            with self.lock:
                if not self.to_do:
                    return
                draft, finish = self.to_do.popleft()
            try:
                code = finish()
                with self.lock:
                    users = self.open.pop(draft, deque())
                for loaded, externals in users:
                    loaded.replace(load_object(code, externals))
            except Exception as error:  # the draft does the same, only slower
                text = f"native code stays slower than it could be in this process ({type(error).__name__}: {error})"
                with suppress(SmeltWarning):  # nobody is there to catch it where it is an error
                    warnings.warn(text, SmeltWarning, stacklevel=2)

    def wait(self) -> None:
        """Let the thread end, if there is one."""
        thread = self.thread
        if thread is not None and thread is not threading.current_thread():
            self.hurry.set()
            thread.join(_FORK_WAITS_S)

    def in_child(self) -> None:
        self.lock, self.hurry, self.thread = threading.Lock(), threading.Event(), None


_drafts = _Drafts()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_drafts.wait, after_in_child=_drafts.in_child)


def promise(draft: bytes, finish: Callable[[], bytes]) -> None:
    """Say that code is a draft, and what makes the code that takes its place."""
    with _drafts.lock:
        if draft not in _drafts.open:
            _drafts.open[draft] = deque()
            _drafts.to_do.append((draft, finish))
            _drafts.wake()


def load(code: bytes, externals: Mapping[str, int] | None = None) -> LoadedCode:
    """`load_object`; of a draft so that it can be replaced. Raises: as `load_object`."""
    with _drafts.lock:
        users = _drafts.open.get(code)
        loaded = load_object(code, externals, replaceable=users is not None)
        if users is not None:
            users.append((loaded, externals or {}))
    return loaded


def begin() -> None:
    """Finish drafts from now on, in a thread."""
    if not _drafts.has_begun:
        with _drafts.lock:
            _drafts.has_begun = True
            _drafts.wake()


def finish() -> None:
    """Finish every draft now: the thread's work is waited for, all else is done here."""
    _drafts.wait()
    _drafts.work()


atexit.register(finish)
