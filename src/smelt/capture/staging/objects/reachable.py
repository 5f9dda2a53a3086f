"""What can be reached from some roots: the containers, with shallow copies of what they hold, and what leads to them.

Invariant: nothing of the user's is called.
"""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable
from typing import Any

import torch

from smelt._torch.annotations import annotations_held
from smelt._torch.library.lru import LRU_CACHE, table_of
from smelt._torch.seen.staged_fakes import attributes
from smelt.capture.reads.reads_arguments import slots_of
from smelt.capture.reads.reads_values import HOOKED, home_of
from smelt.capture.staging.fakes.symbols import StagedObject
from smelt.capture.staging.objects.containers import MISSING, contents, has_slots_only
from smelt.capture.staging.objects.hidden import CLASSES, CODES, FUNCTIONS, OBJECTS, Fields, is_keeper
from smelt.capture.structure.roots import is_skipped_class, is_skipped_function, is_skipped_module, names_in

_ATOMS = (
    int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.Size, torch.Generator, torch.SymInt, torch.SymFloat, torch.SymBool,
    types.CodeType, range, slice, types.FrameType, types.TracebackType,
)  # fmt: skip
# Most of what is met, told without asking each class of the above.
_OFTEN_ATOMS = frozenset(_ATOMS)
_EMPTY: tuple[object, ...] = (
    iter([]), reversed([]), {}.keys(), {}.values(), {}.items(), iter({}), iter({}.values()), iter({}.items()),
    enumerate(()), zip(), map(len, ()), filter(None, ()), iter(()), types.MappingProxyType({}), itertools.chain(),
    itertools.islice((), 0), itertools.cycle(()),
)  # fmt: skip
# What goes over a container, or shows it, and so holds it.
_OVER = frozenset(map(type, _EMPTY))
_OFTEN_NOT = frozenset((dict, list, tuple, set, frozenset, deque, types.FunctionType, types.MethodType, types.CellType))


def _is_of_the_log(value: object) -> bool:
    """Whether it notes what the program reads: no state of the program's, though the classes it watches refer to it."""
    owner = value if isinstance(value, types.FunctionType) else type(value)
    return str(getattr(owner, "__module__", "")).startswith("smelt.capture.reads.reads")


@functools.lru_cache(maxsize=4096)
def _is_installed(name: str | None) -> bool:
    """Whether a module is an installed library's: what its own globals hold is not followed, there is too much."""
    file = getattr(sys.modules.get(name or ""), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def is_own_module(module: types.ModuleType) -> bool:
    """Whether a module is no library's."""
    name = str(module.__name__)
    is_pythons = name.partition(".")[0] in sys.stdlib_module_names and name != "__main__"
    return not (is_pythons or is_skipped_module(name) or _is_installed(name))


@functools.lru_cache(maxsize=4096)
def _texts_in(code: types.CodeType) -> frozenset[str]:
    """The texts in a code object, and those inside it: what converted code asks an object for is one."""
    found = {constant for constant in code.co_consts if type(constant) is str}
    inner = (_texts_in(constant) for constant in code.co_consts if type(constant) is types.CodeType)
    return frozenset(found.union(*inner))


def _has_attributes(value: object) -> bool:
    """Whether this is a number or text of a class of the program's own, which may have attributes."""
    return isinstance(value, (int, float, complex, str, bytes)) and type(value).__dictoffset__ != 0


class Walk:
    """copies: by id, the containers and what they hold. parents: by id, what holds a list or a dictionary.

    What else leads on, and may lead elsewhere later, is noted, so that one can tell whether it still leads there:
    objects: those with attributes, their class and their own dictionary. slots: what stands in them, by name.
    hidden: those that hold something outside of any container.
    functions: by id of their globals. classes: those that are not a library's. caches: of functions. seen: ids of all
    that was come to, keep: these themselves.

    modules: by id of their globals, those that are no library's; names: those in code, by which it may come to what
    these hold.

    known: ids of what needs no visit, it was seen by another walk, as were the containers `copied`, and the names.
    """

    def __init__(
        self,
        without: set[int],
        hidden: bool = False,
        known: Collection[int] = (),
        copied: Collection[int] = (),
        names: Iterable[str] = (),
    ) -> None:
        self._hidden = hidden
        self.copies: dict[int, tuple[Any, Any]] = {}
        self.parents: dict[int, list[object]] = {}
        self.caches: list[object] = []
        self.hidden: list[object] = []
        self.iterators: dict[int, object] = {}
        self.objects: list[tuple[object, type, dict[str, object] | None]] = []
        self.slots: list[tuple[object, str, object]] = []
        self.functions: dict[int, list[types.FunctionType]] = {}
        self.classes: list[type] = []
        self.modules: dict[int, types.ModuleType] = {}
        self.names: set[str] = set(names)
        self.seen: set[int] = set(known)
        self.keep: list[object] = []
        self._copied = copied
        self._without = without
        self._stack: list[object] = []

    def run(self, roots: Iterable[object], again: Iterable[object] = ()) -> None:
        """Go to all that the roots lead to. again: what is visited though it was seen."""
        self._stack.extend(again)
        for root in roots:
            self._add(root)
        gone_to = (0, 0)
        while self._stack or gone_to != (len(self.modules), len(self.names)):
            while self._stack:
                self._visit(self._stack.pop())
            gone_to = len(self.modules), len(self.names)
            for space in map(vars, self.modules.values()):
                for item in [item for name, item in space.items() if name in self.names]:
                    self._held(item, space)

    def _add(self, value: Any) -> None:
        kind = type(value)
        if kind is types.BuiltinFunctionType:
            if isinstance(value.__self__, (list, dict)):
                self._held(value.__self__, value)  # a method that is bound to it
            return
        if kind in _OFTEN_ATOMS or id(value) in self.seen or id(value) in self._without:
            return
        if kind not in _OFTEN_NOT and isinstance(value, _ATOMS) and not _has_attributes(value):
            return
        self.seen.add(id(value))
        self.keep.append(value)
        self._stack.append(value)

    def _copy(self, container: object, copy: object = None) -> None:
        key = id(container)
        if key not in self.copies and key not in self._without and key not in self._copied:
            self.copies[key] = (container, contents(container) if copy is None else copy)

    def _visit(self, value: Any) -> None:
        kind = type(value)
        if kind is dict or kind is OrderedDict or kind is list:
            items = OrderedDict.items if kind is OrderedDict else dict.items  # in the order that it shows
            copy: Any = list(value) if kind is list else dict(items(value))
            self._copy(value, copy)
            for item in copy if kind is list else copy.values():
                if type(item) not in _OFTEN_ATOMS:
                    self._held(item, value)
            if kind is OrderedDict:
                self.objects.append((value, kind, value.__dict__))
                self._add(value.__dict__)
            return
        if kind is tuple:
            for item in value:
                self._held(item, value)
            return
        if isinstance(value, torch.Tensor):
            self._copy(value)
            for item in attributes(value).values():
                self._held(item, value)
            return
        if kind is types.ModuleType:
            if is_own_module(value) and id(vars(value)) not in self._without:
                self._copy(vars(value))
                self.modules[id(vars(value))] = value
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
            self._held(value.__self__, value)
            self._add(value.__func__)
        elif isinstance(value, functools.partial):
            for item in (value.func, value.args, value.keywords):
                self._held(item, value)
        elif isinstance(value, StagedObject):
            self._copy(value)
        elif isinstance(value, types.CellType):
            self._copy(value)
            held = contents(value)
            if held is not MISSING:
                self._held(held, value)
        elif isinstance(value, LRU_CACHE):
            self.caches.append(value)
            for item in (table_of(value) or {}).values():
                if isinstance(item, (list, dict)):
                    self.parents.setdefault(id(item), []).append(value)
        elif isinstance(value, BaseException):
            self._add(value.args)
        elif kind in _OVER:
            for item in gc.get_referents(value):
                self._held(item, value)
        elif isinstance(value, (staticmethod, classmethod)):
            self._add(value.__func__)
        elif isinstance(value, property):
            for function in (value.fget, value.fset):
                self._add(function)
        elif isinstance(value, type):
            self._class(value)
        if not is_of_the_log and not isinstance(value, (type, StagedObject)):
            self._attributes(value)

    def _held(self, item: object, holder: object) -> None:
        if isinstance(item, (list, dict)):
            self.parents.setdefault(id(item), []).append(holder)
        self._add(item)

    def _function(self, function: types.FunctionType) -> None:
        for cell in function.__closure__ or ():
            self._add(cell)
        for item in (function.__defaults__, function.__kwdefaults__):
            if item:
                self._add(item)
        if (annotations := annotations_held(function)) is not MISSING:
            self._copy(annotations)
        names, namespace = names_in(function.__code__), function.__globals__
        self.functions.setdefault(id(namespace), []).append(function)
        if is_skipped_function(function) or _is_installed(function.__module__):
            return
        self.hidden.append(function)
        self.names.update(names, _texts_in(function.__code__))
        if not names:
            return
        self._copy(namespace)
        for name in names:
            if name in namespace:
                self._held(namespace[name], namespace)

    def _class(self, cls: type) -> None:
        for base in cls.__mro__:
            if not (is_skipped_class(base) or _is_installed(home_of(base))):
                self._copy(base)
                if base is cls:
                    self.classes.append(cls)
                    self.objects.append((cls, type(cls), None))
                for item in list(vars(base).values()):
                    self._held(item, base)

    def _attributes(self, value: object) -> None:
        cls = type(value)
        if cls in (dict, list, tuple, set, frozenset, deque):
            return
        if is_keeper(value):
            self.hidden.append(value)
        if self._hidden and hasattr(cls, "__next__"):
            self.iterators[id(value)] = value
        try:
            state = object.__getattribute__(value, "__dict__")
        except AttributeError:
            state = None
        if isinstance(state, dict):
            self._add(state)
        else:
            state = None
        self.objects.append((value, cls, state))
        if not is_skipped_class(cls):
            self._add(cls)
            names = slots_of(cls)
            if names and has_slots_only(value):
                self._copy(value)
            for name, _ in names:
                held = slot_in(value, name)
                self.slots.append((value, name, held))
                self._held(held, value)


def slot_in(value: object, name: str) -> object:
    """What stands in an object's slot; None where nothing does."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None


def fields_of(walk: Walk, codes: bool = True) -> list[Fields]:
    """What the objects, functions and classes of a walk hold in fields. codes: with the code of functions."""
    functions = [function for found in walk.functions.values() for function in found]
    found = [
        Fields([value for value, _, _ in walk.objects], OBJECTS),
        Fields(functions, FUNCTIONS),
        Fields(walk.classes, CLASSES),
    ]
    return [*found, Fields(functions, CODES)] if codes else found
