"""The tensors that a program could reach before it ran: parameters, buffers, attributes, closures, globals.

A tensor that turns up in an operator and was neither an argument, nor reachable before the run, nor recorded came from
somewhere unseen (another thread, a C extension) and must not be taken for a constant; this walk draws that line.
It follows objects, containers, closures, defaults, caches of functions, and of globals and class attributes those whose
names stand in the code of the functions it met.

Invariant: the walk changes nothing and calls no code of the user's (no properties, no `__getattr__`, no `__repr__`).
Two places never have one name (`PlaceNames`).
"""

from __future__ import annotations

import functools
import gc
import logging
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

import torch

from smelt._torch.exact import contents
from smelt._torch.library.lru import LRU_CACHE, cached_tensors, still_cached
from smelt._torch.seen.labels import key_labels
from smelt._torch.seen.leaves import gradient
from smelt.capture.reads.reads_effects import file_kind
from smelt.capture.reads.reads_values import ASIDE, COMPILED_TARGET, VIEWS, home_of, owner_kind
from smelt.diag.records import distinct_record, record

# What runs tests, whose asserts name it in the program's own code. It holds every test of the process and all that
# those name, and nothing of the program's; `pytest` itself, on which people keep globals, is a module like any other.
_RUNNERS = frozenset(("_pytest", "pluggy"))
_SKIPPED_ROOTS = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "smelt", "builtins"} | _RUNNERS
_SCALARS = (
    int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.Size, torch.Generator, types.BuiltinFunctionType, types.CodeType,
)  # fmt: skip
# Knows all loggers of the process, as `sys.modules` knows all modules; those that a program names are found by it.
_REGISTRIES = (logging.Manager,)


@distinct_record
class Step:
    """One step from the program to what it holds: `value` stands at a place of `owner`, which `before` leads to."""

    owner: Any
    key: Any
    value: Any
    before: Step | None

    def holds(self) -> bool:
        """Whether this step, and all before it, still lead to the same."""
        step: Step | None = self
        while step is not None:
            if _stands_at(step.owner, step.key) is not step.value:
                return False
            step = step.before
        return True


@record
class StateTensor:
    """A tensor outside the arguments, and where it can be read again.

    kind: "param", "buffer" or "captured". path: dotted, from the program; aliases: other paths of the same tensor.
    owner, key: the container, cell or object that holds it (`owner[key]`, or an attribute or cell). way: how the
    program comes there; None where nothing on the way can be replaced but modules in modules.
    """

    kind: str
    path: str
    tensor: torch.Tensor
    owner: Any
    key: Any
    aliases: tuple[str, ...] = ()
    way: Step | None = None

    def current(self) -> torch.Tensor:
        """The tensor that stands at the place now. Raises: KeyError, AttributeError, ... where the place is gone."""
        found = _held_at(self.owner, self.key)
        if not isinstance(found, torch.Tensor):
            raise LookupError(f"{self.path} holds no tensor any more")
        return found


@record
class ModulePlace:
    """A module that something else than a module's registry holds, and where; owner None: it is itself the place.

    way: as of a `StateTensor`.
    """

    owner: Any
    key: Any
    module: torch.nn.Module
    way: Step | None = None

    def current(self) -> object:
        """What stands at the place now; None where it is gone."""
        if self.way is not None and not self.way.holds():
            return None
        return self.module if self.owner is None else _stands_at(self.owner, self.key)


def _stands_at(owner: object, key: object) -> object:
    """What stands at a place now; None where it is gone."""
    try:
        return _held_at(owner, key)
    except (LookupError, AttributeError, ValueError):
        return None


def _held_at(owner: Any, key: Any) -> object:
    if isinstance(owner, types.CellType):
        return owner.cell_contents
    if isinstance(owner, (dict, list, tuple, deque, types.MappingProxyType)):
        return owner[key]
    return getattr(owner, key)


class PlaceNames:
    """Whose each name is. Paths leave out what people leave out (of whose closure a variable is, of which file a
    global), so two places may come by the same one: the second is `name#2`, in the order of the walk.
    """

    __slots__ = ("_holders",)

    def __init__(self) -> None:
        self._holders: dict[str, int] = {}

    def claim(self, path: str, value: object) -> str:
        """The name under which a tensor or module is known at a path; the same one whenever it is asked for."""
        holders, mine = self._holders, id(value)
        if holders.setdefault(path, mine) == mine:
            return path
        number = 2
        while holders.setdefault(name := f"{path}#{number}", mine) != mine:
            number += 1
        return name


class _Member:
    """The place of a tensor or module among what has no names: the items of a set, the keys of a dictionary."""

    __slots__ = ("_members", "_tensor")

    def __init__(self, members: Any, tensor: Any) -> None:
        self._members, self._tensor = members, tensor

    @property
    def tensor(self) -> Any:
        return self._tensor if any(item is self._tensor for item in contents(self._members)) else None


class _Referent:
    """The place of what a weak reference leads to."""

    __slots__ = ("_reference",)

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    @property
    def tensor(self) -> Any:
        return self._reference()


class _Cached:
    """The place of a tensor in a `functools.lru_cache`."""

    __slots__ = ("_cache", "_tensor")

    def __init__(self, cache: Any, tensor: torch.Tensor) -> None:
        self._cache, self._tensor = cache, tensor

    @property
    def tensor(self) -> torch.Tensor | None:
        return self._tensor if still_cached(self._cache, (self._tensor,)) else None


class Entry:
    """A tensor found by the walk; `StateTensor` says what the fields are."""

    __slots__ = ("aliases", "key", "kind", "owner", "path", "tensor", "way")

    def __init__(
        self, kind: str, path: str, tensor: torch.Tensor, owner: Any, key: Any, way: Step | None = None
    ) -> None:
        self.kind = kind
        self.path = path
        self.tensor = tensor
        self.owner = owner
        self.key = key
        self.way = way
        self.aliases: list[str] = []

    def freeze(self) -> StateTensor:
        """The same as frozen data."""
        return StateTensor(self.kind, self.path, self.tensor, self.owner, self.key, tuple(self.aliases), self.way)


class _Walk:
    """One walk; `tensors` maps a tensor's id to its first place, `modules` a module's id to its path."""

    def __init__(self) -> None:
        self.tensors: dict[int, Entry] = {}
        self.modules: dict[int, str] = {}
        self.place_names = PlaceNames()
        self.module_list: list[torch.nn.Module] = []
        self.module_places: list[ModulePlace] = []
        self.functions: list[types.FunctionType] = []
        self.fillers: set[int] = set()
        self._queue: deque[tuple[object, str, Step | None]] = deque()
        self._way: Step | None = None  # to what is looked into
        self._seen: set[int] = set()
        self._names: set[str] = set()
        self._texts: set[str] = set()  # by which code may ask for something
        self._held_modules: dict[int, tuple[types.ModuleType, str]] = {}
        self._module_done: set[tuple[int, str]] = set()
        self._classes: list[tuple[type, str]] = []
        self._known_classes: set[int] = set()
        self._class_done: set[tuple[int, str]] = set()

    def add(self, value: object, path: str, owner: object, key: object, kind: str = "captured") -> None:
        """Note a tensor, or put anything else that may hold tensors on the queue."""
        cls = type(value)
        if cls in _LEAVES or (cls in _CONTAINERS and not value):
            return
        if cls is torch.nn.Parameter or isinstance(value, torch.Tensor):
            entry, path = self.tensors.get(id(value)), self.place_names.claim(path, value)
            if entry is None:
                self.tensors[id(value)] = Entry(kind, path, value, owner, key, self._way)
                if (held := gradient(value)) is not None:
                    self.add(held, f"{path}.grad", value, "grad")
            elif path != entry.path:
                entry.aliases.append(path)
            return
        if isinstance(value, torch.nn.Module):
            self.module_places.append(ModulePlace(owner, key, value, self._way))
        if id(value) not in self._seen:
            self._seen.add(id(value))
            self._queue.append((value, path, self._way if owner is None else Step(owner, key, value, self._way)))

    def run(self) -> None:
        """Follow everything on the queue, then what code names of classes and of modules that something else than
        globals holds, until nothing is new."""
        while True:
            while self._queue:
                value, path, self._way = self._queue.popleft()
                self._visit(value, path)
            self._way = None
            if not self._class_attributes() and not self._module_attributes():
                return

    def _visit(self, value: object, path: str) -> None:
        if isinstance(value, torch.nn.Module):
            self._module(value, path)
        elif isinstance(value, (dict, list, tuple, set, frozenset, deque)):
            self._container(value, path)
        elif hasattr(type(value), COMPILED_TARGET):  # what a compiled function keeps of its calls is not the program's
            self.add(getattr(value, COMPILED_TARGET), path, None, None)
            self.add(vars(value), path, None, None)
        elif isinstance(value, types.FunctionType):
            self._function(value, path)
        elif isinstance(value, types.MethodType):
            self.add(value.__self__, path, value, "__self__")
            self.add(value.__func__, path, None, None)
        elif isinstance(value, functools.partial):
            self.add(value.func, _join(path, "partial0"), value, "func")
            places: list[tuple[Any, Any]] = [(value.args, i) for i in range(len(value.args))]
            places.extend((value.keywords, name) for name in value.keywords)
            for i, (owner, key) in enumerate(places, 1):
                self.add(owner[key], _join(path, f"partial{i}"), owner, key)
        elif isinstance(value, VIEWS):
            for mapping in gc.get_referents(value):
                self.add(mapping, path, None, None)
        elif isinstance(value, weakref.ReferenceType):
            self.add(value(), f"{path}()", _Referent(value), "tensor")
        elif isinstance(value, (staticmethod, classmethod)):
            self.add(value.__func__, path, None, None)
        elif isinstance(value, property):
            for function in (value.fget, value.fset):
                self.add(function, path, None, None)
        elif isinstance(value, type):
            self._class(value, path)
        elif isinstance(value, LRU_CACHE):
            self.fillers.add(id(getattr(getattr(value, "__wrapped__", None), "__code__", None)))
            for i, item in enumerate(cached_tensors(value)):
                self.add(item, f"{path}.cache[{i}]", _Cached(value, item), "tensor")
            self._object(value, path)
        elif isinstance(value, types.ModuleType):
            self._hold_module(value, path)
        elif not _runs_tests(home_of(type(value))):
            self._object(value, path)

    def _module(self, module: torch.nn.Module, path: str) -> None:
        self.modules[id(module)] = path = self.place_names.claim(path, module)
        self.module_list.append(module)
        state = vars(module)
        for kind, table in (("param", state.get("_parameters")), ("buffer", state.get("_buffers"))):
            for name, tensor in (table or {}).items():
                if tensor is not None:
                    self.add(tensor, _join(path, name), table, name, kind)
        for name, child in (state.get("_modules") or {}).items():
            # At once, because a tied tensor has the name that comes first in the order of named_parameters().
            if child is not None and id(child) not in self._seen:
                self._seen.add(id(child))
                self._visit(child, _join(path, name))
        for name, item in state.items():
            # Most of it is empty tables of hooks: the same test as in `add`, before a path is made for it.
            cls = type(item)
            if cls not in _LEAVES and (cls not in _CONTAINERS or item) and name not in _TABLES:
                self.add(item, _join(path, name), state, name)
        self._class(type(module), path)

    def _container(self, value: object, path: str) -> None:
        # Past methods of a class of the user's: tables of `transformers` import a module for each item.
        held = contents(value)
        if isinstance(value, dict):
            for label, (key, item) in zip(key_labels(held), held.items(), strict=True):
                self.add(item, path + label, value, key)
                self.add(key, f"{path}.keys{label}", _Member(value, key), "tensor")
        else:
            is_set = isinstance(value, (set, frozenset))
            for i, item in enumerate(held):
                self.add(item, f"{path}[{i}]", *((_Member(value, item), "tensor") if is_set else (value, i)))
        if type(value) not in (dict, list, tuple, set, frozenset, deque):
            self._object(value, path)

    def _object(self, value: object, path: str) -> None:
        cls = type(value)
        try:
            # Past a __getattribute__ of the user's.
            state = object.__getattribute__(value, "__dict__")
        except AttributeError:
            state = None
        if isinstance(state, dict):
            aside = getattr(cls, ASIDE, ()) if home_of(cls).startswith("smelt.") else ()
            for name, item in list(state.items()):
                if type(item) not in _LEAVES and name not in aside:
                    self.add(item, _join(path, str(name)), state, name)
        for base in cls.__mro__:
            slots = base.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                member = base.__dict__.get(name)
                if isinstance(member, types.MemberDescriptorType):
                    self._slot(value, name, member, path)
        self._class(cls, path)

    def _slot(self, value: object, name: str, member: types.MemberDescriptorType, path: str) -> None:
        try:
            self.add(member.__get__(value), _join(path, name), value, name)
        except AttributeError:
            return  # a slot that holds nothing

    def _function(self, function: types.FunctionType, path: str) -> None:
        self.functions.append(function)
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                self.add(cell.cell_contents, _join(_outer(path), name), cell, None)
            except ValueError:
                continue  # a cell that is not filled yet
        for i, default in enumerate(function.__defaults__ or ()):
            self.add(default, _join(path, f"__defaults__[{i}]"), function.__defaults__, i)
        for name, default in (function.__kwdefaults__ or {}).items():
            self.add(default, _join(path, f"__kwdefaults__[{name!r}]"), function.__kwdefaults__, name)
        for name, item in vars(function).items():
            self.add(item, _join(path, name), vars(function), name)
        if is_skipped_function(function):
            return
        names, texts = names_in(code), texts_in(code)
        self._names.update(names)
        self._texts.update(texts)
        self._globals(function.__globals__, names, "")
        for name in (*(name for name in names if name not in function.__globals__), *texts):
            if isinstance(module := sys.modules.get(name), types.ModuleType):  # as `import` finds it
                self._hold_module(module, name)

    def _hold_module(self, module: types.ModuleType, path: str) -> None:
        if not is_skipped_module(module.__name__):
            self._held_modules.setdefault(id(module), (module, path))

    def _globals(self, namespace: dict[str, object], names: Iterable[str], prefix: str, depth: int = 0) -> None:
        for name in names:
            if name not in namespace:
                continue
            value = namespace[name]
            if isinstance(value, types.ModuleType):
                self._hold_module(value, _join(prefix, name))  # who is given it may ask for other names
                if depth < 4 and not is_skipped_module(value.__name__):
                    self._globals(vars(value), names, _join(prefix, name), depth + 1)
            else:
                self.add(value, _join(prefix, name), namespace, name)

    def _class(self, cls: type, path: str) -> None:
        for base in cls.__mro__:
            # Not `_seen`: a class that a global or a container holds is there before it comes here.
            if not is_skipped_class(base) and id(base) not in self._known_classes:
                self._known_classes.add(id(base))
                self._classes.append((base, base.__qualname__))

    def _class_attributes(self) -> bool:
        """Queue the class attributes whose names code has used by now; whether there were any."""
        for cls, path in self._classes:
            table = vars(cls)
            for name in [n for n in table if n in self._names or n in _ENTRY_METHODS]:
                if (id(cls), name) not in self._class_done:
                    self._class_done.add((id(cls), name))
                    self.add(table[name], _join(path, name), table, name)
        return bool(self._queue)

    def _module_attributes(self) -> bool:
        """The same for modules that a global, a closure, a container or an object holds, or that a function imports."""
        for module, path in list(self._held_modules.values()):
            space = vars(module)
            for name in [n for n in space if n in self._names or n in self._texts]:
                if (id(module), name) not in self._module_done:
                    self._module_done.add((id(module), name))
                    self.add(space[name], _join(path, name), space, name)
        return bool(self._queue)


_LEAVES = frozenset((*_SCALARS, *_REGISTRIES))
_TABLES = frozenset(("_parameters", "_buffers", "_modules"))
_CONTAINERS = frozenset((dict, list, tuple, set, frozenset, deque, OrderedDict))
_ENTRY_METHODS = frozenset(("__call__", "forward", "__getattr__", "__getitem__", "__len__", "__iter__", "__contains__"))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _outer(path: str) -> str:
    return path.rpartition(".")[0]


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> dict[str, None]:
    """The global and attribute names that a code object and the functions defined in it mention, in their order: the
    same one in each process, so that a place has the same name there."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_in(constant)
    return names


@functools.lru_cache(maxsize=4096)
def texts_in(code: types.CodeType) -> dict[str, None]:
    """The texts in a code object, and in the functions defined in it, that could be names."""
    texts: dict[str, None] = {}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            texts |= texts_in(constant)
        elif type(constant) is str and all(map(str.isidentifier, constant.split("."))):
            texts[constant] = None
    return texts


@functools.lru_cache(maxsize=4096)
def is_skipped_module(module_name: str | None) -> bool:
    """Whether a module is one of those whose globals are not followed."""
    return (module_name or "builtins").partition(".")[0] in _SKIPPED_ROOTS


def is_skipped_function(function: types.FunctionType) -> bool:
    """Whether a function is a library's whose globals are not followed. One made in a namespace without a name has the
    name of no module, or of `builtins`."""
    if function.__module__ in (None, "builtins"):
        return file_kind(function.__code__.co_filename) != "user"
    return is_skipped_module(function.__module__)


def _is_skipped_class(cls: type) -> bool:
    """Whether a class is a library's, whose own attributes are not followed."""
    home = home_of(cls)
    return owner_kind(cls) != "user" if home in ("", "builtins") else is_skipped_module(home)


is_skipped_class: Callable[[type], bool] = functools.lru_cache(maxsize=4096)(_is_skipped_class)


@functools.lru_cache(maxsize=4096)
def _runs_tests(module_name: str | None) -> bool:
    return (module_name or "builtins").partition(".")[0] in _RUNNERS


@record
class Roots:
    """What a program could reach before it ran: tensors by id, the paths of its modules by id, functions, the ids of
    the code of those whose results are cached, and the places of modules that are no other module's members.
    """

    entries: dict[int, Entry]
    modules: Mapping[int, str]
    module_list: tuple[torch.nn.Module, ...] = ()
    functions: tuple[types.FunctionType, ...] = ()
    fillers: frozenset[int] = frozenset()
    module_places: tuple[ModulePlace, ...] = ()
    place_names: PlaceNames = field(default_factory=PlaceNames)

    def __iter__(self) -> Iterator[StateTensor]:
        return (entry.freeze() for entry in self.entries.values())


def without_gradients(roots: Roots) -> Roots:
    """The same without `.grad` of tensors: what outlives a run must not keep gradients alive."""
    entries = {number: entry for number, entry in roots.entries.items() if not _is_gradient(entry)}
    return replace(roots, entries=entries)


def _is_gradient(entry: Entry) -> bool:
    return entry.key == "grad" and isinstance(entry.owner, torch.Tensor)


def reachable(fn: Callable[..., Any], opaque: Mapping[str, Any] | None = None) -> Roots:
    """Everything reachable from a program and from arguments that stay whole (modules, callables), by path."""
    walk = _Walk()
    # A module's method shares its module's names, whichever method it is.
    root = fn.__self__ if isinstance(fn, types.MethodType) else fn
    walk.add(root, "", None, None)
    walk.add(fn, "", None, None)
    for path, value in (opaque or {}).items():
        walk.add(value, path, None, None)
    walk.run()
    return Roots(
        walk.tensors, walk.modules, tuple(walk.module_list), tuple(walk.functions), frozenset(walk.fillers),
        tuple(walk.module_places), walk.place_names,
    )  # fmt: skip
