"""Whether a program in pieces, or one that goes through Python, is faster than as it is: found out while it runs.

After some calls to settle, every eighth call of a window runs the program as it is; where the others took longer
(pieces that are compiled anew all the time, small operators on ever other sizes), it is left as it is for good. After a
window that it passes, the next one comes ever later. Invariant: which of the two runs changes no answer, only the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

SETTLING = 16  # calls before the first window
WINDOW = 32  # calls in a window
EVERY = 8  # of which each so many-th runs the program as it is
MARGIN = 1.3  # how much longer pieces may take: a window is short, and machines are shared


class Worth:
    """A compiled program's calls. is_lost: it is slower than the program as it is; windows: how many there were."""

    __slots__ = ("_begin", "_calls", "_counts", "_pause", "_spent", "is_lost", "windows")

    def __init__(self) -> None:
        self._calls, self._begin, self._pause = 0, SETTLING, 8 * WINDOW
        self._spent, self._counts = [0.0, 0.0], [0, 0]
        self.is_lost, self.windows = False, 0

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
        which = int(call % EVERY == 0)
        start = perf_counter()
        result = (whole if which else compiled)(*args, **kwargs)
        self._spent[which] += perf_counter() - start
        self._counts[which] += 1
        if call >= self._begin + WINDOW:
            self._judge()
        return result

    def _judge(self) -> None:
        self.windows += 1
        (pieces, whole), (count, compared) = self._spent, self._counts
        if count and compared:
            self.is_lost = pieces / count > MARGIN * whole / compared
        self._begin, self._pause = self._calls + self._pause, 2 * self._pause
        self._spent, self._counts = [0.0, 0.0], [0, 0]
