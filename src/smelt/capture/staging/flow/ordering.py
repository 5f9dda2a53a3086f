"""Lists of known lengths in an order that data decide: the items are picked by number, so that all orders are one way.

    cand.sort(key=lambda c: -c[1])     cand: [([a, b], x), ([c, d], y)]     ==>

    %keys = py.list(-x, -y)    %order = py.call("list.sorted_by", [0, 1], %keys, False)    %0 = py.getitem(%order, 0)
    cand[0] = ([py.getitem([a, c], %0), py.getitem([b, d], %0)], py.getitem([x, y], %0))

Invariant: what stands at a place afterwards is a copy, so it is used only as long as nobody can tell: a container that
others hold too must not be changed from there on (`check_unchanged`); else each order is a way of its own.
"""

from __future__ import annotations

import enum
import math
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from types import BuiltinMethodType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from smelt.capture.dynamic.arithmetic import at_hand
from smelt.capture.dynamic.values import is_sized, number_of
from smelt.capture.recording.tensor_slots import slot_type
from smelt.capture.staging.fakes.symbols import StagedObject, is_staged, slot_of
from smelt.capture.staging.flow.stops import CannotMerge
from smelt.capture.structure.roots import is_skipped_class
from smelt.capture.structure.tree import tuple_of
from smelt.ir import BOOL, FLOAT, INT, STR, TensorType, type_of_arg

if TYPE_CHECKING:
    from smelt.capture.convert.runtime import Runtime
    from smelt.capture.staging.session import Session

_PLAIN = (bool, int, float, str)
_SORTABLE = (BOOL, INT, FLOAT, STR)
_READING = frozenset(("copy", "count", "index", "get", "items", "keys", "values"))
_ALONE = 2  # references to an object that only its container holds: that one, and the argument of `getrefcount`


def sort(session: Session, runtime: Runtime, items: list[object], key: object = None, reverse: object = False) -> None:
    """`items.sort(key=key, reverse=reverse)` of a list that Python knows the length of."""
    items[:] = ordered(session, runtime, items, key, reverse)


def ordered(session: Session, runtime: Runtime, items: list[Any], key: Any, reverse: Any) -> list[object]:
    """`sorted(items, key=key, reverse=reverse)`."""
    alone = set(chain.from_iterable(_alone(items, i) for i in range(len(items))))
    keys = list(items) if key is None else [runtime.call(0, key, (item,), {}) for item in items]
    if len(items) < 2 or is_staged(reverse) or not any(_depends(session, k) for k in keys):
        order = sorted(range(len(items)), key=keys.__getitem__, reverse=reverse)
        return [items[i] for i in order]
    site = session.site()
    place = ("order", site)
    why = "no numbers of one kind tell the order"
    found = _sortable(session, keys)
    if found is not None and not session.domain.may_be_caught():
        why = "what is in it is changed where others hold it, too"
        if place not in session.assumed.forked:
            records, mark = session.recorder.records, len(session.recorder.records)
            order = session.emit("py.call", "list.sorted_by", list(range(len(items))), found, bool(reverse))
            try:
                picks = _Picks(session, place, alone)
                return [picks.one_of(items, session.getitem(order, i)) for i in range(len(items))]
            except CannotMerge as stop:
                why = stop.what
                if session.recorder.records is records:
                    del records[mark:]
    _count_ways(session, len(items), why)
    order = sorted(range(len(items)), key=keys.__getitem__, reverse=reverse)
    return [items[i] for i in order]


def is_sort(fn: object) -> bool:
    """Whether a function is the `sort` of one of Python's lists."""
    return type(fn) is BuiltinMethodType and fn.__name__ == "sort" and type(fn.__self__) is list


def check_call(session: Session, fn: object) -> None:
    """A method may change a container that was put in order. Raises: Again."""
    owner = getattr(fn, "__self__", None)
    if owner is not None and getattr(fn, "__name__", "") not in _READING:
        check_change(session, owner)


def check_change(session: Session, container: object) -> None:
    """A container is going to be changed, or asked who it is. Raises: Again where a copy of it may be held, too."""
    if type(container) in (list, dict):
        session.copies.check_change(container)
    held = session.heap.picked.get(id(container))
    if held is not None and held[0] is container:
        session.unmerge(("fork", held[2]))


def check_unchanged(session: Session) -> None:
    """At the end of a way: nothing has changed what stands in two places. Raises: Again, CannotStage."""
    session.copies.check_unchanged()
    for container, contents, place in list(session.heap.picked.values()):
        now = _contents(container)
        if len(now) != len(contents) or any(a is not b for a, b in zip(now, contents, strict=True)):
            session.unmerge(("fork", place))


def _count_ways(session: Session, length: int, why: str) -> None:
    """Each order is going to be a way of its own. Raises: CannotStage where that is more than can be explored."""
    region = session.paths.regions[-1]
    region.orders *= math.factorial(length)
    if region.orders > session.domain.most_explored:
        session.cannot(
            f"a list of {length} items is put in an order that depends on data",
            f"each order would be a separate path, {region.orders} in all, for {why}",
        )


# --- keys ------------------------------------------------------------------------------------------------------------


def _depends(session: Session, key: Any) -> bool:
    if isinstance(key, torch.Tensor):
        return bool(session.recorder.slot_of(key).family.tainted)
    if type(key) in (tuple, list):
        return any(_depends(session, part) for part in key)
    return is_staged(key)


def _sortable(session: Session, keys: Sequence[Any]) -> list[object] | None:
    """The keys as values that a graph sorts as Python does; None where they are no numbers of one kind."""
    if all(isinstance(key, torch.Tensor) for key in keys):
        slots = [session.recorder.slot_of(key) for key in keys]
        types = [slot_type(slot) if slot.family.tainted else None for slot in slots]
        alike = all(isinstance(t, TensorType) and t.shape == () and t.dtype == types[0].dtype for t in types)  # type: ignore[union-attr]
        if not alike or keys[0].is_complex():
            return None
        return [session.item(key) for key in keys]
    kinds = [_kind(key) for key in keys]
    if kinds[0] is None or any(kind != kinds[0] for kind in kinds):
        return None
    # Tuples take the same object for equal to itself, also a NaN, and a graph has no same objects.
    floats = [slot_of(part) for key in keys if _is_row(key) for part in key if _kind(part) == FLOAT]
    return None if len(set(floats)) < len(floats) else list(keys)


def _kind(key: Any) -> object:
    if is_staged(key):
        kind = slot_of(key).type
        return kind if kind in _SORTABLE else None
    if _is_row(key):
        refused = any(_is_row(part) or (_kind(part) == FLOAT and not is_staged(part)) for part in key)
        kinds = (type(key), *map(_kind, key))
        return None if None in kinds or refused else kinds
    return type_of_arg(at_hand(number_of(key))) if type(key) in _PLAIN or is_sized(key) else None


# --- items -----------------------------------------------------------------------------------------------------------


class _Picks:
    """One of several alike values, by a number that depends on data.

    alone: containers that nobody else holds, by id.
    """

    def __init__(self, session: Session, place: object, alone: set[int]) -> None:
        self.session, self.place, self.alone = session, place, alone
        self.number: Any = None
        self.made: dict[tuple[int, ...], Any] = {}
        self.lists: dict[tuple[int, ...], StagedObject] = {}

    def one_of(self, values: Sequence[object], number: object) -> object:
        """The value of a number. Raises: CannotMerge where the values are not alike."""
        self.number, self.made = number, {}
        return self._any(values)

    def _any(self, values: Sequence[object]) -> object:
        first = values[0]
        if all(value is first for value in values):
            return first
        ids = tuple(map(id, values))
        if ids not in self.made:
            self.made[ids] = self._one_of(list(values))
        return self.made[ids]

    def _picked(self, values: list[object]) -> object:
        ids = tuple(map(id, values))
        if ids not in self.lists:
            self.lists[ids] = self.session.container(values)
        return self.session.getitem(self.lists[ids], self.number)

    def _one_of(self, values: list[Any]) -> object:
        first = values[0]
        if all(isinstance(value, torch.Tensor) for value in values):
            return self._tensor(values)
        if all(is_staged(value) or is_sized(value) or type(value) in _PLAIN for value in values):
            return self._value(values)
        if any(type(value) is not type(first) for value in values):
            self._fail("of several kinds")
        if isinstance(first, tuple):
            self._alike(map(len, values))
            items = [self._any(parts) for parts in zip(*values, strict=True)]
            return self._held(values, tuple_of(type(first), items))
        if type(first) is list:
            self._alike(map(len, values))
            return self._held(values, [self._any(parts) for parts in zip(*values, strict=True)])
        if type(first) is dict:
            self._alike(map(list, values))
            return self._held(values, {k: self._any([value[k] for value in values]) for k in first})
        if isinstance(first, (torch.dtype, torch.device, range, slice, bytes)) and all(v == first for v in values):
            return first
        if not _is_plain_object(first):
            self._fail(f"of kind {type(first).__qualname__}")
        self._alike(map(list, map(vars, values)))
        made = object.__new__(type(first))
        vars(made).update({k: self._any([vars(value)[k] for value in values]) for k in vars(first)})
        return self._held(values, made)

    def _value(self, values: list[object]) -> Any:
        slots = [self.session.encode(value) for value in values]
        plain = [slot for slot in slots if type(slot) in _PLAIN]
        if len(plain) == len(slots) and len({(type(p), repr(p)) for p in plain}) == 1:
            return plain[0]
        self._alike(type_of_arg(slot) if type(slot) in _PLAIN else slot.type for slot in slots)
        found = self._picked(values)
        return self._held(values, found) if isinstance(found, StagedObject) and slot_of(found).type != STR else found

    def _tensor(self, values: list[torch.Tensor]) -> Any:
        recorder = self.session.recorder
        slots = [recorder.slot_of(value) for value in values]
        if any(slot.kind == "unknown" for slot in slots) or any(value.requires_grad for value in values):
            self._fail("with tensors that gradients flow to")
        self._alike(map(slot_type, slots))
        found = self._picked(values)
        families = [recorder.slot_of(tensor).family for tensor in (*values, found)]
        recorder.entwine(families, ("fork", self.place))
        return self._held(values, found)

    def _held(self, values: list[object], made: object) -> Any:
        """An object that stands for several; where others hold these, none may change, or be asked who it is."""
        if not all(id(value) in self.alone for value in values):
            for container in (*values, made):
                self.session.heap.picked[id(container)] = (container, _contents(container), self.place)
        return made

    def _alike(self, features: Iterable[object]) -> None:
        known = list(features)
        if any(feature != known[0] for feature in known):
            self._fail("of several lengths or kinds")

    def _fail(self, what: str) -> NoReturn:
        raise CannotMerge(f"the list holds items {what}", "no single value can represent all", self.session.site())


def _alone(parent: Any, key: Any) -> set[int]:
    """The ids of the containers under a place that are held there only."""
    if sys.getrefcount(parent[key]) > _ALONE or isinstance(parent[key], torch.Tensor):
        return set()
    found = {id(parent[key])}
    if _is_plain_object(parent[key]):
        return found.union(*[_alone(vars(parent[key]), k) for k in list(vars(parent[key]))])
    if type(parent[key]) is dict:
        return found.union(*[_alone(parent[key], k) for k in list(parent[key])])
    return found.union(*[_alone(parent[key], k) for k in range(len(parent[key]))]) if _is_row(parent[key]) else found


def _is_row(value: object) -> bool:
    return type(value) in (tuple, list)


def _is_plain_object(value: object) -> bool:
    """Whether an object is what its attributes are, and nothing else."""
    if not hasattr(value, "__dict__") or callable(value) or is_staged(value) or is_skipped_class(type(value)):
        return False
    return type(value).__basicsize__ == _BASIC_SIZE and not isinstance(
        value, (torch.Tensor, type, ModuleType, enum.Enum)
    )


class _Object:
    pass


_BASIC_SIZE = _Object.__basicsize__  # that of a class without slots, and not made of one of C


def _contents(container: Any) -> tuple[object, ...]:
    """What a container holds that may be changed."""
    if isinstance(container, (tuple, torch.Tensor)):
        return ()
    if isinstance(container, StagedObject):
        return (slot_of(container),)
    held = container if type(container) in (list, dict) else vars(container)
    return tuple(chain.from_iterable(held.items()) if type(held) is dict else held)


__all__ = ["check_call", "check_change", "check_unchanged", "is_sort", "ordered", "sort"]
