"""Whether a program in pieces, or one that goes through Python, is faster than as it is: found out while it runs.

After some calls to settle, two calls of every eight in a window run the program as it is, ever at another place, so
that inputs that come in turns are met alike; the first call after a change from one to the other finds the processor's
caches full of the other's, and does not count. Where the others took longer (pieces that are compiled anew all the
time, small operators on ever other sizes), it is left as it is for good. What counts is the time of the calling thread,
for machines are shared, and the longest quarter of both does not. After a window that it passes, the next one comes
ever later; in the end a little slower in each of them is slower, too.
Invariant: which of the two runs changes no answer, only the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import thread_time
from typing import Any

from smelt.diag import limits

SETTLING = limits.SETTLING_CALLS  # calls before the first window
WINDOW = limits.WINDOW_CALLS  # calls in a window
FIRST = limits.FIRST_CALLS  # calls of it after which it is over where one is far ahead
FAR = 3.0  # how far
EVERY = limits.COMPARED_EVERY  # of so many two run the program as it is
_PLACES = (3, 5, 1, 4, 0, 6, 2, 5)  # which ones, this and the next, eight after eight; no two pairs are neighbours
MARGIN = 1.3  # how much longer pieces may take in a window, for it is short
LITTLE = 1.1  # how much longer in all of them
ENOUGH = 3  # windows that say that it will be so


class Worth:
    """A compiled program's calls. is_lost: it is slower than the program as it is; is_won: it is faster, or was never
    much slower in many windows; windows: how many there were.
    """

    __slots__ = ("_begin", "_calls", "_last", "_least", "_pause", "_spent", "is_lost", "is_won", "windows")

    def __init__(self) -> None:
        self._calls, self._begin, self._pause = 0, SETTLING, 8 * WINDOW
        self._spent: tuple[list[float], list[float]] = ([], [])
        self._last, self._least = 0, MARGIN
        self.is_lost, self.is_won, self.windows = False, False, 0

    def run(
        self,
        compiled: Callable[..., Any],
        whole: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """The answer, by what was compiled or, to compare, by the program as it is."""
        self._calls = call = self._calls + 1
        if call <= self._begin:
            return compiled(*args, **kwargs)
        group, place = divmod(call - self._begin - 1, EVERY)
        which = int(place - _PLACES[group % len(_PLACES)] in (0, 1))
        start = thread_time()
        result = (whole if which else compiled)(*args, **kwargs)
        spent = thread_time() - start
        if which == self._last:
            self._spent[which].append(spent)
        self._last = which
        if call >= self._begin + WINDOW or (call == self._begin + FIRST and self._is_hopeless):
            self._judge()
        return result

    @property
    def _is_hopeless(self) -> bool:
        """Whether even the fastest run of what was compiled took many times as long."""
        pieces, whole = self._spent
        return bool(pieces and whole) and min(pieces) > FAR * usual(whole)

    def _judge(self) -> None:
        self.windows += 1
        pieces, whole = self._spent
        if pieces and whole:
            ratio = usual(pieces) / max(usual(whole), 1e-9)
            self._least = min(self._least, ratio)
            is_known = self.windows >= ENOUGH
            self.is_lost = ratio > MARGIN or (is_known and self._least > LITTLE)
            self.is_won = ratio <= 1.0 or (is_known and not self.is_lost)
        self._begin, self._pause = self._calls + self._pause, 2 * self._pause
        self._spent = ([], [])


def usual(times: list[float]) -> float:
    """The mean without the longest quarter."""
    kept = sorted(times)[: max(len(times) * 3 // 4, 1)]
    return sum(kept) / len(kept)
