"""How long a call waits for what another thread is building, before it runs the program as it is.

No call waits longer than the program itself takes: then it has lost at most as much again, and where the build is done
by then, it is served by that. How long the program takes is known from the recorded run, and from calls that ran it
meanwhile; until one of these is over, a call waits for the recorded run, which takes no less than the program does, and
for a bounded time, because the program may itself wait for the thread that calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

from smelt.diag.events import RECORDING, watched

_FIRST_S: Final = 0.25  # while nobody knows how long the program takes
_LOOK_S: Final = 0.005  # how often is looked whether that is known by now


class _Thread(threading.local):
    """Whether the call of this thread has waited already."""

    has_waited: bool = False


thread = _Thread()


class Turns:
    """What is known of one program's time."""

    def __init__(self) -> None:
        self._took_s: float | None = None

    def took(self, seconds: float) -> None:
        """The program has run, recorded or not."""
        self._took_s = seconds if self._took_s is None else min(self._took_s, seconds)

    def timed(self, run: Callable[[], Any]) -> Any:
        """What a run of the program gives, which shows how long it takes."""
        start = perf_counter()
        result = run()
        self.took(perf_counter() - start)
        return result

    def acquire(self, lock: Any) -> bool:
        """Wait for a lock that another thread holds while it builds; whether this call holds it now."""
        if thread.has_waited:
            return False
        arrived = perf_counter()
        while True:
            most = _FIRST_S if self._took_s is None else self._took_s
            left = arrived + most - perf_counter()
            if left <= 0:
                return False
            if lock.acquire(timeout=min(left, _LOOK_S)):
                return True

    def await_recorder(self) -> None:
        """Wait for the run of another program that another thread records, if there is one."""
        if self.is_recorded_elsewhere() and self.acquire(RECORDING):
            RECORDING.release()

    def is_recorded_elsewhere(self) -> bool:
        """Whether another thread records a program now."""
        return watched.hook is None and RECORDING.locked()
