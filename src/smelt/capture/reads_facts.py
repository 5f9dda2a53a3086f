"""From what a run touched to facts that can be checked again, and to the changes it left behind.

Invariant: an attribute read becomes a fact about the place its value is stored in (an object's dict, a registry of a
module, a class), so checking it again runs none of the user's code.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from smelt._torch.exact import contents, same, same_contents
from smelt.capture.reads_values import (
    MISSING,
    REGISTRIES,
    cell_contents,
    class_attributes,
    has_own_lookup,
    instance_dict,
    peek,
    raw_lookup,
)

if TYPE_CHECKING:
    from smelt.capture.reads_roots import Roots, Site


class RawRead(NamedTuple):
    """One attribute access on a rooted object; value MISSING if it was not found."""

    owner: Any
    name: str
    value: Any
    site: Site | None


class Fact(NamedTuple):
    """As `reads.Read`, which is its public form."""

    kind: str
    owner: Any
    key: Any
    value: Any
    name: str
    site: Site | None


class Store(NamedTuple):
    """A place that executed code may assign without reading it: what it held before the code ran."""

    space: Mapping[str, Any]
    key: str
    before: Any
    name: str
    site: Site


class Change(NamedTuple):
    """A place that holds something else after the run."""

    name: str
    before: Any
    after: Any
    site: Site | None


_SHARED_DESCRIPTORS = (types.GetSetDescriptorType, types.WrapperDescriptorType)


class _Classifier:
    """Collects facts once each; owners' names are looked up once per owner."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        self.facts = dict(roots.facts)
        self.names: dict[int, str] = {}

    def add(self, kind: str, owner: Any, key: Any, value: Any, name: str, site: Site | None) -> None:
        place = (kind, id(owner), key)
        if place not in self.facts:
            self.facts[place] = Fact(kind, owner, key, value, name, site)

    def name_of(self, owner: Any) -> str:
        found = self.names.get(id(owner))
        if found is None:
            found = self.names[id(owner)] = self.roots.name(id(owner))
        return found

    def attribute(self, raw: RawRead) -> None:
        """One attribute access, as the facts that make it come out the same."""
        owner, name, value, site = raw
        cls, own = type(owner), instance_dict(owner)
        label = f"{self.name_of(owner)}.{name}"
        if id(owner) in self.roots.arguments:
            self._argument_attribute(owner, name, label, raw)
            return
        if own is not None:
            self.add("object", owner, None, (cls, own), self.name_of(owner), site)
        stored = raw_lookup(cls, name)
        if isinstance(stored, _SHARED_DESCRIPTORS) or name == "__class__":
            return  # the object fact covers __dict__ and __class__; others are the type's own
        if isinstance(stored, types.MemberDescriptorType):
            self.add("attr", owner, name, value, label, site)
        elif own is not None and name in own and not _overrides_instance(stored):
            self.add("item", own, name, own[name], label, site)
        elif stored is not MISSING:
            self.add("static", cls, name, stored, f"type({self.name_of(owner)}).{name}", site)
            if own is not None and not _overrides_instance(stored):
                self.add("absent", own, name, MISSING, label, site)
        else:
            self._by_getattr(owner, name, label, own, raw)

    def _by_getattr(self, owner: Any, name: str, label: str, own: dict[str, Any] | None, raw: RawRead) -> None:
        """A name that neither the object nor its class holds: a module's registries, a `__getattr__`, or an error."""
        if own is None:
            return
        self.add("static", type(owner), name, MISSING, f"type({self.name_of(owner)}).{name}", raw.site)
        self.add("absent", own, name, MISSING, label, raw.site)
        if not isinstance(owner, torch.nn.Module):
            return
        for registry in REGISTRIES:
            entries = own.get(registry)
            if not isinstance(entries, dict):
                continue
            place = f"{self.name_of(owner)}.{registry}"
            self.add("item", own, registry, entries, place, raw.site)
            self.add("content", entries, None, contents(entries), place, raw.site)
            if name in entries:
                return

    def _argument_attribute(self, owner: Any, name: str, label: str, raw: RawRead) -> None:
        """Arguments are other objects at the next call: their fields are guarded by structure, no more than those."""
        if dataclasses.is_dataclass(owner) and any(f.name == name for f in dataclasses.fields(owner)):
            return
        stored = raw_lookup(type(owner), name)
        if stored is not MISSING:
            self.add("static", type(owner), name, stored, f"type({self.name_of(owner)}).{name}", raw.site)
        elif not name.startswith("__"):
            self.roots.refusals.append(("reads an attribute of an argument that is not a field", label, raw.site))


def _overrides_instance(stored: Any) -> bool:
    """Whether a class attribute wins over the instance's own (a data descriptor, as a property is)."""
    return stored is not MISSING and (hasattr(type(stored), "__set__") or hasattr(type(stored), "__delete__"))


def facts_of(roots: Roots) -> list[Fact]:
    """All that must hold again, each place once."""
    classifier = _Classifier(roots)
    for place, (container, copy, site) in roots.copies.items():
        if place not in roots.arguments:
            classifier.add("content", container, None, copy, classifier.name_of(container), site)
    for raw in roots.raw.values():
        classifier.attribute(raw)
    _executed_functions(roots, classifier)
    return list(classifier.facts.values())


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
        stored = cls.__dict__.get(path[-1], MISSING)
        classifier.add("static", cls, path[-1], stored, code.co_qualname, None)
        if isinstance(stored, types.FunctionType):
            seen = (stored.__code__, stored.__defaults__, stored.__kwdefaults__)
            classifier.add("function", stored, None, seen, code.co_qualname, None)


def changes_of(roots: Roots) -> list[Change]:
    """What the run left different in the objects it reached."""
    changes: dict[str, Change] = {}

    def note(name: str, before: Any, after: Any, site: Site | None) -> None:
        changes.setdefault(name, Change(name, before, after, site))

    for owner, name, before, site in roots.written.values():
        after = peek(owner, name)
        if not same(before, after):
            note(f"{roots.name(id(owner))}.{name}", before, after, site)
    for store in roots.stores.values():
        after = store.space.get(store.key, MISSING)
        if not same(store.before, after):
            note(store.name, store.before, after, store.site)
    for raw in roots.raw.values():
        own = instance_dict(raw.owner)
        if own is None or raw.name not in own or raw.value is own[raw.name] or has_own_lookup(type(raw.owner)):
            continue
        if not same(raw.value, own[raw.name]) and not _overrides_instance(raw_lookup(type(raw.owner), raw.name)):
            note(f"{roots.name(id(raw.owner))}.{raw.name}", raw.value, own[raw.name], raw.site)
    for fact in roots.facts.values():
        after = _now(fact)
        if not same(fact.value, after):
            note(fact.name, fact.value, after, fact.site)
    for container, copy, site in roots.copies.values():
        if not same_contents(container, copy):
            note(roots.name(id(container)), copy, contents(container), site)
    return list(changes.values())


def _now(fact: Fact) -> Any:
    """What the fact's place holds at this moment, for the kinds that are noted while the program runs."""
    kind, owner, key = fact.kind, fact.owner, fact.key
    if kind in ("item", "absent"):
        return owner.get(key, MISSING)
    if kind == "cell":
        return cell_contents(owner)
    if kind == "static":
        return raw_lookup(owner, key)
    if kind == "context":
        return owner.get(MISSING)
    if kind == "class":
        return class_attributes(owner)
    if kind == "function":
        return (owner.__code__, owner.__defaults__, owner.__kwdefaults__)
    if kind == "array":
        return (owner.dtype, owner.shape, owner.tobytes())
    return fact.value
