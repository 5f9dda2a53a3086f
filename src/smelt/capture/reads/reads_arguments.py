"""The objects of a call's arguments that a run may change: lists, dicts and attributes, before the run and after it.

    held = ArgumentHeap(args, kwargs)
    ...                                 the program runs
    held.close(outside)                 what changed; `held.opened`: the objects that are then known by structure
    with held.as_before(): ...          the objects as they were when the call began

An object that holds tensors, or that a run changes, is another at the next call, or holds something else: so it is not
compared by identity but, like lists and dicts, part by part, with all that leads to it. What the run left in it is for
the caller to put back at each call (`capture.structure.puts`).

Invariant: nothing of the user's is called; contents are read and put past `__setattr__`, `append` and their kin.
"""

from __future__ import annotations

import dataclasses
import types
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from smelt._torch.exact import MISSING, same
from smelt._torch.library.pytree import registered
from smelt._torch.seen.labels import attribute_label, key_labels
from smelt.capture.reads.reads_values import has_own_lookup, instance_dict, kind_of, overrides_instance, raw_lookup
from smelt.capture.structure.state import STATE
from smelt.capture.structure.tree import is_called_only
from smelt.diag.records import record

if TYPE_CHECKING:
    from smelt.capture.reads.reads_outer import Outer
    from smelt.capture.structure.state import Place

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by a class statement
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_SPACES = frozenset((".__dict__", "._modules", "._parameters", "._buffers"))  # of modules, which no call is given
_MOST = 20_000  # objects, beyond which none is followed


@record
class Contents:
    """What an object holds: items of a list, deque or dict (None: it is none), and attributes and slots, in order."""

    items: tuple[Any, ...] | dict[Any, Any] | None
    attributes: dict[str, Any]


@dataclass(slots=True, eq=False)
class Held:
    """One object. place: as code, from `args` or `kwargs`; steps: the same from its holder, ("item", key) or
    ("attribute", name); holder: its number there, -1 for the arguments themselves."""

    value: Any
    place: str
    step: tuple[str, object]
    holder: int
    before: Contents
    after: Contents
    is_open: bool = False

    @property
    def is_changed(self) -> bool:
        """Whether the run left something else in it."""
        return not _alike(self.before, self.after)


class ArgumentHeap:
    """The objects of one call's arguments. opened: ids of those, and of their attribute dicts, known by structure;
    empty where all that is known so are lists, tuples, dicts and dataclasses, and nothing changed.

    only: the places that are to be open, where that is known from another run of the same call. replaced: of these, the
        gradients that it read as well. outer: places outside
    the arguments that the run changed. known: by id, what the run reached from outside; outside: ids of arguments
    that it reached from there, too. A call with state has its objects open whether or not this run changes them:
    another way through the program may. filled: tensors that the run put in caches. replaced: places where another
    object has stood in another call: there what an object is counts, not which one.
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        only: Collection[str] | None = None,
        replaced: Collection[str] = (),
    ) -> None:
        self.held: list[Held] = []
        self.by_id: dict[int, int] = {}
        self._spaces: set[int] = set()
        self.opened: frozenset[int] = frozenset()
        self.known: Mapping[int, Any] = {}
        self.outside: frozenset[int] = frozenset()
        self.filled: list[torch.Tensor] = []
        self.outer: list[Outer] = []
        self.replaced: list[Place] = []
        self.roots = (args, kwargs)
        self._only, self._replaced = only, replaced
        self._met_again: set[int] = set()
        self._is_after = True
        self._has_state = STATE in kwargs
        self._walk()
        if only is not None:
            self.close()

    @property
    def is_live(self) -> bool:
        """Whether the run changed something of the arguments that can be put back."""
        return bool(self.changed)

    @property
    def places(self) -> frozenset[str]:
        """Where the open objects stand."""
        return frozenset(held.place for held in self.held if held.is_open)

    @property
    def changed(self) -> list[Held]:
        """The open objects that the run changed, holders first."""
        return [held for held in self.held if held.is_open and held.is_changed]

    @property
    def others(self) -> list[Any]:
        """Objects that the run reached from elsewhere, and that an argument known by its parts could be at another
        call."""
        known = (h.value for h in self.held if h.holder >= 0 and (h.is_open or _is_structure(h.value)))
        kinds = {type(value) for value in known if not isinstance(value, tuple)}
        found = (
            reached.value
            for place, reached in self.known.items()
            if reached is not None and not self.owns(place) and reached.label not in _SPACES
        )
        return [value for value in found if type(value) in kinds]

    def was_there(self, value: object) -> bool:
        """Whether an object is one of the arguments', or one that the run reached from elsewhere."""
        return id(value) in self.known or id(value) in self.by_id

    def takes(self, container: object, key: object) -> bool:
        """Whether a place is one of those that are put back: of an open object, or an outer attribute."""
        if id(container) in self.opened or any(o.place.is_at(container, key) for o in self.outer):
            return True
        lists = [o.place.read() for o in self.outer if o.place.is_appended]
        # In a staged run something else stands there, with a list of its own.
        spaces = [space for one in lists if (space := instance_dict(one)) is not None]
        return any(
            container is one for one in (*lists, *spaces, *(held for space in spaces for held in space.values()))
        )

    def steps(self, held: Held) -> tuple[tuple[str, Any], ...]:
        """The way to an object from `(args, kwargs)`."""
        found: list[tuple[str, Any]] = []
        while held.holder >= 0:
            found.append(held.step)
            held = self.held[held.holder]
        return (held.step, *reversed(found))

    def owns(self, place: int) -> bool:
        """Whether this is the id of one of the objects, or of one's attribute dict."""
        return place in self.by_id or place in self._spaces

    def attributes_of(self, value: object) -> Mapping[str, object] | None:
        """The attributes that an open object had when the call began; None for other objects."""
        if id(value) not in self.opened or id(value) not in self.by_id:
            return None
        return self.held[self.by_id[id(value)]].before.attributes

    # ---------------------------------------------------------------- before the run

    def _walk(self) -> None:
        args, kwargs = self.roots
        todo: list[tuple[object, str, tuple[str, object], int]] = [(kwargs, "kwargs", ("item", 1), -1)]
        todo.append((args, "args", ("item", 0), -1))
        while todo:
            value, place, step, holder = todo.pop()
            if not _is_followed(value):
                continue
            if id(value) in self.by_id:
                self._met_again.add(id(value))
                continue
            if len(self.held) >= _MOST:
                self.held.clear()
                self.by_id.clear()
                return
            found = contents_of(value)
            number = self.by_id[id(value)] = len(self.held)
            if (space := instance_dict(value)) is not None:
                self._spaces.add(id(space))
            self.held.append(Held(value, place, step, holder, found, found))
            todo.extend((inner, place + text, how, number) for text, how, inner in reversed(list(_parts(value, found))))

    # ---------------------------------------------------------------- after it

    def close(self, outside: Collection[int] = ()) -> None:
        """Note what the run left, and choose what is to be open: what changed, and what leads there.

        outside: ids of objects that the run reached from elsewhere, too. Where one of the open ones is among them, or
        has two places in the arguments, none is open.
        """
        self.outside = frozenset(outside)
        for held in self.held:
            held.after = contents_of(held.value)
        if self._only is None:
            self._choose()
        else:
            for held in self.held:
                held.is_open = held.place in self._only
        found = {id(held.value) for held in self.held if held.is_open}
        is_usual = not self.is_live and all(_is_structure(held.value) for held in self.held if held.is_open)
        if is_usual and self._only is None and not self._has_state:
            return
        clash = {id(h.value) for h in self.held if h.is_open and not isinstance(h.value, tuple)}
        if not clash.isdisjoint(self._met_again) or not clash.isdisjoint(outside):
            for held in self.held:
                held.is_open = False
            return
        spaces = {id(space) for h in self.held if h.is_open and (space := instance_dict(h.value)) is not None}
        self.opened = frozenset(found | spaces)

    def _choose(self) -> None:
        # What another object took the place of is known by its parts, and so is what it holds.
        again = [held.place in self._replaced for held in self.held]
        for number, held in enumerate(self.held):
            again[number] |= held.holder >= 0 and again[held.holder] and not _is_structure(self.held[held.holder].value)
        live = [a or held.is_changed or _holds_tensor(held.before) for a, held in zip(again, self.held, strict=True)]
        for number in range(len(self.held) - 1, -1, -1):
            holder = self.held[number].holder
            if holder >= 0:
                live[holder] |= live[number]
        for number, held in enumerate(self.held):
            wanted = _is_structure(held.value) or live[number]
            held.is_open = held.holder < 0 or (self.held[held.holder].is_open and wanted)

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """The open objects, and outer attributes, as they were when the call began, for the time of the block."""
        if not self._is_after:
            yield
            return
        self._is_after, changed = False, self.changed
        try:
            for held in changed:
                put_contents(held.value, held.before)
            for outer in self.outer:
                outer.put(outer.before)
            yield
        finally:
            for held in changed:
                put_contents(held.value, held.after)
            for outer in self.outer:
                outer.put(outer.after)
            self._is_after = True


def _is_followed(value: object) -> bool:
    if isinstance(value, torch.Size):
        return False
    cls = type(value)
    if isinstance(value, (list, tuple, dict)) or cls is deque:
        return True
    if isinstance(value, (*_PLAIN, torch.Tensor, torch.nn.Module, type)):
        return False
    if is_called_only(value):
        return False
    return kind_of(cls) == "instance" and registered(cls) is None and is_transparent(value)


def is_transparent(value: object) -> bool:
    """Whether an object is its attributes and nothing else, read and put without code of its class."""
    cls = type(value)
    if has_own_lookup(cls):
        return False
    if not all(base is object or base.__flags__ & _HEAP_TYPE for base in cls.__mro__):
        return False
    own = instance_dict(value) or {}
    return not any(overrides_instance(raw_lookup(cls, name)) for name in own)


def _is_structure(value: object) -> bool:
    """Whether a value is known by its parts, whatever becomes of it."""
    return isinstance(value, (list, tuple, dict)) or type(value) is deque or dataclasses.is_dataclass(value)


def contents_of(value: object) -> Contents:
    """What an object holds now."""
    items: Any = None
    if isinstance(value, OrderedDict):
        items = dict(OrderedDict.items(value))
    elif isinstance(value, dict):
        items = dict(dict.items(value))
    elif isinstance(value, list):
        items = tuple(list.__iter__(value))
    elif isinstance(value, tuple):
        items = tuple(tuple.__iter__(value))
    elif type(value) is deque:
        items = tuple(value)
    attributes = dict(instance_dict(value) or {})
    for name, slot in slots_of(type(value)):
        try:
            attributes[name] = slot.__get__(value)
        except AttributeError:
            continue
    return Contents(items, attributes)


def put_contents(value: object, contents: Contents) -> None:
    """Have an object hold this and nothing else."""
    if isinstance(value, list):
        list.__setitem__(value, slice(None), contents.items or ())
    elif type(value) is deque:
        value.clear()
        value.extend(contents.items or ())
    elif isinstance(value, dict):
        base: Any = OrderedDict if isinstance(value, OrderedDict) else dict
        base.clear(value)
        assert isinstance(contents.items, dict)
        for key, item in contents.items.items():
            base.__setitem__(value, key, item)
    slots = dict(slots_of(type(value)))
    own = instance_dict(value)
    if own is not None:
        own.clear()
        own.update((name, held) for name, held in contents.attributes.items() if name not in slots)
    for name, slot in slots.items():
        if name in contents.attributes:
            slot.__set__(value, contents.attributes[name])
        else:
            try:
                slot.__delete__(value)
            except AttributeError:
                continue  # it held nothing


def slots_of(cls: type) -> list[tuple[str, Any]]:
    """The slots of a class by name, as they are stored (mangled)."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            mangled = f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") and name[-2:] != "__" else name
            member = base.__dict__.get(mangled)
            if isinstance(member, types.MemberDescriptorType):
                found.setdefault(mangled, member)
    return list(found.items())


def _parts(value: object, contents: Contents) -> Iterator[tuple[str, tuple[str, object], object]]:
    """What an object holds, with the suffix of its place and the step there, in the order of a signature's leaves."""
    if isinstance(contents.items, dict):
        for text, (key, item) in zip(key_labels(contents.items), contents.items.items(), strict=True):
            yield text, ("item", key), item
    else:
        named = getattr(type(value), "_fields", ()) if isinstance(value, tuple) else ()
        for i, item in enumerate(contents.items or ()):
            yield (f".{named[i]}" if i < len(named) else f"[{i}]"), ("item", i), item
    for name, item in contents.attributes.items():
        yield attribute_label(name), ("attribute", name), item


def _holds_tensor(contents: Contents) -> bool:
    items = contents.items.values() if isinstance(contents.items, dict) else contents.items or ()
    return any(isinstance(item, torch.Tensor) for item in (*items, *contents.attributes.values()))


def _alike(before: Contents, after: Contents) -> bool:
    if isinstance(before.items, dict) and isinstance(after.items, dict):
        if not _same_entries(before.items, after.items):
            return False
    elif before.items is not None:
        assert isinstance(before.items, tuple) and isinstance(after.items, tuple)
        if len(before.items) != len(after.items) or not all(map(is_same, before.items, after.items)):
            return False
    return _same_entries(before.attributes, after.attributes)


def _same_entries(before: Mapping[Any, object], after: Mapping[Any, object]) -> bool:
    if len(before) != len(after):
        return False
    return all(a is b and is_same(v, w) for (a, v), (b, w) in zip(before.items(), after.items(), strict=True)) or all(
        same(a, b) and is_same(v, w) for (a, v), (b, w) in zip(before.items(), after.items(), strict=True)
    )


def is_same(before: Any, after: Any) -> bool:
    """Whether a place holds the same object as before, or a plain value that nobody can tell from it."""
    if before is after:
        return True
    if type(before) is not type(after) or before is MISSING:
        return False
    if type(before) is tuple:
        return len(before) == len(after) and all(map(is_same, before, after))
    return isinstance(before, (*_PLAIN, torch.Size)) and same(before, after)


def argument_parts(value: Any) -> list[tuple[str, object]]:
    """The members of a structured argument with the text that selects each."""
    if dataclasses.is_dataclass(value):
        return [(attribute_label(f.name), getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    if isinstance(value, dict):
        return list(zip(key_labels(dict.keys(value)), dict.values(value), strict=True))
    return [(f"[{i}]", inner) for i, inner in enumerate(value)]
