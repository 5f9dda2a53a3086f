"""The objects outside a program that its run has reached, what it read from them, and what it left changed.

Invariant: an object is in `rooted` from the moment the run could first hold it, and stays alive until the log is done,
so an id names one object only. Containers are copied when first reached, before the run can change them.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from numbers import Number
from threading import get_ident
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from smelt._torch.exact import MISSING, contents
from smelt._torch.library.lru import LRU_CACHE, cached_tensors, has_tensor, results_of, table_of
from smelt._torch.seen.labels import key_labels
from smelt._torch.seen.leaves import GRAD_SLOT
from smelt.capture.reads.filled_caches import Fills
from smelt.capture.reads.reads_annotations import Annotations
from smelt.capture.reads.reads_arguments import ArgumentHeap, argument_parts
from smelt.capture.reads.reads_effects import DRAWS, LOCKS, file_kind, reads_all
from smelt.capture.reads.reads_facts import (
    Change,
    RawRead,
    Reached,
    Read,
    Site,
    Store,
    changes_of,
    facts_of,
    state_path,
)
from smelt.capture.reads.reads_library import Loggers, RawAsks, hold_error, hold_factory, site_of
from smelt.capture.reads.reads_names import NamedReads, expect_store, read_global, widen_modules
from smelt.capture.reads.reads_outer import Outer, State, broken_state, changed_state, outer_writes, state_places
from smelt.capture.reads.reads_patch import ClassPatches
from smelt.capture.reads.reads_scan import (
    is_for_append,
    is_passed_by,
    may_take_locks,
    only_asks_for_names,
    scan_code,
)
from smelt.capture.reads.reads_super import Supers
from smelt.capture.reads.reads_tensors import (
    TensorMarks,
    is_assigning_buffer,
    methods_of_tensors,
    own_of,
    steps_by_gradients,
)
from smelt.capture.reads.reads_values import (
    CALL_HOOKS,
    CALL_PROTOCOL,
    COMPILED_TARGET,
    QUICK_ATOMS,
    as_written,
    cell_contents,
    class_attributes,
    class_parts,
    has_own_lookup,
    has_standard_call,
    instance_dict,
    is_plain_container,
    is_user_class,
    kind_of,
    peek,
    raw_lookup,
)
from smelt.capture.staging.objects.classes import dispatcher_of
from smelt.capture.structure.state import Place, held_at, in_names
from smelt.diag.events import watched
from smelt.ops.python.python_draws import PYTHONS, numpys_generator

_LAYERS = os.path.join(os.path.dirname(torch.nn.__file__), "modules", "")
_SMALL_ARRAY_NBYTES = 4096


class Roots:
    """Everything reached so far. Methods that begin with `enter`, `add` and `_on` are called during the run."""

    def __init__(self, state: Sequence[Place] = ()) -> None:
        self._places = state
        self.state = {place.spot: place for place in state}
        self.held = {p.spot: held_at(p) for p in state}
        self.read_lists: set[tuple[int, str]] = set()  # attributes that hold lists which are not only appended to
        self.state_names = {place.attribute for place in state}
        self.state_spaces = {id(place.space) for place in state}
        self.new_state: State | None = None  # where all that the run changed could be state
        self.rooted: dict[int, Reached] = {}
        self.raw: list[RawRead] = []
        self.seen: set[tuple[object, str]] = set()
        self.modules: list[tuple[torch.nn.Module, Site | None]] = []
        self.written: dict[tuple[int, str], tuple[Any, str, Any, Site | None]] = {}
        self.copies: dict[int, tuple[Any, Any, Site | None]] = {}
        self.facts: dict[tuple[str, int, Any], Read] = {}
        self.stores: dict[tuple[int, str], Store] = {}
        self.class_parts: dict[int, tuple[type, tuple[object, ...], Site | None]] = {}
        self.functions: dict[int, FunctionType] = {}
        self.refusals: list[tuple[str, str, Site | None]] = []
        self._tensors = TensorMarks()
        self._loggers = Loggers()
        self._supers = Supers()
        self.annotations = Annotations()
        self._raw_asks = RawAsks()
        self._names: set[str] = set()  # that code which has run names
        self._texts: set[str] = set()  # those that it may ask for with `getattr`
        self._classes: set[type] = set()  # whose descriptors are reached
        self.held_modules: dict[int, tuple[ModuleType, dict[str, object], Site | None]] = {}  # with what they held
        self._locks: list[tuple[object, Site | None, bool]] = []  # whether code names it there
        self._loaded: list[tuple[Site, frozenset[str]]] = []  # where code asks what is imported, and what was
        self._holders: dict[int, list[FrameType]] = {}  # calls of functions that name one, by code
        self._generators: list[tuple[random.Random, object, Site | None]] = []  # as they were
        self.numpys_draws: list[tuple[str, Site]] = []  # where code names a draw of NumPy's global generator
        self.arguments: set[int] = set()  # structured arguments
        self.fills = Fills()
        self.heap: ArgumentHeap | None = None
        self.outer: set[tuple[int, str]] = set()  # attributes that the run only wrote: owner and name
        self.opened: frozenset[int] = frozenset()  # of the arguments' objects, those known by structure
        self._met_outside: set[int] = set()  # those that the run reached from elsewhere, too
        self.passed: set[int] = set()  # those and tensor arguments: other objects at the next call
        self.executed: dict[int, tuple[CodeType, dict[str, object]]] = {}
        self.patches = ClassPatches(self.seen, self._on_read, self._on_write)
        self._nested: set[int] = set()
        self._named = NamedReads()
        self._thread = get_ident()
        self._busy = False
        self._late = False
        self._asks_classes = False  # whether code that has run may hold the class of an object

    # ---------------------------------------------------------------- reaching values

    def add_root(self, value: object, name: str) -> None:
        """Start from a value that the program holds by itself: its function, its module."""
        self.reach(value, 0, name, None)

    def add_arguments(
        self, args: tuple[object, ...], kwargs: dict[str, object], heap: ArgumentHeap | None = None
    ) -> None:
        """Start from the call's arguments; their own structure is for the argument guards, not for read facts."""
        if heap is not None:
            known = (place for place in heap.by_id if place in self.rooted)
            self._met_outside.update(place for place in known if (place, None) not in self.state)
        for i, value in enumerate(args):
            self._reach_argument(value, 0, f"args[{i}]")
        for key, value in kwargs.items():
            self._reach_argument(value, 0, f"kwargs[{key!r}]")
        self.heap = heap
        # Their dicts have the very same keys at each call; what these are and hold is not of the call.
        for place in tuple(self.arguments):
            held = self.rooted[place].value
            if isinstance(held, dict):
                for label, member in zip(key_labels(dict.keys(held)), dict.keys(held), strict=True):
                    self._reach_member(member, 0, f"{self.name(place)}.keys(){label}", None)

    def _reach_argument(self, value: object, parent: int, label: str) -> None:
        cls = type(value)
        if isinstance(value, torch.Tensor):
            self.passed.add(id(value))
            self._tensors.meet(value, lambda: label, None)
        is_record = dataclasses.is_dataclass(cls)
        if isinstance(value, (list, tuple, dict)) or cls is deque or is_record:
            if id(value) in self.rooted:
                return
            self.rooted[id(value)] = Reached(value, parent, label, None)
            self.arguments.add(id(value))
            self.passed.add(id(value))
            if isinstance(value, (list, dict)) or cls is deque:
                self.copies[id(value)] = (value, contents(value), None)
                hold_factory(self, value, None)
            for part, inner in argument_parts(value):
                self._reach_argument(inner, id(value), part)
            if is_record:
                self.patches.watch(cls)
        else:
            self.reach(value, parent, label, None)

    def reach(self, value: Any, parent: int, label: str, site: Site | None) -> None:
        """Note a value of the outside world that the run now holds, so that reads from it are seen."""
        kind = kind_of(type(value))
        if kind == "atom":
            if isinstance(value, torch.Tensor):
                self._meet_tensor(value, parent, label, site)
            elif isinstance(value, BaseException) and id(value) not in self.rooted:
                self.rooted[id(value)] = Reached(value, parent, label, site)
                hold_error(self, value, site)
                if (own := instance_dict(value)) is not None:
                    self._reach_own(own, id(value), site)
            elif type(value) not in QUICK_ATOMS and isinstance(value, (Enum, Number)):
                self._reach_named(value, parent, label, site)
            return
        if self._is_given(value) and not self._is_of_heap(parent) and (id(value), None) not in self.state:
            self._met_outside.add(id(value))
        if kind == "lock":
            self._locks.append((value, site, not parent))
        if kind == "module" and id(value) not in self.held_modules:
            self.hold_module(value, parent, label, site)
        if id(value) in self.rooted:
            return
        self.rooted[id(value)] = Reached(value, parent, label, site)
        if self._late and kind in ("container", "instance", "array"):  # nobody watched what the run read of it
            self.refusals.append(("reads what was loaded only now", self.name(id(value)), site))
        if hasattr(type(value), COMPILED_TARGET):  # a compiled object inside the program runs as what it was made of
            self.reach(getattr(value, COMPILED_TARGET), parent, label, site)
            own = instance_dict(value) if kind == "opaque" else None
            if own is not None:  # a compiled function is what the function's name now stands for, attributes and all
                self._reach_own(own, id(value), site)
        if kind not in ("opaque", "module", "lock"):
            getattr(self, f"_reach_{kind}")(value, site)
        if kind in ("function", "class", "instance"):
            self.annotations.meet(self, value)

    def _meet_tensor(self, tensor: torch.Tensor, parent: int, label: str, site: Site | None) -> None:
        """A tensor; what is read of what its attributes hold is seen where they hold it."""
        if self._tensors.meet(tensor, partial(self._name_at, parent, label), site):
            for name, held in own_of(tensor).items():
                if kind_of(type(held)) in ("container", "instance", "array"):
                    self.reach(held, parent, f"{label}.{name}", site)

    def _reach_named(self, value: object, parent: int, label: str, site: Site | None) -> None:
        """A member of an enumeration, or number of a class of its own: what is read of it is seen nowhere, so that all
        that it holds counts.
        """
        own = instance_dict(value)
        if own is not None and id(own) not in self.rooted:
            self.rooted.setdefault(id(value), Reached(value, parent, label, site))
            self._reach_own(own, id(value), site)

    def hold_module(self, module: ModuleType, parent: int, label: str, site: Site | None) -> None:
        """A module that an object or container holds: code may read of it what it names anywhere."""
        if file_kind(getattr(module, "__file__", None) or "<none>") != "user":
            return
        self.rooted.setdefault(id(module), Reached(module, parent, label, site))
        self.held_modules[id(module)] = module, dict(module.__dict__), site
        self._read_held(module, tuple(self._names))

    def _read_held(self, module: ModuleType, names: Iterable[str]) -> None:
        space, (_, held, site) = module.__dict__, self.held_modules[id(module)]
        for name in names:
            if name in held and (id(space), name) not in self.state:
                self.fact("item", space, name, held[name], site, f"{module.__name__}.{name}")
                self.reach(held[name], id(module), f".{name}", site)
            elif name in self._texts and name not in held:
                self.fact("absent", space, name, MISSING, site, f"{module.__name__}.{name}")

    def _is_given(self, value: object) -> bool:
        """Whether this is one of the arguments' objects."""
        return self.heap is not None and id(value) in self.heap.by_id

    def _is_of_heap(self, place: int) -> bool:
        """Whether something is one of the arguments' objects, or a method that was asked of one."""
        assert self.heap is not None
        if self.heap.owns(place):
            return True
        holder = self.rooted.get(place)
        return holder is not None and type(holder.value) is MethodType and self.heap.owns(holder.parent)

    def _reach_function(self, function: FunctionType, site: Site | None) -> None:
        self.functions.setdefault(id(function.__code__), function)
        if file_kind(function.__code__.co_filename) not in ("user", "smelt"):
            if "__wrapped__" in function.__dict__:  # a decorator's wrapper: what it wraps is the user's
                self._reach_function_dict(function, site)
            return
        seen = (function.__code__, function.__defaults__, function.__kwdefaults__)
        self.fact("function", function, None, seen, site)
        if function.__kwdefaults__:
            self.reach(function.__kwdefaults__, id(function), ".__kwdefaults__", site)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.reach(default, id(function), ".__defaults__", site)
        self._reach_function_dict(function, site)

    def _reach_function_dict(self, function: FunctionType, site: Site | None) -> None:
        """A function's own attributes: read and set without anything to watch, so all of them count; but for what
        `functools.singledispatch` remembers, which follows from what is registered.
        """
        if dispatcher_of(function) is not None:
            for name in ("registry", "__wrapped__"):
                self.reach(function.__dict__.get(name), id(function), f".{name}", site)
            return
        self._reach_own(function.__dict__, id(function), site)

    def _reach_own(self, own: dict[str, object], owner: int, site: Site | None) -> None:
        self.rooted[id(own)] = Reached(own, owner, ".__dict__", site)
        self.copies[id(own)] = (own, dict(own), site)
        is_state = self._is_given(own)  # and so is what it holds: that is not met from elsewhere
        for name, value in own.items():
            self.reach(value, id(own) if is_state else owner, f"[{name!r}]" if is_state else f".{name}", site)

    def _reach_method(self, method: MethodType, site: Site | None) -> None:
        self.reach(method.__func__, id(method), ".__func__", site)
        self.reach(method.__self__, id(method), ".__self__", site)

    def _reach_partial(self, value: object, site: Site | None) -> None:
        if isinstance(value, LRU_CACHE):
            self.fills.meet(value, site)
            for _, result in results_of(value):
                self._reach_result(result, value, site)
            if held := cached_tensors(value):
                self.fact("cached", value, None, held, site)
        for name in ("func", "args", "keywords", "__func__", "__wrapped__", "fget", "fset"):
            inner = getattr(value, name, None)
            if inner is not None:
                self.reach(inner, id(value), f".{name}", site)

    def reach_result(self, cache: object, site: Site | None, result: object) -> None:
        """What a call gave that a cache keeps: from now on what becomes of it is seen."""
        self._reach_result(result, cache, site)

    def _reach_result(self, result: object, cache: object, site: Site | None) -> None:
        """What a cache gives is one object at each call, which others may change. Of tensors `fills` knows."""
        if not has_tensor(result) and kind_of(type(result)) in ("container", "instance", "array"):
            self.reach(result, id(cache), "(...)", site)

    def _reach_container(self, value: object, site: Site | None) -> None:
        if value is sys.modules and site is not None and only_asks_for_names(site.code, site.offset):
            self._loaded.append((site, frozenset(sys.modules)))
            del self.rooted[id(value)]  # who else comes to it may ask for more
            return
        held = contents(value)
        self.copies[id(value)] = (value, held, site)
        is_dict = isinstance(value, dict)
        labels = key_labels(held) if is_dict else [f"[{i}]" for i in range(len(held))]
        for label, member in zip(labels, held.values() if is_dict else held, strict=True):
            self._reach_member(member, id(value), label, site)
        for label, key in zip(labels, held, strict=True) if is_dict else ():
            self._reach_member(key, id(value), f".keys(){label}", site)
        hold_factory(self, value, site)
        if not is_plain_container(type(value)):
            self._watch(value, site)

    def _reach_member(self, member: object, container: int, label: str, site: Site | None) -> None:
        if type(member) not in QUICK_ATOMS or isinstance(member, torch.Tensor):
            self.reach(member, container, label, site)

    def _reach_class(self, cls: type, site: Site | None) -> None:
        for base in cls.__mro__:
            if is_user_class(base) and ("class", id(base), None) not in self.facts:
                self._hold_own(base, id(cls), site)
        if not is_user_class(cls):  # a library's, whose constructor somebody may replace
            for name in ("__new__", "__init__"):
                self.fact("static", cls, name, raw_lookup(cls, name), site, f"{cls.__qualname__}.{name}")
        if is_user_class(type(cls)):  # a class shows what its metaclass holds
            self._hold_class(type(cls), site)

    def _reach_iterator(self, value: object, site: Site | None) -> None:
        self.refusals.append(("holds an iterator, which a run may advance", self.name(id(value)), site))

    def _reach_hidden(self, value: object, site: Site | None) -> None:
        self.refusals.append(("holds state that cannot be watched", self.name(id(value)), site))

    def _reach_bound(self, value: Any, site: Site | None) -> None:
        """A method of something built in: it reads and changes what it is bound to, as `append = log.append`."""
        owner = value.__self__
        if kind_of(type(owner)) in ("container", "instance", "array", "iterator", "hidden", "lock"):
            self.reach(owner, id(value), ".__self__", site)

    def _reach_view(self, value: object, site: Site | None) -> None:
        """A view of a mapping: what it shows is what the mapping holds."""
        for mapping in gc.get_referents(value):
            self.reach(mapping, id(value), "", site)

    def _reach_weak(self, value: Any, site: Site | None) -> None:
        """A weak reference. Guards keep what they compare alive; modules, parameters and functions live long."""
        target = value()
        if isinstance(target, (torch.Tensor, torch.nn.Module, FunctionType)):
            self.reach(target, id(value), "()", site)
        else:
            self.refusals.append(("holds a weak reference", self.name(id(value)), site))

    def enter_again(self, frame: FrameType) -> None:
        """A further call of a function each of whose calls counts."""
        if id(frame.f_code) in self._holders:
            self._holders[id(frame.f_code)].append(frame)
        self._supers.enter(self, frame)
        self._raw_asks.enter(self, frame)

    def counts_calls(self, code: CodeType) -> bool:
        """Whether each call of a function of the user's counts: it names a lock, or what it asks follows from what it
        is given, as what `super()` finds does.
        """
        return id(code) in self._holders or code in self._supers or code in self._raw_asks

    def _left_alone(self, site: Site | None) -> bool:
        """Whether every call of the function that names something ended before it came to it."""
        frames = self._holders.get(id(site.code)) if site is not None else None
        if site is None or frames is None:
            return False
        return all(is_passed_by(site.code, site.offset, frame.f_lasti) for frame in frames)

    def _reach_random(self, value: object, site: Site | None) -> None:
        if type(value) is random.Random:  # to hold it is no effect
            self._generators.append((value, value.getstate(), site))
            return
        if value is numpys_generator():  # whose draws are seen whoever holds it
            return
        self.refusals.append(("holds a random generator", self.name(id(value)), site))

    def _reach_logger(self, value: object, site: Site | None) -> None:
        self._loggers.meet(value, site)

    def _reach_array(self, value: Any, site: Site | None) -> None:
        if value.nbytes > _SMALL_ARRAY_NBYTES:
            self.refusals.append(("reads a large NumPy array", self.name(id(value)), site))
        self.fact("array", value, None, (value.dtype, value.shape, value.tobytes()), site)

    def class_state(self, cls: type, name: str) -> bool:
        """Whether what a class shows under a name is state; that it is this place which it shows is noted then."""
        found = state_path(cls, name, self.state)
        for fact in found or ():
            self.facts.setdefault((fact.kind, id(fact.owner), fact.key), fact)
        return found is not None

    def _hold_class(self, cls: type, site: Site | None) -> None:
        """What a class holds is read, and written, where nobody sees it: as `type(self).calls`."""
        for base in cls.__mro__:
            if is_user_class(base) and ("class", id(base), None) not in self.facts:
                self._hold_own(base, id(base), site)

    def _hold_own(self, cls: type, parent: int, site: Site | None) -> None:
        """What a class holds itself, but for what of it is state, is a fact."""
        own = class_attributes(cls)
        left = frozenset(name for name in own if (id(cls), name) in self.state)
        own = {name: member for name, member in own.items() if name not in left}
        label = cls.__qualname__ if left else None
        self.class_parts[id(cls)] = cls, class_parts(cls), site
        self.facts["class", id(cls), None] = Read("class", cls, left or None, own, site, label, cls, self.name)
        for name, member in own.items():
            if kind_of(type(member)) in ("container", "instance", "array"):
                self.reach(member, parent, f".{name}", site)

    def _reach_descriptors(self, cls: type) -> None:
        """The user's descriptors that a class holds: their methods run when an attribute is asked for."""
        self._classes.add(cls)
        for base in filter(is_user_class, cls.__mro__):
            for name, member in base.__dict__.items():
                if kind_of(type(member)) == "instance" and hasattr(type(member), "__get__"):
                    self.reach(member, 0, f"{base.__qualname__}.{name}", None)

    def _reach_instance(self, value: object, site: Site | None) -> None:
        if type(value) not in self._classes:
            self._reach_descriptors(type(value))
        if self._asks_classes:
            self._hold_class(type(value), site)
        if isinstance(value, torch.nn.Module) and has_standard_call(type(value)):
            self.modules.append((value, site))
            own = instance_dict(value) or {}
            for name in CALL_HOOKS:
                table = own.get(name)
                if table:
                    self.reach(table, id(value), f".{name}", site)
            self._watch(value, site, CALL_PROTOCOL)
            return
        if isinstance(value, torch.nn.Module):
            cls = type(value)
            self.fact("static", cls, "__call__", raw_lookup(cls, "__call__"), site, f"{cls.__qualname__}.__call__")
        held = instance_dict(value)
        if held is not None:  # `type(value)` and `isinstance` are no reads of an attribute
            self.fact("object", value, None, (type(value), held), site)
        if isinstance(value, BaseException):
            hold_error(self, value, site)
        self._watch(value, site)

    def _watch(self, value: object, site: Site | None, ignore: frozenset[str] = frozenset()) -> None:
        cls = type(value)
        own_lookup = has_own_lookup(cls)
        if not self.patches.watch(cls, ignore) or own_lookup:
            self.widen(value, site)

    def hold_container(self, container: object, held: object, parent: int, label: str, site: Site | None) -> None:
        """A container that came to be during the run, with what it held when it was new."""
        self.rooted.setdefault(id(container), Reached(container, parent, label, site))
        self.copies[id(container)] = (container, held, site)

    def widen(self, value: object, site: Site | None) -> None:
        """Hold the whole object to what it is now: its lookups are not ours to see."""
        own = instance_dict(value)
        if own is not None and id(own) not in self.copies:
            self.reach(own, id(value), ".__dict__", site)
            self.fact("object", value, None, (type(value), own), site)

    def fact(
        self, kind: str, owner: object, key: object, value: object, site: Site | None, name: str | None = None
    ) -> None:
        place = (kind, id(owner), key)
        if place not in self.facts:
            self.facts[place] = Read(kind, owner, key, value, site, name, owner, self.name)

    def name(self, of: int) -> str:
        """A readable expression for a rooted object, from the root it was reached by."""
        parts: list[str] = []
        while of in self.rooted and len(parts) < 64:
            reached = self.rooted[of]
            parts.append(reached.label)
            of = reached.parent
        return as_written(in_names("".join(reversed(parts)), self._places)) or "<unnamed>"

    # ---------------------------------------------------------------- attribute access

    def _on_read(self, owner: object, name: str, value: object, key: tuple[object, str]) -> None:
        if get_ident() != self._thread or self._busy:
            return
        self._busy, resume = True, watched.resume
        sys.setprofile(None)  # what follows is our own work: thousands of events for nothing
        try:
            if id(owner) in self.rooted:
                if type(value) is list and not self._is_for_append(owner, name, sys._getframe(2)):
                    self.read_lists.add((id(owner), name))
                if type(value) is not list or (id(owner), name) in self.read_lists:
                    self.seen.add(key)
                if (id(owner), name) not in self.written and (id(owner), name) not in self.state_names:
                    self._note_read(owner, name, value, sys._getframe(2))
        finally:
            self._busy = False
            if resume is not None:
                resume()

    def _is_for_append(self, owner: object, name: str, frame: FrameType) -> bool:
        return frame.f_lasti >= 0 and is_for_append(frame.f_code, frame.f_lasti)

    def _note_read(self, owner: object, name: str, value: object, frame: FrameType) -> None:
        site = site_of(frame)
        value = peek(owner, name) if value is MISSING else value
        self.raw.append((owner, name, value, site))
        if name.startswith("__"):
            if reads_all(name, frame.f_code.co_filename):
                self.widen(owner, site)
        elif isinstance(value, torch.Tensor):
            self._meet_tensor(value, id(owner), f".{name}", site)
        elif is_assigning_buffer(name, frame):
            pass  # the one that is written, which is known
        elif type(value) not in QUICK_ATOMS and (id(value) not in self.rooted or self._is_given(value)):
            self.reach(value, id(owner), f".{name}", site)

    def _on_write(self, owner: object, name: str) -> None:
        key = (id(owner), name)
        if get_ident() == self._thread and id(owner) in self.rooted and key not in self.written:
            site = site_of(sys._getframe(2))
            self.written[key] = (owner, name, peek(owner, name), site)
            if isinstance(owner, BaseException) and hasattr(BaseException, name):  # where nothing can be put
                self.refusals.append(("changes what an error holds", f"{self.name(id(owner))}.{name}", site))

    # ---------------------------------------------------------------- globals and cells

    def enter_code(self, code: CodeType, frame: FrameType) -> None:
        """A function of the user's runs for the first time in this recording: note all that it may read by name."""
        namespace = frame.f_globals
        self.executed[id(code)] = (code, namespace)
        self._nested.update(id(c) for c in code.co_consts if isinstance(c, CodeType))
        scan, asked = scan_code(code), len(self._locks) + len(self._loaded)
        known = (*code.co_consts, *frame.f_locals.values()) if scan.calls_getattr else ()
        texts = [text for text in known if isinstance(text, str)]
        self._hold_methods((*code.co_names, *texts), Site(code, 0))
        self._names.update(code.co_names, texts)
        self.annotations.enter(self, code, texts)
        self._texts.update(texts)
        for module, *_ in list(self.held_modules.values()):
            self._read_held(module, (*code.co_names, *texts))
        self._hold_given_classes(code, frame)
        self._supers.enter(self, frame)
        cells = self._cells_of(code, frame)
        for chain in scan.chains:
            site = Site(code, chain.offset)
            if chain.root == "cell":
                self._named.follow(self, cells.get(chain.name, MISSING), chain, site)
            elif chain.root == "import":
                self._named.follow_import(self, chain, site)
            else:
                value = read_global(self, namespace, frame.f_builtins, chain.name, site)
                self._named.follow(self, value, chain, site)
        if len(self._locks) + len(self._loaded) > asked:
            self._holders[id(code)] = [frame]
        for chain in scan.stores:
            expect_store(self, namespace, chain, Site(code, chain.offset))
        if scan.asks_classes and not self._asks_classes:
            self._asks_classes = True
            for reached in list(self.rooted.values()):
                if kind_of(type(reached.value)) == "instance":
                    self._hold_class(type(reached.value), Site(code, 0))
        if scan.calls_getattr:
            widen_modules(self, scan.chains, {"global": namespace, "cell": cells, "import": sys.modules}, texts)
        self._raw_asks.enter(self, frame)

    def _hold_methods(self, names: Sequence[str], site: Site) -> None:
        """Methods of tensors that code names, which somebody has set or may set: no tensor's class is watched."""
        for name, held, is_users in methods_of_tensors([name for name in names if name not in self._names]):
            self.fact("static", torch.Tensor, name, held, site, f"torch.Tensor.{name}")
            if is_users:
                self.reach(held, 0, f"torch.Tensor.{name}", site)

    def enter_library_code(self, code: CodeType, namespace: dict[str, object]) -> None:
        """A function of torch's or of Python's runs for the first time."""
        self.annotations.enter_library(self, code)
        if steps_by_gradients(code):
            self._names.add("grad")
        if not code.co_filename.startswith(_LAYERS):
            return
        functions = vars(torch.nn.functional)
        for chain in scan_code(code).chains:  # what `nn.Linear` calls, somebody may set to a function of their own
            if chain.path and chain.path[0] in functions and namespace.get(chain.name) is torch.nn.functional:
                name, site = chain.path[0], Site(code, chain.offset)
                self.fact("item", functions, name, functions[name], site, f"torch.nn.functional.{name}")
                self.reach(functions[name], 0, f"torch.nn.functional.{name}", site)

    def _hold_given_classes(self, code: CodeType, frame: FrameType) -> None:
        """Classes that a function is given, as a classmethod is: what they hold is read and written by its own name."""
        count = code.co_argcount + code.co_kwonlyargcount
        if not count:
            return
        given = frame.f_locals
        for name in code.co_varnames[:count]:
            if isinstance(given.get(name), type):
                self._hold_class(given[name], Site(code, 0))

    def _cells_of(self, code: CodeType, frame: FrameType) -> dict[str, object]:
        """The closure's values by name; with the cells themselves as facts where the function object is known."""
        if not code.co_freevars:
            return {}
        function = self.functions.get(id(code))
        if function is None:
            if id(code) in self._nested:
                # Made by this run: its cells are locals of a function that is recorded too. Of a module that was
                # imported there, it is here that the functions are seen which are called.
                held = {name: frame.f_locals.get(name, MISSING) for name in code.co_freevars}
                return {name: value for name, value in held.items() if isinstance(value, ModuleType)}
            return {name: frame.f_locals.get(name, MISSING) for name in code.co_freevars}
        values: dict[str, Any] = {}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if (id(cell), None) in self.state:
                continue
            values[name] = cell_contents(cell)
            site = Site(code, 0)
            self.fact("cell", cell, name, values[name], site, name)
        return values

    def follow_late(self) -> None:
        """Read on where a module, or a name in one, was not there yet when the code that uses it was entered."""
        self._late = True
        self._named.follow_late(self)

    def enter_note(self, error: BaseException, frame: FrameType) -> None:
        """`error.add_note(text)` is about to read and change an attribute, which no hook sees."""
        if id(error) in self.rooted:
            self.widen(error, site_of(frame))

    # ---------------------------------------------------------------- the end of the run

    def _name_at(self, parent: int, label: str) -> str:
        return as_written(self.name(parent) + label if parent in self.rooted else label)

    def finish(self) -> tuple[list[Read], list[Change], list[Change]]:
        """What must hold again, what is different now, and what of the arguments is, where it can be put back."""
        # To hold a lock is no effect, and most are held by objects that the run only passes by.
        takers = [code for code, _ in self.executed.values() if may_take_locks(code)]
        for lock, site, is_named in self._locks if takers else ():
            if is_named and self._left_alone(site):
                continue
            self.refusals.append((LOCKS, self.name(id(lock)), site or Site(takers[0], 0)))
        for place, loaded in self._loaded:
            if not self._left_alone(place):
                self.fact("loaded", sys.modules, None, loaded, place, "sys.modules")
        self.annotations.finish(self)
        self._holders.clear()  # with all that their frames hold
        for generator, state, site in self._generators:
            if generator is not PYTHONS and generator.getstate() != state:
                self.refusals.append((DRAWS, self.name(id(generator)), site))
        self._hold_results()
        given = {id(place.space) for place in self.state.values() if place.key is GRAD_SLOT}
        unseen = {*self.passed, *given}
        gradients = [Outer(*found) for found in (() if self.heap is None else self._tensors.new_gradients(unseen))]
        put = {id(outer.place.space) for outer in gradients}
        of_tensors = self._tensors.facts(self._names, self.passed, self.name, put, given)
        for fact in (*of_tensors, *self._loggers.facts(self._names)):
            self.facts.setdefault((fact.kind, id(fact.owner), fact.key), fact)
        for text, site in self._tensors.attributes_of(self._names, self.passed):
            self.refusals.append(("reads an attribute of an argument that is not a field", text, site))
        are_put = {(number, "grad") for number in (*put, *given)}
        tensor_changes = [change for change in self._tensors.changes() if change.spot not in are_put]
        changes = [*changes_of(self), *tensor_changes]
        if self.heap is None:
            return facts_of(self), changes, []
        self.heap.close(self._met_outside)
        self.heap.known = self.rooted
        self.opened = self.heap.opened
        only_written = outer_writes(self)
        self.outer = {(id(outer.place.owner), outer.place.key) for outer in only_written}
        self.heap.outer = [*only_written, *changed_state(self), *gradients]
        kept = [*changes_of(self), *tensor_changes] if self.opened or self.outer else changes
        kept.extend(broken_state(self))
        if kept:
            self.new_state, without = state_places(self, kept)
            kept.sort(key=lambda change: change.spot != without)  # what no state holds is the reason that is told
        spots = {change.spot for change in kept}
        put_back = [change for change in changes if change.spot not in spots]
        put_back.extend(self._filled(self.heap))
        return facts_of(self), kept, put_back

    def let_go(self) -> None:
        """Forget the tensors as they were: facts, which name things by this, outlive the run; gradients need not."""
        self._tensors.forget()
        self.heap = None

    def _hold_results(self) -> None:
        """What functions gave out of a cache: that it still gives the same is a fact, whatever was computed for it."""
        for cache, key, result, site in self.fills.used():
            label, table = f"{self.name(id(cache))}(...)", table_of(cache) or {}
            self.fact("item", table, key, table[key], site, label)
            self._reach_result(result, cache, site)
            if "cache_info" in self._names:
                self.refusals.append(("reads how often a cache was used", self.name(id(cache)), site))

    def _filled(self, heap: ArgumentHeap) -> Iterator[Change]:
        """What the run put in caches, as changes where it cannot be state of the graph."""
        for fill in self.fills.found(self.rooted):
            heap.filled.extend(fill.tensors)
            if fill.key is None:
                held = cached_tensors(fill.owner)
                self.facts["cached", id(fill.owner), None] = Read(
                    "cached", fill.owner, None, held, fill.site, None, fill.owner, self.name
                )
            name = self.name(fill.holder) + (f".{fill.key}" if fill.key else "")
            yield Change((id(fill.owner), fill.key), name, MISSING, fill.tensors, fill.site)
