"""Python's own state around a staged run: what is reachable, what changed, and how it is put back.

A snapshot holds shallow copies of all containers that can be reached from some roots: dictionaries (those of objects
and modules too), lists, sets, deques, closure cells, objects with slots. Contents are compared by identity. What a
`functools.lru_cache` came to hold is no change, for nobody can tell, but is taken out again: it may be a fake tensor.

Invariant: nothing of the user's is called; restoring leaves each container the same object with its old contents.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from smelt._torch.library.lru import table_of
from smelt.capture.convert.runtime import HIDDEN
from smelt.capture.reads.reads_values import HOOKED
from smelt.capture.staging.fakes.symbols import StagedObject, slot_of, wrap
from smelt.capture.staging.objects.changed_since import Settled
from smelt.capture.staging.objects.containers import (
    MISSING,
    WHOLE,
    are_the_same,
    base_of,
    contents,
    has_slots_only,
    holds_the_same,
    is_as_it_was,
    put_slot,
    refill,
)
from smelt.capture.staging.objects.hidden import keepers_of
from smelt.capture.staging.objects.process import Settings
from smelt.capture.staging.objects.reachable import Walk, fields_of
from smelt.capture.staging.objects.unconverted_code import unwatched

if TYPE_CHECKING:
    from smelt.capture.staging.session import Session


class Change(NamedTuple):
    """What became of one place: `container[key]`, the contents of a cell, or all contents (key WHOLE)."""

    container: Any
    key: Any
    old: Any
    new: Any

    def put(self, value: object) -> None:
        """Have the place hold a value (MISSING: nothing)."""
        container = self.container
        if isinstance(container, StagedObject):
            container.slot = slot_of(value)
        elif isinstance(container, type):
            if value is MISSING:
                type.__delattr__(container, self.key)
            else:
                type.__setattr__(container, self.key, value)
        elif isinstance(container, types.CellType):
            if value is MISSING:
                del container.cell_contents
            else:
                container.cell_contents = value
        elif self.key is WHOLE:
            refill(container, value)
        elif has_slots_only(container):
            put_slot(container, self.key, value)
        elif value is MISSING:
            if dict.__contains__(container, self.key):
                base_of(container).__delitem__(container, self.key)
        else:
            base_of(container).__setitem__(container, self.key, value)


class Snapshot:
    """Copies of the containers that were reachable from the roots.

    parents: by id, what holds a list or a dictionary. hidden: what objects hold outside of any container (bytes) is put
    back, too, though its change is none. iterators: by id, those that a run would advance for good.

    codes: whether the code of functions is put back, too.

    settled: what was reachable before. Of that only what is different by now is gone to again, and has no parents here.
    """

    def __init__(
        self,
        roots: Iterable[object],
        without: Iterable[object] = (),
        hidden: bool = False,
        settled: Settled | None = None,
        codes: bool = True,
    ) -> None:
        left_out = {id(item) for item in without}
        self._settled = settled
        if settled is None:
            walk = Walk(left_out, hidden)
            walk.run(roots)
        else:
            walk = settled.further(roots, left_out)
        self._own = walk.copies
        self._caches = [
            (table, dict(table))
            for cache in (*walk.caches, *(() if settled is None else settled.caches))
            if (table := table_of(cache)) is not None
        ]
        self._walk = walk
        self.parents = walk.parents
        held = (*walk.hidden, *(() if settled is None else settled.hidden))
        self._keepers = [put_back for value in held for put_back in keepers_of(value)]
        self._fields = [*fields_of(walk, codes), *(() if settled is None else settled.fields())]
        self._settings = Settings()
        self.iterators = walk.iterators

    def holds(self, value: object) -> bool:
        """Whether a container was reachable."""
        return id(value) in self._own or (self._settled is not None and id(value) in self._settled.copies)

    def reached(self, value: object) -> bool:
        """Whether an object was reachable, a container or not."""
        return id(value) in self._walk.seen

    def _changed(self) -> Iterator[tuple[object, object]]:
        """The containers that may hold something else now, and what they held."""
        for container, old in self._own.values():
            if not is_as_it_was(container, old):
                yield container, old
        if self._settled is not None:
            for container, old in self._settled.changed():
                if id(container) not in self._own:
                    yield container, old

    @unwatched
    def changes(self) -> dict[tuple[int, Any], Change]:
        """What is different now, by container and key."""
        found: dict[tuple[int, Any], Change] = {}
        for container, old in self._changed():
            for change in _differences(container, old):
                found[id(container), _hashable(change.key)] = change
        return found

    @unwatched
    def restore(self, changes: Iterable[Change] | None = None) -> bool:
        """Put everything back; whether something was changed that objects hold outside of any container.

        changes: all that is different, where that was just asked.
        """
        hidden = [put_back() for put_back in self._keepers]
        hidden.extend(fields.put_back() for fields in self._fields)
        hidden.append(self._settings.put_back())
        hidden.extend([_as_it_was(table, held) for table, held in self._caches])
        if changes is None:
            pairs = list(self._changed())
        else:
            pairs = list({id(c.container): self._copy_of(c.container) for c in changes}.values())
        for container, old in pairs:
            if isinstance(container, (types.CellType, StagedObject, type)):
                for change in list(_differences(container, old)):
                    change.put(change.old)
            elif not holds_the_same(container, old):  # which asks no member's hash: that of a staged number is no more
                refill(container, old)
        return any(hidden)

    def _copy_of(self, container: object) -> tuple[object, object]:
        found = self._own.get(id(container))
        if found is None:
            assert self._settled is not None
            found = self._settled.copies[id(container)]
        return found


def _as_it_was(table: dict[object, object], held: dict[object, object]) -> bool:
    """Leave those entries in a cache's table that were there; whether some of them are gone.

    Those come back, but for a bounded cache's, which are parts of more than the table.
    """
    keys = set(map(id, held))
    kept = [(key, value) for key, value in table.items() if id(key) in keys]
    is_less = len(kept) < len(held)
    if is_less and not any(type(value).__name__ == "_lru_list_elem" for value in held.values()):
        kept = list(held.items())
    if len(kept) != len(table) or is_less:
        table.clear()
        table.update(kept)
    return is_less


def _hashable(key: object) -> object:
    try:
        hash(key)
    except TypeError:
        return id(key)
    return (type(key), key)


def _is_hook(value: object) -> bool:
    return isinstance(value, types.FunctionType) and HOOKED in vars(value)


def _differences(container: Any, old: Any) -> Iterator[Change]:
    if isinstance(container, StagedObject):
        if container.slot is not old.slot:
            yield Change(container, None, old, wrap(container.slot))
    elif isinstance(container, types.CellType):
        now = contents(container)
        if now is not old:
            yield Change(container, None, old, now)
    elif isinstance(container, type):
        now = vars(container)
        if are_the_same(now.keys(), old) and are_the_same(now.values(), old.values()):
            return
        for key in {**old, **now}:
            before, after = old.get(key, MISSING), now.get(key, MISSING)
            # Methods are wrapped, and reads of attributes watched, while a run is recorded.
            is_method = isinstance(before, types.FunctionType) and isinstance(after, types.FunctionType)
            is_method = is_method or _is_hook(before) or _is_hook(after)
            if before is not after and not is_method and key not in ("__dict__", "__weakref__"):
                yield Change(container, key, before, after)
    elif isinstance(container, dict) or has_slots_only(container):
        now = contents(container)
        if are_the_same(now.keys(), old) and are_the_same(now.values(), old.values()):
            return
        if isinstance(container, dict) and list(now) != list(old) and now.keys() == old.keys():
            yield Change(container, WHOLE, old, now)  # in another order
            return
        for key in {**old, **now}:
            before, after = old.get(key, MISSING), now.get(key, MISSING)
            if before is not after:
                yield Change(container, key, before, after)
    else:
        now = contents(container)
        if isinstance(container, set):
            if {id(item) for item in now} != {id(item) for item in old}:
                yield Change(container, WHOLE, old, now)
        elif len(now) != len(old):
            yield Change(container, WHOLE, old, now)
        elif not are_the_same(now, old):
            for i, (before, after) in enumerate(zip(old, now, strict=True)):
                if before is not after:
                    yield Change(container, i, before, after)


class Heap:
    """Python's objects in one run of a program.

    roots: what leads to all of the program's; callers: the arguments' objects, by id. snapshots: of what there was
    before each region that is open; befores: the same of each branch and loop that runs, with what their variables
    held. gone_over: loops that Python unrolls, and the lists that they go over. picked: containers of which there may
    be copies, by id.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.roots: list[object] = []
        self.callers: Mapping[int, int] = {}
        self.snapshots: list[Snapshot] = []
        self.befores: list[tuple[Snapshot, tuple[object, ...]]] = []
        self.gone_over: list[tuple[object, list[list[object]]]] = []
        self.picked: dict[int, tuple[Any, Any, object]] = {}
        self._settled: Settled | None = None  # what was reachable when it was first looked at

    @property
    def own(self) -> tuple[object, ...]:
        """The parts of the run: none of the program's."""
        session = self.session
        return session, session.domain, session.paths, session.reading, session.recorder, self

    def is_outer(self, container: object) -> bool:
        """Whether a container was there before the innermost region that is being explored."""
        return bool(self.snapshots) and self.snapshots[-1].holds(container)

    def is_older(self, container: object) -> bool:
        """Whether a dictionary was there before a branch or loop that runs: staged, it is one value before that."""
        return type(container) is dict and any(
            snapshot.holds(container) or any(value is container for value in values)
            for snapshot, values in self.befores
        )

    def held_by_callers(self, value: object) -> bool:
        """Whether a variable of a function that runs now holds a value."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame is not self.session.base_frame:
            is_ours = frame.f_globals.get("__name__", "").startswith("smelt.capture")
            if not is_ours and any(held is value for held in frame.f_locals.values()):
                return True
            frame = frame.f_back
        return False

    @unwatched
    def snapshot(self, without: Sequence[object] = (), more: Sequence[object] = ()) -> Snapshot:
        """Copies of all containers that the program can reach from where it stands."""
        if self._settled is None:
            self._settled = Settled(self.roots, self.own)
        left_out = [*without, *self.own]
        if not self._settled.is_apart_from({id(item) for item in left_out}):
            return self.whole_snapshot(without, more)
        return Snapshot([*self.locals_without(), *more], left_out, settled=self._settled)

    @unwatched
    def whole_snapshot(self, without: Sequence[object] = (), more: Sequence[object] = ()) -> Snapshot:
        """The same, with all that holds a list or a dictionary."""
        return Snapshot([*self.roots, *self.locals_without(), *more], [*without, *self.own])

    def locals_without(self, own: Collection[str] = ()) -> list[object]:
        """What the variables of all functions hold that run now, but for those of these names of the last one."""
        found: list[Any] = []
        frame: Any = sys._getframe(1)
        while frame is not None and frame is not self.session.base_frame:
            if not frame.f_globals.get("__name__", "").startswith("smelt.capture"):
                found.extend(v for name, v in frame.f_locals.items() if name not in own)
                # Parts of the converted function are functions of their own, and see its variables, too.
                own = own if frame.f_code.co_name.startswith(HIDDEN) else ()
            frame = frame.f_back
        return found
