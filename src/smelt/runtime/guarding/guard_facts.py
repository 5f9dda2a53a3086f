"""Guards on the world outside the arguments: the facts that a recorded run read, and their compact test.

Kinds of facts, as (owner, key, value); each says what must be true now:
    item      owner[key] is value; owner is a dict that serves as a namespace
    absent    key is not in owner (a namespace)
    attr      getattr(owner, key) is value (slots and other attributes held in C)
    static    what the class owner has under key, bases included, is value (MISSING: nothing)
    cell      owner.cell_contents is value
    content   the container owner holds value (a shallow copy)
    unset     the class owner itself has no attribute key
    class     the class owner's own attributes are value (special ones, and those that key names, left out)
    special   the class owner is what it was: its name, its bases, and those of its own attributes that key names are
              value (a dict; MISSING: not there)
    function  (owner.__code__, owner.__defaults__, owner.__kwdefaults__) is value
    object    (type(owner), owner.__dict__) is value
    module    the nn.Module owner is (type, __dict__, tables of hooks, shadowed methods) of value
    context   the context variable owner holds value (MISSING: nothing)
    cached    the functools.lru_cache owner holds these very tensors, whatever else
    array     the NumPy array owner has (dtype, shape, bytes) of value

Invariant: the compact test holds only if every fact does. Facts on dicts, classes included, become `Namespaces`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from smelt._torch.annotations import annotation_held
from smelt._torch.exact import MISSING, contents, same, same_contents, still
from smelt._torch.library.lru import cached_tensors, still_cached
from smelt._torch.seen.labels import key_labels
from smelt._torch.seen.leaves import has_hooks
from smelt._torch.seen.record_patches import TRACKS
from smelt.diag import Span
from smelt.diag.records import record
from smelt.runtime.guarding.guard_versions import (
    CLASS_PARTS,
    Identities,
    Namespace,
    Namespaces,
    class_namespace,
    lookup_path,
)

CALL_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
CALL_METHODS = ("forward", "_call_impl", "_compiled_call_impl")

_TENSOR_TABLES = ("._parameters", "._buffers", ".__dict__")


def _class_attributes(cls: type) -> dict[str, Any]:
    return {k: v for k, v in cls.__dict__.items() if not (k.startswith("__") and k.endswith("__"))}


def _special_now(cls: type, names: tuple[str, ...]) -> dict[str, Any]:
    own = cls.__dict__
    return {name: getattr(cls, name) if name in CLASS_PARTS else own.get(name, MISSING) for name in names}


def _module_now(module: Any) -> tuple[Any, ...]:
    own = module.__dict__
    shadowed = {name: own[name] for name in CALL_METHODS if name in own}
    return (type(module), own, tuple(own.get(name) for name in CALL_HOOKS), shadowed)


def _cell_now(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _static_now(cls: type, name: str) -> Any:
    return lookup_path(cls, name)[-1][1]


_NOW: dict[str, Callable[[Any, Any], Any]] = {
    "item": lambda owner, key: dict.get(owner, key, MISSING),
    "absent": lambda owner, key: dict.get(owner, key, MISSING),
    "attr": lambda owner, key: getattr(owner, key, MISSING),
    "static": _static_now,
    "cell": lambda owner, _: _cell_now(owner),
    "content": lambda owner, _: contents(owner),
    "unset": lambda owner, key: owner.__dict__.get(key, MISSING),
    "class": lambda owner, key: {k: v for k, v in _class_attributes(owner).items() if k not in (key or ())},
    "special": _special_now,
    "annotation": annotation_held,
    "function": lambda owner, _: (owner.__code__, owner.__defaults__, owner.__kwdefaults__),
    "object": lambda owner, _: (type(owner), owner.__dict__),
    "module": lambda owner, _: _module_now(owner),
    "context": lambda owner, _: owner.get(MISSING),
    "cached": lambda owner, _: cached_tensors(owner),
    "loaded": lambda owner, _: frozenset(owner),
    "given": lambda owner, key: tuple(getattr(tensor, key) is not None for tensor in owner),
    "hooked": lambda owner, _: any(map(has_hooks, owner)),
    "array": lambda owner, _: (owner.dtype, owner.shape, owner.tobytes()),
}


@record
class FactTest:
    """A fact that can be asked again; `read` is what it was made of (a `ReadFact`).

    alike: how a value compares with the one that was seen. Where the run itself put an equal list, dict or set in the
    place of the one that it found, an equal one will do.
    """

    read: Any
    alike: Callable[[Any, Any], bool] = still

    @classmethod
    def of(cls, read: Any) -> FactTest:
        """The test of a fact, as it is after the run."""
        test = cls(read)
        return test if test.holds() else cls(read, same)

    @property
    def kind(self) -> str:
        return str(self.read.kind)

    @property
    def name(self) -> str:
        return str(self.read.name)

    @property
    def seen(self) -> Any:
        return self.read.value

    @property
    def span(self) -> Span | None:
        found: Span | None = self.read.span
        return found

    @property
    def is_internal(self) -> bool:
        """Whether it is on a wrapper of Smelt's own, which the program reads only while it is recorded, on a method of
        tensors that is as torch has it, or on what a class is."""
        if self.kind == "special":
            return True
        if self.kind == "static" and self.read.owner is torch.Tensor:
            # Those of C have no module.
            return (getattr(self.seen, "__module__", None) or "torch").startswith("torch")
        if self.kind == "function":
            return str(self.read.owner.__globals__.get("__name__", "")).startswith("smelt.capture.")
        if self.kind not in ("item", "absent", "content") or not isinstance(self.read.owner, dict):
            return False
        keys = self.read.value if self.kind == "content" else (self.read.key,)
        return TRACKS in self.read.owner and not {*keys} - {TRACKS, "__wrapped__"}

    def now(self) -> Any:
        """What its place holds at this moment."""
        return _NOW[self.kind](self.read.owner, self.read.key)

    def holds(self) -> bool:
        """Whether its place still holds what was seen, exactly."""
        kind, seen = self.kind, self.seen
        if kind == "content":
            return same_contents(self.read.owner, seen, self.alike)
        if kind == "cached":
            return still_cached(self.read.owner, seen)
        now = self.now()
        if kind in ("object", "module"):  # the very dicts that the other facts look into
            return all(a is b for a, b in zip(now[:2], seen[:2], strict=True)) and _same_tables(now[2:], seen[2:])
        if kind in ("array", "given", "hooked", "loaded"):
            return bool(now == seen)
        if kind in ("class", "special"):
            return same_contents(now, seen, self.alike)
        return (still if kind == "item" else self.alike)(now, seen)


def _same_tables(now: tuple[Any, ...], seen: tuple[Any, ...]) -> bool:
    return not now or (all(a is b for a, b in zip(now[0], seen[0], strict=True)) and same(now[1], seen[1]))


class Facts:
    """All facts of a program, and their compact test: `namespaces`, `identities`, and the `single` others."""

    def __init__(self, reads: Iterable[Any]) -> None:
        known = [read for read in reads if read.kind in _NOW]
        self.tests = [FactTest.of(read) for read in known if not _is_constant(read)]
        self.tensors = _tensors(known)
        self._spaces: dict[int, _SpaceBuilder] = {}
        self._objects: list[Any] = []
        self._functions: list[Any] = []
        self._classes: list[type] = []
        self.single: list[FactTest] = []
        for test in self.tests:
            self._sort(test)
        self.namespaces = Namespaces([builder.build() for builder in self._spaces.values()])
        self.identities = Identities(self._objects, self._functions, self._classes)

    def first_failed(self) -> int | None:
        """The position of the first fact that no longer holds."""
        for i, test in enumerate(self.tests):
            if not test.holds():
                return i
        return None

    def tensor_names(self) -> dict[int, str]:
        """How the program reads its tensors, by their `id`: as in `model[0].weight`."""
        names: dict[int, str] = {}
        for test in self.tests:
            if isinstance(test.seen, torch.Tensor):
                names.setdefault(id(test.seen), test.name)
            elif test.kind == "content" and isinstance(test.seen, dict):
                owner = test.name
                for table in _TENSOR_TABLES:
                    owner = owner.removesuffix(table)
                labels = key_labels(test.seen) if owner == test.name else [f".{key}" for key in test.seen]
                for label, value in zip(labels, test.seen.values(), strict=True):
                    if isinstance(value, torch.Tensor):
                        names.setdefault(id(value), owner + label)
        return names

    def emit(self, scope: dict[str, Any]) -> list[str]:
        """Lines of the check function; the names they use are put into `scope`."""
        lines: list[str] = []
        fail = "return failed(args, kwargs)"
        if self._spaces:
            scope["namespaces_unchanged"] = self.namespaces.unchanged
            lines.append(f"if not namespaces_unchanged(): {fail}")
        if self._objects or self._functions or self._classes:
            scope["identities_unchanged"] = self.identities.unchanged
            lines.append(f"if not identities_unchanged(): {fail}")
        conditions = [self._single_condition(i, test, scope) for i, test in enumerate(self.single)]
        if conditions:
            lines.append(f"if not ({' and '.join(conditions)}): {fail}")
        return lines

    def _single_condition(self, i: int, test: FactTest, scope: dict[str, Any]) -> str:
        owner, value = f"o{i}", f"v{i}"
        scope[owner], scope[value] = test.read.owner, test.seen
        if test.kind == "cell" and test.seen is not MISSING:
            scope["cell_now"] = _cell_now
            return f"cell_now({owner}) is {value}"
        if test.kind == "attr" and test.seen is not MISSING and test.read.key.isidentifier():
            scope["MISSING"] = MISSING
            return f"getattr({owner}, {test.read.key!r}, MISSING) is {value}"
        if test.kind == "context":
            scope["MISSING"] = MISSING
            return f"{owner}.get(MISSING) is {value}"
        scope[f"holds{i}"] = test.holds
        return f"holds{i}()"

    # Each fact goes where it is cheapest to test together with others.
    def _sort(self, test: FactTest) -> None:
        kind, read = test.kind, test.read
        if kind in ("item", "absent"):
            self._space(read.owner).names[read.key] = read.value
        elif kind == "content" and isinstance(read.owner, dict):
            space = self._space(read.owner)
            space.names.update(read.value)
            space.order = tuple(read.value)
        elif kind == "static":
            self._sort_static(test)
        elif kind == "unset":
            if (entries := class_namespace(read.owner)) is not None:
                self._space(entries).names[read.key] = MISSING
        elif kind == "class":
            entries = class_namespace(read.owner)
            if entries is not None:
                self._space(entries).names.update(read.value)
                self._space(entries).order = tuple(entries)
        elif kind == "special":
            self._classes.append(read.owner)
            if (entries := class_namespace(read.owner)) is not None:
                names = {name: held for name, held in read.value.items() if name not in CLASS_PARTS}
                self._space(entries).names.update(names)
        elif kind == "object":
            self._objects.append(read.owner)
        elif kind == "module":
            self._sort_module(read)
        elif kind == "function":
            self._functions.append(read.owner)
        else:
            self.single.append(test)

    def _sort_static(self, test: FactTest) -> None:
        for base, found in lookup_path(test.read.owner, test.read.key):
            entries = class_namespace(base)
            if entries is not None:
                self._space(entries).names[test.read.key] = found

    def _sort_module(self, read: Any) -> None:
        self._objects.append(read.owner)
        own, tables, shadowed = read.value[1], read.value[2], read.value[3]
        names = self._space(own).names
        names.update(zip(CALL_HOOKS, tables, strict=True))
        for name in CALL_METHODS:
            names[name] = shadowed.get(name, MISSING)

    def _space(self, entries: dict[Any, Any]) -> _SpaceBuilder:
        found = self._spaces.get(id(entries))
        if found is None:
            found = self._spaces[id(entries)] = _SpaceBuilder(entries)
        return found


class _SpaceBuilder:
    """The names read of one dict; `order`: all its keys, in order, if the whole content counts."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        self.entries = entries
        self.names: dict[Any, Any] = {}
        self.order: tuple[Any, ...] | None = None

    def build(self) -> Namespace:
        return Namespace(self.entries, tuple(self.names), tuple(self.names.values()), self.order)


def _is_constant(read: Any) -> bool:
    """Contents of immutable containers cannot change; their members have facts of their own."""
    return read.kind == "content" and isinstance(read.owner, (tuple, frozenset))


def _tensors(reads: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors that the program reads by itself, each once."""
    found: dict[int, torch.Tensor] = {}
    for read in reads:
        values: Iterable[Any] = (read.value,)
        if read.kind in ("content", "cached"):
            values = read.value.values() if isinstance(read.value, dict) else read.value
        for value in values:
            if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type != "meta":
                found[id(value)] = value
    return list(found.values())
