"""What the builds of one object may take: in proportion to what its calls take in eager mode.

    spent <= FLOOR_S + eager * (AHEAD + calls)            seconds; eager: of one call

As with skis that are rented until the rent has come to their price: a program whose calls change each time costs at
most its eager time once more, and a floor, whatever is built for it; one that is called often may build ever more. Who
asks for a build that is likely to serve many calls need not ask here (`Builds`).
Invariant: what is not built changes no answer, only the time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from smelt.diag import Options, limits
from smelt.diag.cpu_clock import cpu_seconds

clock: Callable[[], float] = cpu_seconds
"""What times are measured by."""

# That served too few calls, of each object: one for the first call, one for what it leaves behind (a cache that was
# empty), one for sizes that are free from then on.
FREE_BUILDS = limits.FREE_BUILDS
SERVED = 4  # calls that a build has to serve
FLOOR_S = 0.5  # about what the first builds of a process take
AHEAD = 100  # calls that are taken to come
STAGING_S = limits.BUILD_STAGING_SECONDS  # for the staged runs of a build, whatever is left
_SAMPLES = 8  # eager calls that are timed

STOPPED = "further builds would cost more than the calls are worth"
MEASURED = "the time of a call in eager mode is being measured"


class Ledger:
    """The account of one compiled object and of the pieces that it was split into.

    calls: how many there were. builds, spent_s: how many builds, and what they took. eager_s: the least that a call
    took in eager mode; None before one was timed. refused: calls that ran in eager mode because building was stopped.
    is_kept: whether times decide anything. is_asked_for: the user has builds made now, whatever they take.
    """

    def __init__(self, calls: Callable[[], int], is_kept: bool = True) -> None:
        self.clock = clock
        self.builds, self.spent_s, self.refused = 0, 0.0, 0
        self.eager_s: float | None = None
        self.is_kept, self._calls, self.is_asked_for = is_kept, calls, False
        self._timed = 0
        self._begun: dict[int, float] = {}  # by thread: when the build began that is under way
        self._lock = threading.Lock()

    @staticmethod
    def of(options: Options, is_whole: bool, calls: Callable[[], int]) -> Ledger:
        """The account of an object with these options. is_whole: where it is an error that a call is not compiled."""
        return Ledger(calls, is_kept=is_adaptive(options) and not is_whole)

    @property
    def limit_s(self) -> float:
        """What builds may have taken by now before another one begins."""
        return self._limit(self.eager_s or 0.0)

    def _limit(self, eager_s: float) -> float:
        return FLOOR_S + eager_s * (AHEAD + self._calls())

    @property
    def asks_for_eager(self) -> bool:
        """Whether a call is to run in eager mode, so that it is known how long that takes."""
        return self.is_kept and self.eager_s is None and not self.is_asked_for

    def may_build(self) -> bool:
        """Whether what was spent allows for another build."""
        return not self.is_kept or self.is_asked_for or self.spent_s <= self.limit_s

    def staging_s(self, recorded_s: float) -> float:
        """The seconds that a staged run may take. recorded_s: of the recorded run, where nothing else is known."""
        if not self.is_kept:
            return inf
        eager_s = recorded_s if self.eager_s is None else self.eager_s
        return max(STAGING_S, self._limit(eager_s) - self._spent_now())

    def _spent_now(self) -> float:
        begun = self._begun.get(threading.get_ident())
        return self.spent_s + (0.0 if begun is None else self.clock() - begun)

    @contextmanager
    def building(self) -> Iterator[None]:
        """Charge what is done in this block to the account. A block within another one is part of that."""
        thread, start = threading.get_ident(), self.clock()
        if thread in self._begun:
            yield
            return
        self._begun[thread] = start
        try:
            yield
        finally:
            del self._begun[thread]
            with self._lock:
                self.spent_s += self.clock() - start

    def timed(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What an eager call gives; how long it takes is noted of the first ones."""
        if self._timed >= _SAMPLES or not self.is_kept:
            return run(*args, **kwargs)
        start = self.clock()
        result = run(*args, **kwargs)
        self.note_eager(self.clock() - start)
        return result

    def note_eager(self, seconds: float) -> None:
        """An eager call took so long."""
        with self._lock:
            self._timed += 1
            self.eager_s = seconds if self.eager_s is None else min(self.eager_s, seconds)

    def __str__(self) -> str:
        """Why nothing more is built, with numbers; empty where that has not come up."""
        if not self.refused:
            return ""
        eager_ms = 1e3 * (self.eager_s or 0.0)
        return (
            f"{self.builds} builds took {self.spent_s:.2f} s; a call takes {eager_ms:.3f} ms in eager mode, so that "
            f"{self._calls()} calls are worth {self.limit_s:.2f} s of building. Further calls are worth more, and "
            'options={"adaptive": False} builds whatever it takes'
        )


def is_adaptive(options: Options) -> bool:
    """Whether times decide what is built and what stays: not where two processes are to do the same, nor where eager
    calls read weights from a file.
    """
    return options.adaptive and not (options.strict or options.deterministic or options.release_originals)
