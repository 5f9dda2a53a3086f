"""What could be reached at some time, and what of it is different by now: all else is not gone to again.

A staged run looks at all that the program can reach before each branch and loop, and most of it never changes. Whether
it did is asked of many containers at once.

Invariant: what a walk from the same roots would come to is what was come to then, and what `further` comes to.
"""

from __future__ import annotations

import gc
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import attrgetter, is_
from typing import Any

import torch

from smelt._torch.annotations import annotations_held
from smelt.capture.staging.objects.containers import MISSING, are_the_same, holds_the_same
from smelt.capture.staging.objects.hidden import Fields
from smelt.capture.staging.objects.reachable import Walk, fields_of, slot_in

_SIZE = 128
"""So many containers are compared at once: where one is different, each of these is looked at."""

_CONTENTS = attrgetter("cell_contents")
_OF_FUNCTIONS: tuple[Callable[[object], object], ...] = (
    *map(attrgetter, ("__code__", "__defaults__", "__kwdefaults__")),
    annotations_held,
)
_Pair = tuple[Any, Any]


@dataclass(frozen=True)
class _Kind:
    """How containers of a kind are read by functions of C. view: what of it is read."""

    length: Callable[[Any], int]
    parts: Sequence[Callable[[Any], Iterable[Any]]]
    view: Callable[[object], object] | None = None


def _attributes(tensor: torch.Tensor) -> dict[str, object]:
    found: dict[str, Any] = object.__getattribute__(tensor, "__dict__")
    return found


_KINDS: dict[type, _Kind] = {
    OrderedDict: _Kind(dict.__len__, (OrderedDict.keys, OrderedDict.values)),
    dict: _Kind(dict.__len__, (dict.keys, dict.values)),
    list: _Kind(list.__len__, (list.__iter__,)),
    set: _Kind(set.__len__, (set.__iter__,)),
    type: _Kind(len, (types.MappingProxyType.keys, types.MappingProxyType.values), vars),
    torch.Tensor: _Kind(dict.__len__, (dict.keys, dict.values), _attributes),
}


class _Batch:
    """Containers of one kind, compared at once."""

    def __init__(self, kind: _Kind, pairs: Sequence[_Pair]) -> None:
        self.pairs = pairs
        self._length = kind.length
        self._views = [container if kind.view is None else kind.view(container) for container, _ in pairs]
        self._lengths = list(map(kind.length, self._views))
        self._filled = [view for view, length in zip(self._views, self._lengths, strict=True) if length]
        self._parts = [(part, tuple(chain.from_iterable(map(part, self._filled)))) for part in kind.parts]

    def is_as_it_was(self) -> bool:
        if list(map(self._length, self._views)) != self._lengths:
            return False
        return all(all(map(is_, chain.from_iterable(map(part, self._filled)), held)) for part, held in self._parts)


class _Cells:
    """Cells with something in them, compared at once."""

    def __init__(self, pairs: Sequence[_Pair]) -> None:
        self.pairs = pairs
        self._cells = [cell for cell, _ in pairs]
        self._held = [held for _, held in pairs]

    def is_as_it_was(self) -> bool:
        try:
            return all(map(is_, map(_CONTENTS, self._cells), self._held))
        except ValueError:
            return False


class _Others:
    """Whatever has no faster way."""

    def __init__(self, pairs: Sequence[_Pair]) -> None:
        self.pairs = pairs

    def is_as_it_was(self) -> bool:
        return not self.pairs


class Settled:
    """What was reachable from some roots.

    copies: by id, the containers and what they held. caches: those of functions. hidden: what holds more than these.
    """

    def __init__(self, roots: Iterable[object], without: Iterable[object] = ()) -> None:
        self._walk = walk = Walk({id(item) for item in without})
        walk.run(roots)
        self.copies = walk.copies
        self.caches = walk.caches
        self.hidden = walk.hidden
        self._batches = list(_batches(self.copies.values()))
        self._objects = [value for value, _, _ in walk.objects]
        self._classes = [cls for _, cls, _ in walk.objects]
        self._with_state = [value for value, _, state in walk.objects if state is not None]
        self._states = [state for _, _, state in walk.objects if state is not None]
        self._functions = [function for functions in walk.functions.values() for function in functions]
        self._of_functions = [(get, list(map(get, self._functions))) for get in _OF_FUNCTIONS]
        self._held_by_functions = gc.get_referents(*self._functions)

    def fields(self) -> list[Fields]:
        """What objects of the kinds that there are most of hold beside containers."""
        return fields_of(self._walk)

    def is_apart_from(self, ids: set[int]) -> bool:
        """Whether none of these was come to."""
        return ids.isdisjoint(self._walk.seen)

    def changed(self) -> Iterator[_Pair]:
        """The containers that hold something else now, and what they held."""
        for batch in self._batches:
            if not batch.is_as_it_was():
                for container, old in batch.pairs:
                    if not holds_the_same(container, old):
                        yield container, old

    def further(self, roots: Iterable[object], without: set[int]) -> Walk:
        """Go to what these roots lead to and was not come to then, and to what leads elsewhere by now."""
        changed = [container for container, _ in self.changed()]
        again = [*self._to_visit(changed), *self._leading_elsewhere()]
        copied = self.copies.keys() - map(id, changed) if changed else self.copies
        walk = Walk(without, known=self._walk.seen, copied=copied, names=self._walk.names)
        walk.run(roots, again)
        return walk

    def _to_visit(self, changed: Iterable[object]) -> Iterator[object]:
        for container in changed:
            if id(container) in self._walk.seen or isinstance(container, type):
                yield container
            if id(container) in self._walk.modules:
                yield self._walk.modules[id(container)]
            # Of globals only the names are gone to that a function has.
            yield from self._walk.functions.get(id(container), ())

    def _leading_elsewhere(self) -> Iterator[object]:
        """What is no container, and refers to something else than it did: an object of another class, with another
        dictionary, with something else in a slot, a function with other code, defaults or annotations.
        """
        if not all(map(is_, map(type, self._objects), self._classes)) or not all(
            map(is_, map(object.__getattribute__, self._with_state, repeat("__dict__")), self._states)
        ):
            for value, cls, state in self._walk.objects:
                if type(value) is not cls or (state is not None and slot_in(value, "__dict__") is not state):
                    yield value
        # All that functions refer to is compared at once: each is looked at only where something is another.
        are_as_they_were = are_the_same(gc.get_referents(*self._functions), self._held_by_functions)
        for get, held in () if are_as_they_were else self._of_functions:
            if not all(map(is_, map(get, self._functions), held)):
                yield from (f for f, old in zip(self._functions, held, strict=True) if get(f) is not old)
        for value, name, old in self._walk.slots:
            if slot_in(value, name) is not old:
                yield value


def _batches(pairs: Iterable[_Pair]) -> Iterator[_Batch | _Cells | _Others]:
    by_kind: dict[object, list[_Pair]] = {}
    for pair in pairs:
        container, held = pair
        base: object = next((base for base in _KINDS if isinstance(container, base)), None)
        if isinstance(container, types.CellType) and held is not MISSING:
            base = _Cells
        by_kind.setdefault(base, []).append(pair)
    for base, found in by_kind.items():
        for start in range(0, len(found), _SIZE):
            part = found[start : start + _SIZE]
            if base in _KINDS:
                yield _Batch(_KINDS[base], part)
            else:
                yield _Cells(part) if base is _Cells else _Others(part)
