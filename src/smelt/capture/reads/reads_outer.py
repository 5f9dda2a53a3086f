"""Places outside the arguments that a run leaves changed, and that a call can change again.

Two kinds. An attribute that the run only writes (`self.last = h`): what it held before makes no difference to the run,
so nothing of it is guarded. And state (`self.n += 1`), which the run reads, too: what it held is an argument of the
program (`capture.structure.state`); `state_places` finds such places after a run. Both get after each call what the run
left.

Invariant: a place is one of these only if every read of it would have been seen.
"""

from __future__ import annotations

import operator
import re
from abc import ABCMeta
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from smelt._torch.exact import MISSING, same_contents, still
from smelt.capture.reads.reads_arguments import Held, slots_of
from smelt.capture.reads.reads_facts import Change, Read, Site, facts_of
from smelt.capture.reads.reads_scan import only_appends
from smelt.capture.reads.reads_values import (
    REGISTRIES,
    cell_contents,
    class_attributes,
    has_own_lookup,
    instance_dict,
    overrides_instance,
    peek,
    raw_lookup,
)
from smelt.capture.structure.state import STATE, Place
from smelt.diag.records import distinct_record, record

if TYPE_CHECKING:
    from smelt.capture.reads.reads_roots import Roots


_STATE_ITSELF = re.compile(re.escape(f"kwargs[{STATE!r}]") + r"\[\d+\]")


# Of containers whose contents can be an argument: all that they are is what they hold, in its order.
_KINDS = (list, dict, OrderedDict, defaultdict, Counter, deque)


@distinct_record
class Outer:
    """One place: what it held before the run (MISSING: nothing) and after it.

    Of a list or deque that is appended to these are its items, as a tuple.
    """

    place: Place
    before: Any
    after: Any

    def put(self, value: object) -> None:
        """Have it hold a value, or nothing (MISSING)."""
        if self.place.is_appended:
            self.place.read()[:] = value
        else:
            self.place.put(value)

    @property
    def items(self) -> tuple[Any, ...]:
        """What is appended."""
        found: tuple[Any, ...] = self.after[len(self.before) :]
        return found


def appended(place: Place, before: tuple[object, ...]) -> Outer | None:
    """What was appended to a list that held these; None where something else was done to it."""
    now = place.read()
    if type(now) is not list or len(now) < len(before) or not all(map(operator.is_, before, now)):
        return None
    return Outer(place, before, tuple(now))


def outer_writes(roots: Roots) -> list[Outer]:
    """The attributes that a run has only written."""
    read = {(id(owner), name) for owner, name, _, _ in roots.raw}
    found: list[Outer] = []
    for (number, name), (owner, _, before, site) in roots.written.items():
        own = instance_dict(owner)
        if own is None or name not in own or (number, name) in read or id(own) in roots.copies:
            continue
        if number in roots.arguments or (roots.heap is not None and roots.heap.owns(number)) or name.startswith("__"):
            continue
        cls = type(owner)
        if has_own_lookup(cls) or overrides_instance(raw_lookup(cls, name)) or _is_registered(own, name):
            continue
        known = any((kind, id(own), name) in roots.facts for kind in ("item", "absent"))
        value = own[name]
        if (id(own), name) in roots.state or known or not _is_put(value):
            continue
        place = Place("entry", own, name, f"{roots.name(number)}.{name}", owner, site)
        found.append(Outer(place, before, value))
    return found


def changed_state(roots: Roots) -> list[Outer]:
    """The places of state that a run has changed, in the order in which it did."""
    found: list[Outer] = []
    order: dict[tuple[int, str] | None, int] = {spot: i for i, spot in enumerate(roots.written)}
    for place in sorted(roots.state.values(), key=lambda place: order.get(place.attribute, -1)):
        before, after = roots.held[place.spot], place.read()
        if place.is_appended:
            grown = appended(place, before)
            if grown is not None and grown.items:
                found.append(grown)
            continue
        if place.kind != "object" and not still(after, before):
            found.append(Outer(place, before, after))
    return found


def broken_state(roots: Roots) -> list[Change]:
    """Lists of state with which this run did more than to append to them."""
    return [
        Change(place.spot, place.name, roots.held[place.spot], place.read(), place.site)
        for place in roots.state.values()
        if place.is_appended and (appended(place, roots.held[place.spot]) is None or not _only_appends(roots, place))
    ]


def _only_appends(roots: Roots, place: Place) -> bool:
    """Whether a run did nothing with a place but to append to the list that it holds, and had it nowhere else.

    Lists among the arguments could be it at another call.
    """
    if id(place.space) in roots.copies or (roots.heap is not None and any(map(_is_list_of_a_call, roots.heap.held))):
        return False
    if place.owner is not None:
        return place.attribute not in roots.read_lists
    if place.kind == "cell":
        return all(only_appends(code, "cell", place.key_name) for code, _ in roots.executed.values())
    # A module's: others ask the module for it.
    return all(
        only_appends(code, "attribute", place.key)
        and (namespace is not place.space or only_appends(code, "global", place.key))
        for code, namespace in roots.executed.values()
    )


def _is_list_of_a_call(held: Held) -> bool:
    """Whether this is a list among the arguments. Those that are state itself are told apart before each call."""
    return type(held.value) is list and _STATE_ITSELF.fullmatch(held.place) is None


def _is_put(value: object) -> bool:
    return not callable(value) and not isinstance(value, (torch.nn.Module, torch.nn.Parameter))


def _is_registered(own: dict[str, Any], name: str) -> bool:
    return any(name in own[registry] for registry in REGISTRIES if isinstance(own.get(registry), dict))


@record
class State:
    """The places that make all of a run's changes. is_settled: they held something of the kind already, so that the
    run did not only fill what it will find filled."""

    places: tuple[Place, ...]
    is_settled: bool


def state_places(roots: Roots, changes: list[Change]) -> tuple[State | None, tuple[int, object] | None]:
    """The places of all these changes; None where some have none, and the spot of such a one."""
    finder = _Finder(roots)
    try:
        finder.find()
    except _NoPlace:
        return None, finder.at
    without = next((change.spot for change in changes if change.spot not in finder.found), None)
    return (None, without) if without else (State(tuple(finder.places.values()), finder.is_settled), None)


class _NoPlace(Exception):
    """Something was changed that is at no place that can be an argument."""


class _Finder:
    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        self.places: dict[tuple[int, Any], Place] = {}
        self.found: set[tuple[int, Any]] = set()  # the spots of the changes that these places make
        self.at: tuple[int, Any] = (0, None)  # the spot that is looked at
        self.is_settled = True
        self._facts: list[Read] = []

    def find(self) -> None:
        """Note all places. Raises: _NoPlace."""
        roots = self.roots
        for owner, name, before, site in roots.written.values():
            known = roots.outer | roots.state_names
            if id(owner) not in roots.opened and (id(owner), name) not in known:
                after = peek(owner, name)
                if not still(after, before):
                    self._look_at((id(owner), name))
                    self._attribute(owner, name, before, after, site)
        for store in roots.stores.values():
            after = store.space.get(store.key, MISSING)
            if not still(after, store.before) and store.spot not in roots.state:
                self._look_at(store.spot)
                if store.cls is not None:
                    self._of_class(store.cls, store.key, store.before, store.site)
                    continue
                if type(store.space) is not dict:
                    raise _NoPlace
                self._add(Place("entry", store.space, store.key, store.name, None, store.site), store.before, after)
        for fact in roots.facts.values():
            if fact.kind in ("class", "static"):
                self._class_fact(fact)
            if fact.kind == "cell" and not still(cell_contents(fact.owner), fact.value):
                self._look_at(fact.spot)
                place = Place("cell", fact.owner, None, fact.name, None, fact.site, fact.key)
                self._add(place, fact.value, cell_contents(fact.owner))
        for container, copy, _ in roots.copies.values():
            if id(container) not in roots.opened and not same_contents(container, copy, still):
                self._look_at((id(container), None))
                self._container(container)

    def _look_at(self, spot: tuple[int, object]) -> None:
        self.at = spot
        self.found.add(spot)

    def _class_fact(self, fact: Read) -> None:
        """Attributes of classes that hold something else than they did when this was noted."""
        if fact.kind == "class":
            now = class_attributes(fact.owner)
            changed = [key for key in {**fact.value, **now} if key not in (fact.key or ())]
            changed = [key for key in changed if not still(now.get(key, MISSING), fact.value.get(key, MISSING))]
            for key in changed:
                self._look_at(fact.spot)
                self._of_class(fact.owner, key, fact.value.get(key, MISSING), fact.site)
        else:
            if still(raw_lookup(fact.owner, fact.key), fact.value):
                return
            self._look_at(fact.spot)
            holder = next((base for base in fact.owner.__mro__ if fact.key in base.__dict__), fact.owner)
            self._of_class(holder, fact.key, fact.value, fact.site)

    def _of_class(self, cls: type, name: str, before: object, site: Site | None) -> None:
        if type(cls) not in (type, ABCMeta) or name.startswith("__"):
            raise _NoPlace  # its own `__setattr__`, or what it makes of names, is not known
        place = Place("class", cls, name, f"{cls.__name__}.{name}", None, site)
        self._add(place, before, place.read())

    def _add(self, place: Place, before: object, after: object) -> None:
        if before is MISSING or after is MISSING or not (_is_put(before) and _is_put(after)):
            raise _NoPlace
        self.is_settled &= before is not None
        self.places.setdefault(place.spot, place)

    def _attribute(self, owner: object, name: str, before: object, after: object, site: Site | None) -> None:
        roots, cls, own = self.roots, type(owner), instance_dict(owner)
        heap = roots.heap
        if id(owner) in roots.arguments or (heap is not None and heap.owns(id(owner))) or name.startswith("__"):
            raise _NoPlace
        if has_own_lookup(cls) or (own is not None and id(own) in roots.copies):
            raise _NoPlace
        shown = f"{roots.name(id(owner))}.{name}"
        slot = dict(slots_of(cls)).get(name)
        if slot is not None and raw_lookup(cls, name) is slot:
            self._add(Place("slot", owner, slot, shown, owner, site), before, after)
            return
        if own is None or overrides_instance(raw_lookup(cls, name)):
            raise _NoPlace
        if name in own:
            if _is_registered(own, name):
                raise _NoPlace
            self._add(Place("entry", own, name, shown, owner, site), before, after)
            return
        buffers = own.get("_buffers")
        if not (isinstance(owner, torch.nn.Module) and type(buffers) is dict and name in buffers):
            raise _NoPlace
        self._add(Place("entry", buffers, name, shown, owner, site), before, after)

    def _container(self, container: object) -> None:
        """The place of the outermost container that holds a changed one."""
        roots, top = self.roots, container
        while True:
            reached = roots.rooted[id(top)]
            parent = roots.rooted.get(reached.parent)
            if parent is None or id(parent.value) not in roots.copies or parent.label == ".__dict__":
                break
            top = parent.value
        if type(top) not in _KINDS or id(top) in roots.arguments:
            raise _NoPlace
        if roots.heap is not None and roots.heap.owns(id(top)):
            raise _NoPlace
        is_settled = bool(roots.copies[id(top)][1])
        self.found.add((id(top), None))
        site = roots.copies[id(top)][2]
        shown = roots.name(id(top))
        self._facts = self._facts or facts_of(roots)
        facts = [fact for fact in self._facts if fact.value is top]
        places = [fact for fact in facts if fact.kind in ("item", "cell")]
        others = sum(any(m is top for m in _members(copy)) for _, copy, _ in roots.copies.values())
        place = Place("object", top, None, shown, None, site)
        if len(places) == len(facts) == 1 and not others:
            fact = places[0]
            owner = fact.holder if fact.kind == "item" and instance_dict(fact.holder) is fact.owner else None
            if fact.kind == "cell":
                place = Place("cell", fact.owner, None, shown, None, site, fact.key)
            elif owner is not None or fact.label is not None:
                place = Place("entry", fact.owner, fact.key, shown, owner, site)
        if top is container and type(top) is list and place.kind in ("entry", "cell"):
            grown = replace(place, is_appended=True)
            if appended(grown, tuple(roots.copies[id(top)][1])) is not None and _only_appends(roots, grown):
                place, is_settled = grown, True
        self.is_settled &= is_settled
        # A place whose value is assigned is known already.
        if not any(known.read() is top or known.spot == place.spot for known in self.places.values()):
            self.places[place.spot] = place


def _members(copy: Any) -> Iterator[object]:
    yield from copy.values() if isinstance(copy, dict) else copy
