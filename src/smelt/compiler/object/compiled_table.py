"""The table of one compiled object: its rows, which of them are kept, and what native code knows of them.

Invariant: `rows` is replaced whole, so readers need no lock. Native code is given the rows up to the first that only
Python can serve, so that the same one answers.
"""

from __future__ import annotations

import contextlib
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from smelt._torch.autocast import cleared, is_kept, keeps_casts
from smelt._torch.seen.forward_mode import watch_levels
from smelt.compiler.object.compiled_native import Owner, native_entry, plans_of, target_of
from smelt.compiler.object.compiled_original import Original
from smelt.compiler.object.compiled_types import Entry, Row, Stats
from smelt.diag import limits
from smelt.diag.logs import tell, wants
from smelt.runtime.entering.entry import Counters, EntryCode, keeps_in_reach

ENTRY_LIMIT = limits.ENTRIES  # entries kept; the least recently used one goes
STORM_LIMIT = limits.BUILDS  # entries built, after which a value that changes at each call is left to the original


_rows: weakref.WeakKeyDictionary[Row, weakref.ref[Table]] = weakref.WeakKeyDictionary()
"""Rows, of all objects, whose casts of weights autocast may keep."""


def _rows_of_region() -> list[Row]:
    """Those that were made, or have run, since autocast has last forgotten casts."""
    known = [(row, ref()) for row, ref in tuple(_rows.items())]
    return [row for row, table in known if table is not None and table.has_used_in_region(row)]


def _began_anew(table: Table) -> None:
    table._region_began = table.counters.tick()


def _place_of(text: str) -> str:
    """What a sentence on a guard that failed is about, whatever the values."""
    return re.split(r" was | does not hold", text, maxsplit=1)[0]


class Table:
    """The rows of a dispatcher, the most recently used first.

    slow: takes the calls that native code does not serve.
    lock: held while one is built. replaced: places of arguments where another object stood than the one that was
    compiled for.
    """

    def __init__(self, owner: Owner, slow: Callable[..., Any], original: Original, stats: Stats) -> None:
        self.rows: tuple[Row, ...] = ()
        self.lock = threading.Lock()
        self.counters = Counters()
        self.replaced: set[str] = set()
        self._region_began = 0  # the clock's time when autocast has last forgotten the casts that it kept
        self._made = 0
        self._causes: dict[str, tuple[int, str]] = {}  # by place: how often it kept the last row from serving, how last
        self._owner, self._slow = weakref.ref(owner), slow
        self._original, self._stats = original, stats
        self._settings = original.settings
        self._publishing = threading.RLock()
        self._native: EntryCode | None = None
        self._native_types: dict[type, None] = {}

    def watch_autocast(self, row: Row) -> None:
        """Note from now on when the caller's regions of autocast end, for a row that needs casts of these."""
        cleared.tell(self, _began_anew)
        _rows[row] = weakref.ref(self)

    def is_as_autocast_keeps_it(self, row: Row, failed: int) -> bool:
        """Whether a row whose guard failed is right: only weights changed of which autocast keeps the casts that it
        made before, and these are the row's, from a call in the same region.
        """
        if row.entry is None or not row.hits or not row.guards.is_of_constant(failed) or not keeps_casts():
            return False
        changed = row.changed_casts()
        if changed is None:
            return False
        if self.has_used_in_region(row):
            return True
        # Another object may have made the same casts.
        others = [r for r in _rows_of_region() if r.hits and r is not row]
        return all(any(r.guards.constants.version_of(tensor) == version for r in others) for tensor, version in changed)

    @staticmethod
    def keeps_casts_of(row: Row) -> bool:
        """Whether autocast keeps casts of its weights: eager mode would cast anew what a compiled call has cast."""
        return row.entry is not None and bool(row.entry.kept_casts) and keeps_casts()

    def has_used_in_region(self, row: Row) -> bool:
        """Whether a row was made, or has run, since autocast has last forgotten casts."""
        return row.used > self._region_began

    def is_cast_before(self, entry: Entry) -> bool:
        """Whether autocast goes on with casts of weights that have changed since: an entry made now has others."""
        if not entry.kept_casts or not keeps_casts():
            return False
        made = [row.guards.constants for row in _rows_of_region()]
        return any(
            constants.version_of(weight) not in (-1, weight._version)
            for weight in filter(is_kept, entry.kept_casts)
            for constants in made
        )

    def serve(self, compiled: Any) -> None:
        """Take the calls of this object natively where native code can find its dispatcher."""
        if keeps_in_reach(compiled, self._owner()):
            self._native_types[type(compiled)] = None

    def serve_through(self, make: Callable[[Any], Any]) -> None:
        """The same for objects that are made for one call each, of the dispatcher."""
        owner = self._owner()
        if owner is not None:
            self.serve(make(owner))

    def add(self, row: Row) -> None:
        """Put a row in front of the others, and let go of what is too much."""
        row.hit(self.counters.tick(), times=0)
        row.number, self._made = self._made, self._made + 1
        self._tell(row)
        used: dict[Any, int] = {}
        for other in (row, *self.rows):
            used[other.paths or other] = max(used.get(other.paths or other, 0), other.used)
        rows = sorted((row, *self.rows), key=lambda other: (other.is_last, -used[other.paths or other]))
        kinds = list(dict.fromkeys(other.paths or other for other in rows))  # the paths of one set of guards are one
        if len(kinds) > ENTRY_LIMIT:
            self._stats.evictions += 1
            self._original.warn(
                "storm",
                f"{self._original.name} is compiled again and again: "
                f"{self._storming() or 'its arguments differ at each call'}. At most {ENTRY_LIMIT} entries are cached; "
                f"after {STORM_LIMIT} the original runs instead.",
            )
        kept = set(kinds[:ENTRY_LIMIT])
        self.rows = tuple(other for other in rows if (other.paths or other) in kept)
        self.publish()

    def _tell(self, row: Row) -> None:
        """Log what has become of a build (SMELT_LOGS)."""
        name = f"{self._original.name}, entry {row.number}"
        if row.entry is None:
            how = "falls back to eager" if row.split is None else "runs as partitions"
            tell("breaks", f"{name} {how}: {row.reason}")
        elif row.cause:
            tell("recompiles", f"{name}, made in {row.build_s * 1e3:.0f} ms: {row.cause}")
        if wants("guards"):
            for guard in row.guards.listed:
                tell("guards", f"{name}: {guard}")

    def drop(self, row: Row) -> None:
        """Take a row out of the table."""
        # A build in the foreground holds the lock already.
        with self.lock if self._settings.background else contextlib.nullcontext():
            self.rows = tuple(other for other in self.rows if other is not row)
        self.publish()

    def move_to_front(self, row: Row) -> None:
        """Ask a row first from now on, unless one is being built just now."""
        if self.lock.acquire(blocking=False):
            try:
                self.rows = (row, *(other for other in self.rows if other is not row))
                self.publish()
            finally:
                self.lock.release()

    def note_misses(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Count the guards that failed; the one of the row that was used last, as a sentence."""
        first = ""
        for row in self.rows:
            failed = row.guards.check(args, kwargs)
            if failed is not None:
                text = row.guards.explain(failed, args, kwargs)
                place = row.guards.replaced(failed)
                if place is not None:
                    self.replaced.add(place)
                self.count_miss(text)
                first = first or text
        if first:
            place = _place_of(first)
            self._causes[place] = self._causes.get(place, (0, ""))[0] + 1, first
        return first

    def count_miss(self, text: str) -> None:
        """Count a guard that failed, by its text."""
        self._stats.count_miss(text)

    def _storming(self) -> str:
        """What kept the row that was used last from serving: of the place where that is so most often, the latest."""
        return max(reversed(self._causes.values()), key=lambda cause: cause[0], default=(0, ""))[1]

    def make_native(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Let native code serve calls like this one, which has just passed the row's guards."""
        row.may_be_native = False
        owner = self._owner()
        if row.entry is None or not self._native_types or owner is None:
            return
        code = native_entry(type(owner), self._slow, self._settings.options)
        if code is None or not all(code.is_installed(cls) or code.install(cls) for cls in self._native_types):
            return
        self._native = code
        watch_levels()
        target, plans = target_of(owner, row, args, kwargs), plans_of(owner, row, args, kwargs)
        row.native = code.row(row.guards, args, kwargs, target, self.counters, plans)
        self.publish()

    def checks_of(self, row: Row) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        """What looks at a row's guards when it is called: native code if that serves the row, else Python."""
        native, code = row.native, self._native
        if native is None or code is None:
            return row.guards.check
        return partial(code.holds, native.guards)

    def renew_native(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Let native code know of a plan that this row has got since; this call has passed its guards."""
        before, owner = row.native, self._owner()
        if before is None or self._native is None or owner is None:
            return
        target, plans = target_of(owner, row, args, kwargs), plans_of(owner, row, args, kwargs)
        renewed = self._native.row_with(before.guards, target, self.counters, plans)
        with self._publishing:
            if row.native is before:  # and not withdrawn meanwhile
                row.forget_native()
                row.native, row.may_be_native = renewed, False
                self.publish()

    def publish(self) -> None:
        """Give native code the rows up to the first that only Python can serve, so that the same one answers."""
        owner = self._owner()
        if owner is None:
            return
        with self._publishing:
            rows = []
            for row in self.rows:
                if row.native is None or row.is_for_python:
                    break
                rows.append(row.native)
            if rows and self._native is not None:
                owner.table = self._native.table(rows)
            elif hasattr(owner, "table"):
                del owner.table

    def follow(self) -> None:
        """Have rows whose layers have made lists of their weights anew go on with these."""
        for row in self.rows:
            if row.guards.follow():
                self.withdraw(row)

    def withdraw(self, row: Row) -> None:
        """What native code knows of a row is no longer so."""
        with self._publishing:
            row.forget_native()
            self.publish()
