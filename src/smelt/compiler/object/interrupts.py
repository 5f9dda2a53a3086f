"""What signal handlers raise (Ctrl-C, a time-out) while a program is captured and compiled.

Python runs a signal's handler between any two instructions of the main thread, and what it raises comes up there: in
the midst of putting back a patched method, of leaving a mode, behind a lock that was just taken. A capture interrupted
so would leave torch changed for good. So what is raised inside Smelt's own steps waits until the program itself runs
again or the capture is over, and comes up there.

Invariant: a handler runs at once, unseen by the capture; only its exception may wait. Each is raised once.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType, TracebackType
from typing import Any

from smelt._torch.seen.dispatch import levels, unseen
from smelt.capture.staging import current
from smelt.diag.frames import is_own

_AGAIN_S = 0.02  # how often is looked whether the program runs by now
# Torch's modules are part of the program that is captured; the rest of torch, and what it calls, of whoever calls it.
_PROGRAMS = ("torch.nn.",)
_CALLED = frozenset(("torch", "numpy", "sympy", "llvmlite", *sys.stdlib_module_names)) - {"__main__"}
# What calls the program. In the midst of others, too, other code may run: the garbage collector's, which drops errors.
_CALLERS = frozenset(
    (
        "smelt.capture.captured",
        "smelt.capture.recording.scopes",
        "smelt.compiler.object.compiled_types",
        "smelt.compiler.raised_run",
        "smelt.compiler.programs.tracing",
    )
)
_NUMBERS = tuple(
    number
    for name in ("SIGINT", "SIGALRM", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF")
    if (number := getattr(signal, name, None)) is not None
)


class SignalsWait:
    """A block in which exceptions of signal handlers come up in the program's own code only, or at the block's end.

    Handlers run in the main thread: in any other this does nothing, nor inside of itself.
    """

    def __enter__(self) -> SignalsWait:
        self._is_outermost = threading.current_thread() is threading.main_thread() and not _blocks.is_open
        if self._is_outermost:
            try:
                for number in _NUMBERS:
                    handler = signal.getsignal(number)
                    if callable(handler) and not isinstance(handler, (_Handler, signal.Handlers)):
                        signal.signal(number, _Handler(handler))
                _blocks.is_open = True
            finally:
                if not _blocks.is_open:
                    _put_back()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, where: TracebackType | None) -> None:
        if not self._is_outermost:
            return
        try:
            _put_back()
        finally:
            _put_back()  # a signal may have come once its own handler was there again
            _blocks.is_open = False
            waiting, _blocks.waiting = _blocks.waiting, None
        if waiting is not None:
            raise waiting


def _put_back() -> None:
    for number in _NUMBERS:
        handler = signal.getsignal(number)
        if isinstance(handler, _Handler):
            signal.signal(number, handler.own)


class _Blocks:
    """is_open: whether the main thread is in such a block. waiting: what is to be raised there, or at its end.

    is_look: whether the next signal is only to look whether the program runs. errors: how many there were ever.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.waiting: BaseException | None = None
        self.is_look = False
        self.errors = 0


_blocks = _Blocks()


def errors_in_programs() -> int:
    """How many exceptions of handlers came up in programs: a run in which one did is no run of the program alone."""
    return _blocks.errors


class _Handler:
    """A signal's handler, for the time of a block; where it outlives it, the handler itself."""

    def __init__(self, own: Callable[[int, FrameType | None], Any]) -> None:
        self.own = own

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        if not _blocks.is_open:
            return self.own(number, frame)
        waiting, is_look = _blocks.waiting, _blocks.is_look
        _blocks.is_look = False
        if not is_look:
            try:
                with _unwatched():
                    self.own(number, frame)
            except BaseException as error:
                waiting = error
        if waiting is None:
            return None
        if _is_in_the_program(frame):
            _blocks.waiting = None
            _blocks.errors += 1
            raise waiting
        _blocks.waiting = waiting
        with _unwatched():
            again = threading.Timer(_AGAIN_S, _look_again, (number, waiting))
            again.daemon = True
            again.start()
        return None


def _look_again(number: int, waiting: BaseException) -> None:
    if _blocks.waiting is waiting and isinstance(signal.getsignal(number), _Handler):
        _blocks.is_look = True
        _thread.interrupt_main(signal.Signals(number))


@contextmanager
def _unwatched() -> Iterator[None]:
    """Nothing in the block is taken for a step of the program that is being recorded."""
    trace, profile = sys.gettrace(), sys.getprofile()
    if callable(profile):  # the others are below Python, and see nothing for us
        sys.setprofile(None)
    if trace is not None:
        sys.settrace(None)
    try:
        with unseen() if "entry" in levels() else nullcontext():
            yield
    finally:
        if trace is not None:
            sys.settrace(trace)
        if callable(profile):
            sys.setprofile(profile)


def _is_in_the_program(frame: FrameType | None) -> bool:
    """Whether the line that was interrupted is the captured program's, and no staged run takes its errors for ways."""
    is_program = False
    while frame is not None and current.found() is None:
        module = str(frame.f_globals.get("__name__", ""))
        first = module.partition(".")[0]
        if first == "importlib":
            is_program = False  # a module that is being imported: for whoever imports it
        elif module.startswith(_PROGRAMS):
            is_program = True
        elif first not in _CALLED:
            if is_own(frame):
                return is_program and module in _CALLERS
            is_program = True
        frame = frame.f_back
    return False
