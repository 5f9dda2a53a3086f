"""From what a run touched to facts that can be checked again, and to the changes it left behind.

Invariant: an attribute read becomes a fact about the place its value is stored in (an object's dict, a registry of a
module, a class), so checking it again runs none of the user's code.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from smelt._torch.annotations import annotation_held
from smelt._torch.exact import MISSING, contents, same_contents, still
from smelt._torch.seen.record_patches import as_found
from smelt.capture.reads.reads_values import (
    CALL_HOOKS,
    CALL_METHODS,
    CLASS_PARTS,
    REGISTRIES,
    SPECIAL,
    cell_contents,
    class_attributes,
    class_parts,
    has_own_lookup,
    instance_dict,
    is_special,
    is_user_class,
    overrides_instance,
    own_attribute,
    owner_kind,
    peek,
    raw_lookup,
)
from smelt.capture.structure.state import Place
from smelt.diag import Span

if TYPE_CHECKING:
    from smelt.capture.reads.reads_roots import Roots


class Site(NamedTuple):
    """A place in executed code; the line is looked up only when someone asks."""

    code: types.CodeType
    offset: int

    @property
    def span(self) -> Span:
        """The source line of the instruction."""
        line = self.code.co_firstlineno
        for start, end, number in self.code.co_lines():
            if start <= self.offset < end and number is not None:
                line = number
        return Span(self.code.co_filename, line, self.code.co_qualname)


# One attribute access on a rooted object: (object, name, value or MISSING, site).
class Reached(NamedTuple):
    """A rooted object, and how the run got to it: `label` appended to the parent's name."""

    value: Any
    parent: int
    label: str
    site: Site | None


RawRead = tuple[Any, str, Any, Site | None]


class Read(NamedTuple):
    """One fact of the world outside the program that must hold for a run to go the same way.

    kind: how to check it again; `runtime.guarding.fact_kinds` says of each what must be true of owner, key and value,
    the value that was seen.
    label: a readable expression, or None where `namer` finds one from how `holder` was reached.
    site: the user's code that read it.
    """

    kind: str
    owner: Any
    key: Any
    value: Any
    site: Site | None
    label: str | None
    holder: Any
    namer: Callable[[int], str]

    @property
    def spot(self) -> tuple[int, object]:
        """What tells the place from others."""
        return id(self.owner), self.key

    @property
    def name(self) -> str:
        """A readable expression for the place, rooted at the program; found when asked for."""
        if self.label is not None:
            return self.label
        base = self.namer(id(self.holder))
        if self.kind == "static":
            return f"type({base}).{self.key}"
        return base if self.key is None else f"{base}.{self.key}"

    @property
    def span(self) -> Span | None:
        """The line of the user's program that read this, if one did."""
        return None if self.site is None else self.site.span


class Store(NamedTuple):
    """A place that executed code may assign without reading it: what it held before the code ran.

    cls: the class whose attribute it is, where it is one."""

    space: Mapping[str, object]
    key: str
    before: Any
    name: str
    site: Site
    cls: type | None = None

    @property
    def spot(self) -> tuple[int, str]:
        """What tells the place from others (`Place.spot`)."""
        return id(self.space if self.cls is None else self.cls), self.key


class Change(NamedTuple):
    """A place that holds something else after the run. spot: what tells it from others, which may have its name."""

    spot: tuple[int, object]
    name: str
    before: Any
    after: Any
    site: Site | None


_new = tuple.__new__  # two thirds of the price of a named tuple's own constructor
_SHARED_DESCRIPTORS = (types.GetSetDescriptorType, types.WrapperDescriptorType)


class _Classifier:
    """Collects facts, each place once; what a class holds under a name is looked up once."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        self.facts = {place: fact for place, fact in roots.facts.items() if id(fact.owner) not in roots.opened}
        self.namer = roots.name
        self.stored: dict[tuple[type, str], object] = {}
        self._called: set[type] = set()  # classes of modules whose methods are facts
        self._registries: dict[int, int] = {}  # how many registries of an object are facts with all that they hold

    def add(
        self, kind: str, owner: object, key: object, value: object, raw: RawRead | None, label: str | None = None
    ) -> None:
        place = (kind, id(owner), None if kind == "content" else key)  # there the key only names the container
        if place not in self.facts:
            holder, site = (owner, None) if raw is None else (raw[0], raw[3])
            self.facts[place] = _new(Read, (kind, owner, key, value, site, label, holder, self.namer))

    def module(self, module: torch.nn.Module, site: Site | None) -> None:
        """What calling a module reads, as one fact; its class's methods are a fact of the class."""
        own, cls = module.__dict__, type(module)
        raw = (module, "", MISSING, site)
        tables = tuple(own.get(name) for name in CALL_HOOKS)
        shadowed = {name: own[name] for name in CALL_METHODS if name in own}
        self.add("module", module, None, (cls, own, tables, shadowed), raw)
        for name, table in zip(CALL_HOOKS, tables, strict=True):
            if isinstance(table, dict):
                self.add("content", table, name, contents(table) if table else {}, (module, name, MISSING, site))
        if cls not in self._called:
            self._called.add(cls)
            for name in CALL_METHODS:
                self.add("static", cls, name, raw_lookup(cls, name), raw)
            for base in cls.__mro__[: cls.__mro__.index(torch.nn.Module)]:
                label = f"{base.__qualname__}.__call__"
                self.add("unset", base, "__call__", MISSING, raw, label)

    def attribute(self, raw: RawRead) -> None:
        """One attribute access, as the facts that make it come out the same."""
        owner, name, value, _ = raw
        cls, own = type(owner), instance_dict(owner)
        stored = self.stored.get((cls, name), self)
        if stored is self:
            stored = self.stored[cls, name] = raw_lookup(cls, name)
        if id(owner) in self.roots.opened:
            self._opened_attribute(raw, stored)
            return
        if id(owner) in self.roots.arguments:
            self._argument_attribute(raw, stored)
            return
        if own is not None and ("module", id(owner), None) not in self.facts:
            self.add("object", owner, None, (cls, own), raw)
        if self._is_state(raw, stored, own):
            return
        if stored is MISSING:
            if own is not None and name in own:
                self.add("item", own, name, own[name], raw)
            elif own is not None:
                self._by_getattr(own, raw)
        elif isinstance(stored, _SHARED_DESCRIPTORS) or name == "__class__":
            return  # the object fact covers __dict__ and __class__; others are the type's own
        elif isinstance(stored, types.MemberDescriptorType):
            self.add("attr", owner, name, value, raw)
        elif own is not None and name in own and not overrides_instance(stored):
            self.add("item", own, name, own[name], raw)
        else:
            self.add("static", cls, name, stored, raw)
            if own is not None and not overrides_instance(stored):
                self.add("absent", own, name, MISSING, raw)

    def _is_state(self, raw: RawRead, stored: object, own: Mapping[str, object] | None) -> bool:
        """Whether this is a read of an attribute of the class that is state; what leads there is a fact then."""
        owner, name = raw[:2]
        if not self.roots.state or stored is MISSING or (own is not None and name in own):
            return False
        path = state_path(type(owner), name, self.roots.state)
        if path is None:
            return False
        for fact in path:
            self.facts.setdefault((fact.kind, id(fact.owner), fact.key), fact)
        if isinstance(own, dict) and id(owner) not in self.roots.opened:
            self.add("absent", own, name, MISSING, raw)
        return True

    def _by_getattr(self, own: dict[str, object], raw: RawRead) -> None:
        """A name that neither the object nor its class holds: a module's registries, a `__getattr__`, or an error."""
        owner, name = raw[:2]
        self.add("static", type(owner), name, MISSING, raw)
        self.add("absent", own, name, MISSING, raw)
        if not isinstance(owner, torch.nn.Module):
            return
        known = self._registries.get(id(own), 0)
        for count, registry in enumerate(REGISTRIES, 1):
            entries = own.get(registry)
            if isinstance(entries, dict):
                if count > known:
                    self._registry(own, registry, entries, raw)
                if id(entries) in self.roots.state_spaces:
                    self._one_entry(entries, raw)
                elif count == known + 1:
                    known = self._registries[id(own)] = count
                if name in entries:
                    return

    def _registry(self, own: dict[str, object], registry: str, entries: dict[str, object], raw: RawRead) -> None:
        """One of a module's registries, with all that it holds where nothing of it is state."""
        self.add("item", own, registry, entries, raw)
        if id(entries) not in self.roots.state_spaces and ("content", id(entries), None) not in self.facts:
            self.add("content", entries, registry, contents(entries), raw)

    def _one_entry(self, entries: dict[str, object], raw: RawRead) -> None:
        """An entry of a registry of which others are state."""
        name = raw[1]
        kind, seen = ("item", entries[name]) if name in entries else ("absent", MISSING)
        self.add(kind, entries, name, seen, raw)

    def _opened_attribute(self, raw: RawRead, stored: object) -> None:
        """Its own attributes are guarded by structure: what is left is what the class holds."""
        owner, name = raw[:2]
        own = None if self.roots.heap is None else self.roots.heap.attributes_of(owner)
        if isinstance(stored, _SHARED_DESCRIPTORS) or (own is not None and name in own):
            return
        if self._is_state(raw, stored, own):
            return
        self.add("static", type(owner), name, stored, raw, f"type({self.namer(id(owner))}).{name}")

    def _argument_attribute(self, raw: RawRead, stored: object) -> None:
        """Arguments are other objects at the next call: their fields are guarded by structure, no more than those."""
        owner, name = raw[:2]
        if dataclasses.is_dataclass(owner) and any(f.name == name for f in dataclasses.fields(owner)):
            return
        if self._is_state(raw, stored, None):
            return
        if stored is not MISSING:
            self.add("static", type(owner), name, stored, raw)
        elif not name.startswith("__"):
            label = f"{self.namer(id(owner))}.{name}"
            self.roots.refusals.append(("reads an attribute of an argument that is not a field", label, raw[3]))


def facts_of(roots: Roots) -> list[Read]:
    """All that must hold again, each place once."""
    classifier = _Classifier(roots)
    for place, (container, copy, site) in roots.copies.items():
        if place in roots.arguments or place in roots.opened:
            continue
        raw = (container, "", MISSING, site)
        if place not in roots.state_spaces or not isinstance(copy, dict):
            classifier.add("content", container, None, copy, raw)
            continue
        # Some of its entries are arguments.
        classifier.add("loaded", container, None, frozenset(copy), raw)
        for key, value in copy.items():
            if (place, key) not in roots.state:
                classifier.add("item", container, key, value, raw)
    for module, site in roots.modules:
        classifier.module(module, site)
    for raw in roots.raw:
        classifier.attribute(raw)
    _executed_functions(roots, classifier)
    _classes_of_instances(roots, classifier)
    outer = roots.heap.outer if roots.heap is not None else ()
    for changed in (*roots.state.values(), *(one.place for one in outer)):
        for fact in place_facts(changed, roots.name):
            classifier.facts.setdefault((fact.kind, id(fact.owner), fact.key), fact)
    # What stands somewhere for the time of a recording only is what it stands for.
    facts = [(fact, as_found(fact.value)) for fact in classifier.facts.values()]
    return [fact if value is fact.value else fact._replace(value=value) for fact, value in facts]


def state_path(cls: type, name: str, state: Mapping[tuple[int, object], Place]) -> list[Read] | None:
    """Where what a class shows under a name is state: that no class before that one has the name. None elsewhere."""
    path: list[Read] = []
    for base in cls.__mro__:
        if (id(base), name) in state:
            return path
        if name in base.__dict__:
            return None
        label = f"{base.__qualname__}.{name}"
        path.append(Read("unset", base, name, MISSING, None, label, base, lambda number: ""))
    return None


def place_facts(place: Place, namer: Any) -> Iterator[Read]:
    """What must hold for an assignment to come to the same: an attribute goes to the owner's own attributes."""
    owner, name, cls = place.owner, place.key, type(place.owner)
    if owner is None:
        return
    if place.kind == "slot":
        name = place.key.__name__
    for key in (name, "__setattr__"):
        yield Read("static", cls, key, raw_lookup(cls, key), place.site, None, owner, namer)
    own = instance_dict(owner)
    if own is None:
        return
    yield Read("object", owner, None, (cls, own), place.site, None, owner, namer)
    if not isinstance(owner, torch.nn.Module):
        return
    if place.space is not own:
        yield Read("absent", own, name, MISSING, place.site, place.name, owner, namer)
    for registry in REGISTRIES:
        entries = own.get(registry)
        if isinstance(entries, dict):
            yield Read("item", own, registry, entries, place.site, None, owner, namer)
            if entries is not place.space:
                yield Read("absent", entries, name, MISSING, place.site, place.name, owner, namer)


def _executed_functions(roots: Roots, classifier: _Classifier) -> None:
    """Functions that ran without having been reached as values (`super().f`, special methods): held by their class."""
    for place, (code, namespace) in roots.executed.items():
        path = code.co_qualname.split(".")
        if place in roots.functions or "<locals>" in path or len(path) < 2:
            continue
        cls = namespace.get(path[0], MISSING)
        for part in path[1:-1]:
            cls = cls.__dict__.get(part, MISSING) if isinstance(cls, type) else MISSING
        if not isinstance(cls, type):
            continue
        stored = own_attribute(cls, path[-1])
        classifier.add("static", cls, path[-1], stored, None, code.co_qualname)
        if isinstance(stored, types.FunctionType):
            seen = (stored.__code__, stored.__defaults__, stored.__kwdefaults__)
            classifier.add("function", stored, None, seen, None, code.co_qualname)


# Methods that Python asks the class for, with another answer where there is none.
_ASKED = ("__bool__", "__len__", "__eq__", "__contains__", "__iter__", "__getattr__", "__getattribute__", "__call__")


def _classes_of_instances(roots: Roots, classifier: _Classifier) -> None:
    """What a class holds and ran, however it was decorated, and what Python asks it for by itself."""
    classes = {type(reached.value) for reached in roots.rooted.values()}
    bases = {base: None for cls in classes for base in cls.__mro__ if is_user_class(base)}
    for cls in filter(is_user_class, classes):
        for name in _ASKED:
            label = f"{cls.__qualname__}.{name}"
            classifier.add("static", cls, name, raw_lookup(cls, name), None, label)
    for base in {**bases, **dict.fromkeys(filter(_is_own_class, _named_classes(roots)))}:
        _special(base, classifier)
    for base in bases:
        for name, member in list(base.__dict__.items()):
            if any(id(code) in roots.executed for code in _codes(member)):
                classifier.add("static", base, name, own_attribute(base, name), None, f"{base.__qualname__}.{name}")


def _named_classes(roots: Roots) -> Iterator[type]:
    """The classes that the run reached by themselves, as what it calls, and of containers, with their bases."""
    for reached in roots.rooted.values():
        cls = reached.value if isinstance(reached.value, type) else type(reached.value)
        if cls is reached.value or issubclass(cls, (Enum, dict, list, tuple, set, frozenset)):
            yield from cls.__mro__
        if type(cls) is not type:
            yield from type.mro(type(cls))


def _is_own_class(cls: type) -> bool:
    return owner_kind(cls) == "user" and not issubclass(cls, torch.Tensor)


_NOT_HELD = dict.fromkeys(SPECIAL, MISSING)


def _special(cls: type, classifier: _Classifier) -> None:
    """What a class is: its bases, its names, and what Python looks up by itself, there or not."""
    own = cls.__dict__
    held = dict(_NOT_HELD)
    held.update((name, own_attribute(cls, name)) for name in own if is_special(name))
    held.update((name, getattr(cls, name)) for name in CLASS_PARTS)
    classifier.add("special", cls, tuple(held), held, None, f"what {cls.__qualname__} is")
    for name in ("__new__", "__init__"):
        made = own.get(name)
        made = made.__func__ if isinstance(made, staticmethod) else made
        if isinstance(made, types.FunctionType):
            seen = (made.__code__, made.__defaults__, made.__kwdefaults__)
            classifier.add("function", made, None, seen, None, f"{cls.__qualname__}.{name}")


def _codes(member: object) -> Iterator[types.CodeType]:
    """The code of a function, and of those that its decorators say they wrap."""
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    elif isinstance(member, property):
        member = member.fget
    seen: set[int] = set()
    while isinstance(member, types.FunctionType) and id(member) not in seen:
        seen.add(id(member))
        yield member.__code__
        member = member.__dict__.get("__wrapped__")


def changes_of(roots: Roots) -> list[Change]:
    """What the run left different in the objects it reached."""
    changes: dict[tuple[int, object], Change] = {}

    def note(spot: tuple[int, object], name: str, before: object, after: object, site: Site | None) -> None:
        changes.setdefault(spot, Change(spot, name, before, after, site))

    opened = roots.opened
    for owner, name, before, site in roots.written.values():
        if id(owner) in opened or (id(owner), name) in roots.outer or (id(owner), name) in roots.state_names:
            continue
        after = peek(owner, name)
        if not still(after, before) or id(after) in roots.passed:
            note((id(owner), name), f"{roots.name(id(owner))}.{name}", before, after, site)
        else:
            _keep_attribute(roots, owner, name, after, site)
    for store in roots.stores.values():
        if store.spot in roots.state:
            continue
        after = store.space.get(store.key, MISSING)
        if not still(after, store.before) or id(after) in roots.passed:
            note(store.spot, store.name, store.before, after, store.site)
        else:  # stored again what was there: only from there is leaving it alone the same
            kind = "absent" if after is MISSING else "item"
            fact = Read(kind, store.space, store.key, after, store.site, store.name, store.space, roots.name)
            if isinstance(store.space, dict):
                roots.facts.setdefault((kind, id(store.space), store.key), fact)
    for owner, name, value, site in roots.raw:
        own = instance_dict(owner)
        if id(owner) in opened or own is None or name not in own or value is own[name] or has_own_lookup(type(owner)):
            continue
        if not still(own[name], value) and not overrides_instance(raw_lookup(type(owner), name)):
            note((id(owner), name), f"{roots.name(id(owner))}.{name}", value, own[name], site)
    for fact in roots.facts.values():
        if id(fact.owner) in opened:
            continue
        after = _now(fact)
        if not (same_contents(after, fact.value, still) if fact.kind == "class" else still(after, fact.value)):
            note(fact.spot, fact.name, fact.value, after, fact.site)
    for cls, parts, site in roots.class_parts.values():
        for name, before, after in zip(CLASS_PARTS, parts, class_parts(cls), strict=True):
            if not still(after, before):
                note((id(cls), name), f"{cls.__qualname__}.{name}", before, after, site)
    for container, copy, site in roots.copies.values():
        if id(container) in opened:
            continue
        members = copy.values() if isinstance(copy, dict) else copy
        holds_argument = id(container) not in roots.arguments and any(id(m) in roots.passed for m in members)
        if not same_contents(container, copy, still) or holds_argument:
            note((id(container), None), roots.name(id(container)), copy, contents(container), site)
    return list(changes.values())


def _keep_attribute(roots: Roots, owner: object, name: str, value: object, site: Site | None) -> None:
    """The run assigned an attribute what it held before: replaying nothing is right only while it holds that."""
    own = instance_dict(owner)
    if own is None or (name not in own and isinstance(raw_lookup(type(owner), name), types.MemberDescriptorType)):
        place = ("attr", id(owner), name)
        roots.facts.setdefault(place, Read("attr", owner, name, value, site, None, owner, roots.name))
        return
    for space in (own, *(own[r] for r in REGISTRIES if isinstance(own.get(r), dict))):
        kind, seen = ("item", space[name]) if name in space else ("absent", MISSING)
        roots.facts.setdefault((kind, id(space), name), Read(kind, space, name, seen, site, None, owner, roots.name))
        if seen is not MISSING:
            return


def _attribute_now(owner: Any, key: Any) -> object:
    """What C holds: no attribute is asked for that might run code of the user's."""
    if isinstance(owner, (types.FunctionType, BaseException)):
        return getattr(owner, key, MISSING)
    is_slot = isinstance(raw_lookup(type(owner), key), types.MemberDescriptorType)
    return peek(owner, key) if is_slot else _NOT_ASKED


_NOT_ASKED = object()
_NOTED: Mapping[str, Callable[[Any, Any], Any]] = {
    "item": lambda owner, key: owner.get(key, MISSING),
    "absent": lambda owner, key: owner.get(key, MISSING),
    "cell": lambda owner, _: cell_contents(owner),
    "attr": _attribute_now,
    "static": raw_lookup,
    "context": lambda owner, _: owner.get(MISSING),
    "class": lambda owner, key: {k: v for k, v in class_attributes(owner).items() if k not in (key or ())},
    "annotation": annotation_held,
    "function": lambda owner, _: (owner.__code__, owner.__defaults__, owner.__kwdefaults__),
    "array": lambda owner, _: (owner.dtype, owner.shape, owner.tobytes()),
    "loaded": lambda owner, _: frozenset(owner),
}
"""What a place holds at this moment, for the kinds of facts that are noted while the program runs."""


def _now(fact: Read) -> object:
    now = _NOTED[fact.kind](fact.owner, fact.key) if fact.kind in _NOTED else _NOT_ASKED
    return fact.value if now is _NOT_ASKED else now
