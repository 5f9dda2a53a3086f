"""Python's own state around a staged run: what is reachable, what changed, and how it is put back.

A snapshot holds shallow copies of all containers that can be reached from some roots: dictionaries (those of objects
and modules too), lists, sets, deques, closure cells. Contents are compared by identity. What a `functools.lru_cache`
came to hold is no change, for nobody can tell, but is taken out again: it may be a shadow.

Invariant: nothing of the user's is called; restoring leaves each container the same object with its old contents.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from smelt._torch.lru import LRU_CACHE, table_of
from smelt.capture.reads_values import HOOKED
from smelt.capture.roots import _is_skipped as is_skipped_module
from smelt.capture.roots import names_in
from smelt.capture.staging.hidden import PutBack, keepers_of
from smelt.capture.staging.symbols import StagedObject, slot_of, wrap
from smelt.capture.staging.watch import unwatched

MISSING: Any = type("_Missing", (), {"__repr__": lambda self: "MISSING"})()
WHOLE: Any = type("_Whole", (), {"__repr__": lambda self: "WHOLE"})()
_ATOMS = (
    int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.Size, torch.Generator, torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, types.BuiltinFunctionType,
    types.CodeType, types.ModuleType, range, slice, types.FrameType, types.TracebackType,
)  # fmt: skip


# Most of what is met, told without asking each class of the above.
_OFTEN_ATOMS = frozenset((*_ATOMS, torch.nn.Parameter))
_OFTEN_NOT = frozenset((dict, list, tuple, set, frozenset, deque, types.FunctionType, types.MethodType, types.CellType))


class Change(NamedTuple):
    """What became of one place: `container[key]`, the contents of a cell, or all contents (key WHOLE)."""

    container: Any
    key: Any
    old: Any
    new: Any

    def put(self, value: Any) -> None:
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
            _refill(container, value)
        elif value is MISSING:
            if dict.__contains__(container, self.key):
                _base(container).__delitem__(container, self.key)
        else:
            _base(container).__setitem__(container, self.key, value)


def _refill(container: Any, contents: Any) -> None:
    base = _base(container)
    base.clear(container)
    if isinstance(container, dict):
        for key, value in contents.items():
            base.__setitem__(container, key, value)
    elif isinstance(container, set):
        base.update(container, contents)
    else:
        base.extend(container, contents)


def _base(container: Any) -> Any:
    """The builtin class that holds a container's contents: subclasses may load or compute what they show."""
    return next(base for base in (OrderedDict, dict, list, set, deque) if isinstance(container, base))


class Snapshot:
    """Copies of the containers that were reachable from the roots.

    hidden: what objects hold outside of any container (slots, bytes) is put back, too, though its change is none.
    iterators: by id, those that a run would advance for good.
    """

    def __init__(self, roots: Iterable[Any], without: Iterable[Any] = (), hidden: bool = False) -> None:
        walk = _Walk({id(item) for item in without}, hidden)
        walk.run(roots)
        self.copies = walk.copies
        self.parents = walk.parents
        self._caches = walk.caches
        self._keepers = walk.keepers
        self.iterators = walk.iterators

    def holds(self, value: Any) -> bool:
        """Whether a container was reachable."""
        return id(value) in self.copies

    @unwatched
    def changes(self) -> dict[tuple[int, Any], Change]:
        """What is different now, by container and key."""
        found: dict[tuple[int, Any], Change] = {}
        for container, old in self.copies.values():
            if not _is_as_it_was(container, old):
                for change in _differences(container, old):
                    found[id(container), _hashable(change.key)] = change
        return found

    @unwatched
    def restore(self, changes: Iterable[Change] | None = None) -> None:
        """Put everything back. changes: all that is different, where that was just asked."""
        for put_back in self._keepers:
            put_back()
        for table, keys in self._caches:
            if len(table) > len(keys):
                _take_out(table, keys)
        if changes is None:
            pairs = [(container, old) for container, old in self.copies.values() if not _is_as_it_was(container, old)]
        else:
            pairs = list({id(change.container): self.copies[id(change.container)] for change in changes}.values())
        for container, old in pairs:
            changed = list(_differences(container, old))
            if not changed:
                continue
            if isinstance(container, (types.CellType, StagedObject)):
                changed[0].put(old)
            elif isinstance(container, type):
                for change in changed:
                    change.put(change.old)
            else:
                _refill(container, old)


def _take_out(table: dict[Any, Any], keys: Collection[int]) -> None:
    """Leave those keys in a cache's table that have these ids."""
    kept = [(key, value) for key, value in table.items() if id(key) in keys]
    table.clear()
    table.update(kept)


def _hashable(key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        return id(key)
    return (type(key), key)


def contents(container: Any) -> Any:
    """A shallow copy of what a container holds, MISSING for an empty cell."""
    if isinstance(container, StagedObject):
        return wrap(container.slot)
    if isinstance(container, types.CellType):
        try:
            return container.cell_contents
        except ValueError:
            return MISSING
    if isinstance(container, type):
        return dict(vars(container))
    if isinstance(container, dict):
        return {key: value for key, value in dict.items(container)}  # noqa: C416 (a subclass's own keys() stays out)
    base = _base(container)
    return set(base.__iter__(container)) if base is set else list(base.__iter__(container))


def _is_as_it_was(container: Any, old: Any) -> bool:
    """Whether a container of the kinds that there are most of holds just what it held; False where others may."""
    kind = type(container)
    if kind is dict or kind is OrderedDict:
        return len(container) == len(old) and (
            not old
            or (
                all(map(operator.is_, dict.keys(container), old))
                and all(map(operator.is_, dict.values(container), old.values()))
            )
        )
    if kind is list:
        return len(container) == len(old) and all(map(operator.is_, container, old))
    if kind is types.CellType:
        try:
            return container.cell_contents is old
        except ValueError:
            return old is MISSING
    return False


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
        if _are_the_same(now.keys(), old) and _are_the_same(now.values(), old.values()):
            return
        for key in {**old, **now}:
            before, after = old.get(key, MISSING), now.get(key, MISSING)
            # Methods are wrapped while a run is recorded.
            is_method = isinstance(before, types.FunctionType) and isinstance(after, types.FunctionType)
            if before is not after and not is_method and key not in ("__dict__", "__weakref__"):
                yield Change(container, key, before, after)
    elif isinstance(container, dict):
        if _are_the_same(dict.keys(container), old) and _are_the_same(dict.values(container), old.values()):
            return
        for key in {**old, **contents(container)}:
            before, after = old.get(key, MISSING), dict.get(container, key, MISSING)
            if before is not after:
                yield Change(container, key, before, after)
    else:
        now = contents(container)
        if isinstance(container, set):
            if {id(item) for item in now} != {id(item) for item in old}:
                yield Change(container, WHOLE, old, now)
        elif len(now) != len(old):
            yield Change(container, WHOLE, old, now)
        elif not _are_the_same(now, old):
            for i, (before, after) in enumerate(zip(old, now, strict=True)):
                if before is not after:
                    yield Change(container, i, before, after)


def _is_of_the_log(value: Any) -> bool:
    """Whether it notes what the program reads: no state of the program's, though the classes it watches refer to it."""
    owner = value if isinstance(value, types.FunctionType) else type(value)
    return str(owner.__module__).startswith("smelt.capture.reads")


def _are_the_same(some: Collection[Any], others: Collection[Any]) -> bool:
    """Whether both have the very same objects, in the same order."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


@functools.lru_cache(maxsize=4096)
def _is_installed(name: str | None) -> bool:
    """Whether a module is an installed library's: what its own globals hold is not followed, there is too much."""
    file = getattr(sys.modules.get(name or ""), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


class _Walk:
    def __init__(self, without: set[int], hidden: bool = False) -> None:
        self._hidden = hidden
        self.copies: dict[int, tuple[Any, Any]] = {}
        self.parents: dict[int, list[Any]] = {}
        self.caches: list[tuple[dict[Any, Any], frozenset[int]]] = []
        self.keepers: list[PutBack] = []
        self.iterators: dict[int, Any] = {}
        self._without = without
        self._seen: set[int] = set()
        self._keep: list[Any] = []
        self._stack: list[Any] = []

    def run(self, roots: Iterable[Any]) -> None:
        for root in roots:
            self._add(root)
        while self._stack:
            self._visit(self._stack.pop())

    def _add(self, value: Any) -> None:
        kind = type(value)
        if kind in _OFTEN_ATOMS or id(value) in self._seen or id(value) in self._without:
            return
        if kind not in _OFTEN_NOT and isinstance(value, _ATOMS):
            return
        self._seen.add(id(value))
        self._keep.append(value)
        self._stack.append(value)

    def _copy(self, container: Any) -> Any:
        if id(container) not in self.copies and id(container) not in self._without:
            self.copies[id(container)] = (container, contents(container))
        return container

    def _visit(self, value: Any) -> None:
        kind = type(value)
        if kind is dict or kind is OrderedDict or kind is list:
            copy: Any = list(value) if kind is list else dict(dict.items(value))
            if id(value) not in self.copies and id(value) not in self._without:
                self.copies[id(value)] = (value, copy)
            for item in copy if kind is list else copy.values():
                self._held(item, value)
            if kind is OrderedDict:
                self._add(value.__dict__)
            return
        if kind is tuple:
            for item in value:
                self._held(item, value)
            return
        is_of_the_log = _is_of_the_log(value)
        if is_of_the_log:
            self._add(getattr(value, HOOKED, None))
        elif isinstance(value, dict):
            self._copy(value)
            for item in list(dict.values(value)):
                self._held(item, value)
        elif isinstance(value, (list, deque, set)):
            self._copy(value)
            for item in contents(value):
                self._held(item, value)
        elif isinstance(value, (tuple, frozenset)):
            base: Any = tuple if isinstance(value, tuple) else frozenset
            for item in base.__iter__(value):
                self._held(item, value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._add(value.__self__)
            self._add(value.__func__)
        elif isinstance(value, functools.partial):
            for item in (value.func, value.args, value.keywords):
                self._add(item)
        elif isinstance(value, StagedObject):
            self._copy(value)
        elif isinstance(value, types.CellType):
            self._copy(value)
            held = contents(value)
            if held is not MISSING:
                self._held(held, value)
        elif isinstance(value, LRU_CACHE):
            table = table_of(value)
            if table is not None:
                self.caches.append((table, frozenset(map(id, table))))
        elif isinstance(value, (staticmethod, classmethod)):
            self._add(value.__func__)
        elif isinstance(value, property):
            for function in (value.fget, value.fset):
                self._add(function)
        elif isinstance(value, type):
            self._class(value)
        if not is_of_the_log and not isinstance(value, (type, StagedObject)):
            self._attributes(value)

    def _held(self, item: Any, holder: Any) -> None:
        if isinstance(item, (list, dict)):
            self.parents.setdefault(id(item), []).append(holder)
        self._add(item)

    def _function(self, function: types.FunctionType) -> None:
        for cell in function.__closure__ or ():
            self._add(cell)
        for item in (function.__defaults__, function.__kwdefaults__):
            if item:
                self._add(item)
        if is_skipped_module(function.__module__) or _is_installed(function.__module__):
            return
        names, namespace = names_in(function.__code__), function.__globals__
        if any(name in namespace for name in names):
            self._copy(namespace)
        for name in names:
            if name in namespace:
                self._add(namespace[name])

    def _class(self, cls: type) -> None:
        for base in cls.__mro__:
            if not (is_skipped_module(base.__module__) or _is_installed(base.__module__)):
                self._copy(base)
                for item in list(vars(base).values()):
                    self._add(item)

    def _attributes(self, value: Any) -> None:
        cls = type(value)
        if cls in (dict, list, tuple, set, frozenset, deque):
            return
        if self._hidden:
            self.keepers.extend(keepers_of(value))
            if hasattr(cls, "__next__"):
                self.iterators[id(value)] = value
        try:
            state = object.__getattribute__(value, "__dict__")
        except AttributeError:
            state = None
        if isinstance(state, dict):
            self._add(state)
        if not is_skipped_module(cls.__module__):
            self._add(cls)
            for base in cls.__mro__:
                slots = base.__dict__.get("__slots__", ())
                for name in (slots,) if isinstance(slots, str) else slots:
                    try:
                        self._add(object.__getattribute__(value, name))
                    except AttributeError:
                        continue
