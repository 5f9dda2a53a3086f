"""Timing of candidates at build time, and the choices already made in this process.

Invariant: a choice is made once per key in a process; two lowerings never disagree about one shape.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from time import perf_counter_ns

from smelt.diag.records import record

_MIN_ROUNDS, _MAX_ROUNDS = 2, 12
_HOPELESS = 1.6
_BUDGET_NS = 15_000_000


@record
class Timing:
    """A candidate's name and its shortest run in microseconds."""

    name: str
    latency_us: float


def time_candidates(candidates: Mapping[str, Callable[[], object]]) -> tuple[Timing, ...]:
    """The shortest of several interleaved runs of each; one far behind after its first runs is not run again.

    The minimum is what a busy machine disturbs least; interleaving lets every candidate meet the same disturbance.
    """
    best = {name: float("inf") for name in candidates}
    for run in candidates.values():
        run()  # Warms caches and makes the library's own choices.
    begin = perf_counter_ns()
    for round_ in range(_MAX_ROUNDS):
        for name, run in candidates.items():
            if best[name] > _HOPELESS * min(best.values()) and round_ > 1:
                continue
            start = perf_counter_ns()
            run()
            best[name] = min(best[name], perf_counter_ns() - start)
        if round_ + 1 >= _MIN_ROUNDS and perf_counter_ns() - begin > _BUDGET_NS:
            break
    return tuple(Timing(name, ns / 1000) for name, ns in sorted(best.items(), key=lambda item: item[1]))


class ChoiceCache:
    """Timings by key, for all lowerings of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Hashable, tuple[Timing, ...]] = {}

    def timings(self, key: Hashable, measure: Callable[[], tuple[Timing, ...]]) -> tuple[Timing, ...]:
        """The timings of a key, measured now if they are not known; one measurement runs at a time."""
        with self._lock:
            if key not in self._known:
                self._known[key] = measure()
            return self._known[key]


CHOICES = ChoiceCache()
