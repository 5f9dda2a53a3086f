"""Stagings of one compiled object that came to nothing: one that ended for the same reason before is not begun again.

Invariant: a staging that is not begun leaves the program compiled as after one that failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from smelt.diag import limits

T = TypeVar("T")

MOST_ALIKE = limits.ATTEMPTS_ALIKE  # attempts for calls of one kind that ended for one reason
MOST = limits.ATTEMPTS  # the same for calls of any kind


class Attempts:
    """What is known of them. kinds: of the call that is being compiled (`SeenCall.kinds`)."""

    def __init__(self) -> None:
        self.kinds: Mapping[str, Hashable] = {}
        self._ended: Counter[Hashable] = Counter()
        self._reasons: dict[Hashable, str] = {}

    def forget(self) -> None:
        """What came to nothing may come to something now."""
        self._ended.clear()
        self._reasons.clear()

    def of(self, what: Hashable, attempt: Callable[[], tuple[T | None, str]]) -> tuple[T | None, str]:
        """What an attempt gives, or None and why it gives none; what: the kind of attempt."""
        alike = what, frozenset(self.kinds.items())
        for key, most in ((alike, MOST_ALIKE), (what, MOST)):
            if self._ended[key] >= most:
                return None, self._reasons[key]
        found, why = attempt()
        for key in (alike, what):
            if found is None and why == self._reasons.get(key, why):
                self._ended[key] += 1
            else:
                self._ended[key] = int(found is None)
            self._reasons[key] = why
        return found, why
