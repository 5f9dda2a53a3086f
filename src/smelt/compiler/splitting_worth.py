"""Whether a split program is faster than the program as it is, found out while it runs.

After some calls to settle, every eighth call of a window runs the program as it is; where the others took longer
(pieces that are compiled anew all the time, guards that fail in turn), the program is left as it is for good. After a
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
    """The calls of one split program. is_lost: it is slower than the program as it is."""

    __slots__ = ("_begin", "_calls", "_counts", "_pause", "_spent", "is_lost")

    def __init__(self) -> None:
        self._calls, self._begin, self._pause = 0, SETTLING, 8 * WINDOW
        self._spent, self._counts = [0.0, 0.0], [0, 0]
        self.is_lost = False

    def run(
        self,
        pieces: Callable[..., Any],
        whole: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """The answer, by the pieces or, to compare, by the program as it is."""
        self._calls = call = self._calls + 1
        if call <= self._begin:
            return pieces(*args, **kwargs)
        which = int(call % EVERY == 0)
        start = perf_counter()
        result = (whole if which else pieces)(*args, **kwargs)
        self._spent[which] += perf_counter() - start
        self._counts[which] += 1
        if call >= self._begin + WINDOW:
            self._judge()
        return result

    def _judge(self) -> None:
        (pieces, whole), (count, compared) = self._spent, self._counts
        if count and compared:
            self.is_lost = pieces / count > MARGIN * whole / compared
        self._begin, self._pause = self._calls + self._pause, 2 * self._pause
        self._spent, self._counts = [0.0, 0.0], [0, 0]
