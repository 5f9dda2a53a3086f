"""What each instruction of a plan took, measured while it runs.

Invariant: a frame writes into a table of its own, so runs at the same time lose nothing; a plan that is not profiled
runs code that measures nothing. Times are of the thread that walks the plan, and contain about 30 ns for each reading
of the clock.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

from smelt.diag.records import record
from smelt.runtime.encoding.table import PROFILE_CELLS, Op
from smelt.runtime.failures import describe
from smelt.runtime.plan import Plan

THREADS, ADDRESSES = "threads", "addresses"
_NEVER = 2**63 - 1


@record
class ProfileRow:
    """Nanoseconds of one instruction over all calls. `index` is -1 for what belongs to none: threads coming and going
    ("threads"), and finding out where inputs and results lie ("addresses"). `origin` is the operator and source line.
    """

    index: int
    label: str
    min_ns: int
    total_ns: int
    calls: int
    origin: str = ""


@record
class Record:
    """A record of the encoded plan: its word, its opcode, the instruction it came from, whether it counts for it."""

    start: int
    op: Op
    owner: int
    is_counted: bool


class Profile:
    """Tables of native frames, and times that the interpreter added."""

    def __init__(self, plan: Plan, records: Sequence[Record] = (), nwords: int = 0) -> None:
        self._plan, self._records, self._nwords = plan, tuple(records), nwords
        self._tables: list[Any] = []
        self._python: dict[int, tuple[int, int, int]] = {}
        self._lock = threading.Lock()

    def table(self) -> int:
        """Address of a new table, one row for each word of the code; it lives as long as this object."""
        table = (ctypes.c_int64 * (PROFILE_CELLS * self._nwords))()
        table[::PROFILE_CELLS] = [_NEVER] * self._nwords
        with self._lock:
            self._tables.append(table)
        return ctypes.addressof(table)

    def add(self, index: int, ns: int) -> None:
        """One run of an instruction in Python."""
        with self._lock:
            least, total, calls = self._python.get(index, (_NEVER, 0, 0))
            self._python[index] = (min(least, ns), total + ns, calls + 1)

    def rows(self) -> tuple[ProfileRow, ...]:
        """All instructions that ran, in the plan's order; then what belongs to none of them."""
        found: dict[int, tuple[int, int, int]] = dict(self._python)
        rest: dict[str, tuple[int, int, int]] = {}
        inside: tuple[int, int] | None = None
        region = (0, 0, 0)
        for each in self._records:
            times = self._times(each.start)
            if each.op is Op.LEAVE and inside is not None:
                # The time of a region is that of all its records and of its threads.
                least, total, calls = region
                own = (max(least - inside[0], 0), max(total - inside[1], 0), calls)
                rest[THREADS] = _sum(rest.get(THREADS), own)
                inside = None
            elif each.op is Op.REGION:
                inside, region = (0, 0), times
            elif times[2]:
                if inside is not None:
                    inside = (inside[0] + times[0], inside[1] + times[1])
                if each.op in (Op.DATA, Op.ESCAPE):
                    rest[ADDRESSES] = _sum(rest.get(ADDRESSES), times)
                elif each.is_counted:
                    found[each.owner] = _sum(found.get(each.owner), times)
        rows = [ProfileRow(i, self._label(i), *times, self._origin(i)) for i, times in sorted(found.items())]
        return (*rows, *(ProfileRow(-1, label, *times) for label, times in rest.items() if times[2]))

    def _times(self, start: int) -> tuple[int, int, int]:
        at = PROFILE_CELLS * start
        rows = [tuple(table[at : at + PROFILE_CELLS]) for table in self._tables]
        least = min((row[0] for row in rows), default=_NEVER)
        return (0 if least == _NEVER else least, sum(row[1] for row in rows), sum(row[2] for row in rows))

    def _label(self, index: int) -> str:
        return describe(self._plan.instructions[index])

    def _origin(self, index: int) -> str:
        return self._plan.origins[index] if self._plan.origins else ""


def _sum(a: tuple[int, int, int] | None, b: tuple[int, int, int]) -> tuple[int, int, int]:
    """Two records of one instruction: their times add up, their runs are the same ones."""
    return b if a is None else (a[0] + b[0], a[1] + b[1], max(a[2], b[2]))
