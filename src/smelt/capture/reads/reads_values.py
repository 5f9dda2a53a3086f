"""What kind of thing a value is, to the recorder of reads: nothing to watch, a container to copy, an object to observe.

Invariant: a class's answer never changes, so it is cached; nothing here runs the user's code.
"""

from __future__ import annotations

import array
import builtins
import ctypes
import functools
import logging
import mmap
import numbers
import queue
import re
import sys
import threading
import types
import weakref
from _ctypes import CFuncPtr
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Any, Final, Literal

import torch

from smelt._torch.annotations import NAMES as ANNOTATIONS
from smelt._torch.exact import MISSING
from smelt._torch.seen.record_patches import TRACKS
from smelt.capture.reads.reads_effects import file_kind

Kind = Literal[
    "atom", "function", "method", "partial", "container", "class", "module", "iterator", "random", "array", "instance",
    "hidden", "lock", "bound", "view", "weak", "logger", "opaque",
]  # fmt: skip


_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.Size, torch.Generator, types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
    types.CodeType, type(Ellipsis), type(NotImplemented), slice,
    range, type(MISSING), types.MemberDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip
QUICK_ATOMS: Final = frozenset({*_ATOMS, torch.Tensor, torch.nn.Parameter})
_CONTAINERS = (list, dict, set, frozenset, tuple, deque)
_PLAIN_CONTAINERS = frozenset({*_CONTAINERS, OrderedDict, defaultdict})
# Objects of the standard library are watched as anyone's are, but for those of these modules (and of the ones inside of
# them), which stay as they are made, or are known in another way.
_FIXED_MODULES = frozenset((
    "__future__", "_abc", "_contextvars", "_frozen_importlib", "_frozen_importlib_external", "_io", "_json",
    "_operator", "_pydatetime", "_pydecimal", "_sitebuiltins", "_socket", "_ssl", "_struct", "_thread",
    "_weakref", "abc", "builtins", "codecs", "copyreg", "ctypes", "dataclasses", "datetime", "decimal", "enum",
    "fractions", "functools", "importlib", "inspect", "io", "ipaddress", "logging", "numbers", "operator", "os",
    "pathlib", "re", "tempfile", "threading", "types", "typing", "unicodedata", "uuid", "warnings", "weakref",
    "zipimport", "zoneinfo",
))  # fmt: skip
# Of these modules, the classes whose instances are watched all the same.
_CHANGING = (types.SimpleNamespace, logging.LoggerAdapter, logging.Formatter, logging.Filterer, logging.Filter)
_LOGGING = (logging.Logger, logging.Handler, logging.Manager, logging.PlaceHolder)
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
VIEWS: Final[tuple[type, ...]] = (
    types.MappingProxyType, *(type(getattr(cls(), name)()) for cls in (dict, OrderedDict) for name in (
        "keys", "values", "items",
    )),
)  # fmt: skip
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
# State kept out of sight of attribute access and of copies.
_HIDDEN = (
    threading.local, threading.Semaphore, threading.Event, threading.Condition, threading.Barrier, threading.Thread,
    queue.Queue, queue.SimpleQueue, array.array, bytearray, memoryview, mmap.mmap,
    *weakref.ProxyTypes, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet,
    ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array, ctypes.CDLL, CFuncPtr,
)  # fmt: skip
_HIDDEN_MODULES = (
    "multiprocessing.queues",
    "multiprocessing.synchronize",
    "multiprocessing.sharedctypes",
    "multiprocessing.shared_memory",
    "multiprocessing.managers",
    "multiprocessing.connection",
    "concurrent.futures",
    "asyncio",
    "sqlite3",
    "shelve",
    "dbm",
)
_FIELDS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8  # Py_TPFLAGS_HEAPTYPE: as a class statement makes them; Py_TPFLAGS_IMMUTABLETYPE
_BY_STATEMENT = frozenset(("__dict__", "__weakref__", "__slots__"))
_TORCH_OPAQUE = (
    "torch._",
    "torch.autograd",
    "torch.storage",
    "torch.jit",
    "torch.overrides",
    "torch.utils._",
    "torch.types",
)


@lru_cache(maxsize=4096)
def module_kind(name: str) -> str:
    """Whose module this is, by its file: as `file_kind`; modules without a file are "stdlib"."""
    if name.split(".")[0] in sys.stdlib_module_names:
        return "stdlib" if name != "__main__" else "user"
    file = getattr(sys.modules.get(name), "__file__", None)
    return file_kind(file) if isinstance(file, str) else "user"


def _kind_of(cls: type) -> Kind:
    """What to do with values of this class."""
    if cls in _ATOMS or issubclass(cls, (torch.Tensor, Enum, numbers.Number)):
        return "atom"
    if issubclass(cls, BaseException):
        return _instance_kind(cls) if owner_kind(cls) == "user" else "atom"
    if issubclass(cls, types.FunctionType):
        return "function"
    if cls is types.MethodType:
        return "method"
    if issubclass(cls, (functools.partial, functools.partialmethod, staticmethod, classmethod, property)):
        return "partial"
    if cls is functools._lru_cache_wrapper:
        return "partial"
    if issubclass(cls, type):
        return "class"
    if issubclass(cls, types.ModuleType):
        return "module"
    if cls in _LOCKS:
        return "lock"
    if issubclass(cls, weakref.ReferenceType):
        return "weak"
    if cls in _BOUND:
        return "bound"
    if cls in VIEWS:
        return "view"
    if issubclass(cls, _HIDDEN) or home_of(cls).startswith(_HIDDEN_MODULES):
        return "hidden"
    if any(base.__name__ == "ndarray" and home_of(base) == "numpy" for base in cls.__mro__):
        return "array"
    if home_of(cls).startswith("numpy"):
        return "random" if home_of(cls).startswith("numpy.random") else "opaque"
    if home_of(cls) == "random":
        return "random"
    if issubclass(cls, _CONTAINERS):
        return "container"
    if hasattr(cls, "__next__"):
        return "iterator"
    return _instance_kind(cls)


def _instance_kind(cls: type) -> Kind:
    home = home_of(cls)
    if issubclass(cls, _LOGGING) and module_kind(home) == "stdlib":
        return "logger"
    if issubclass(cls, (*_CHANGING, torch.nn.Module)):
        return "instance"
    if home.startswith("smelt."):
        return "opaque"
    is_torch = home.split(".")[0] == "torch"
    if is_torch and home.startswith(_TORCH_OPAQUE):
        return "opaque"
    if not is_torch and owner_kind(cls) == "stdlib":
        if home.split(".")[0] in _FIXED_MODULES:
            return "opaque"
        return "instance" if _is_made_in_python(cls) else "hidden"
    return "instance" if cls.__flags__ & _HEAP else "opaque"


def home_of(cls: type) -> str:
    """The name of the module that a class says it is of; "" where it names none, as one of a nameless namespace."""
    home = getattr(cls, "__module__", "")
    return home if isinstance(home, str) else ""


def owner_kind(cls: type) -> str:
    """Whose class this is, as `module_kind`. In a namespace without a name, classes are made that have the name of
    `builtins`, or none: they are the user's."""
    home = home_of(cls)
    if home in ("", "builtins"):
        is_made = cls.__flags__ & _HEAP and not cls.__flags__ & _IMMUTABLE
        return "user" if is_made and getattr(builtins, cls.__name__, None) is not cls else "stdlib"
    return module_kind(home)


def _is_made_in_python(cls: type) -> bool:
    """Whether a class was made by a class statement: such a one has a dictionary, weak references or slots."""
    made = [base for base in cls.__mro__ if base.__flags__ & _HEAP]
    return bool(cls.__flags__ & _HEAP) and any(not _BY_STATEMENT.isdisjoint(vars(base)) for base in made)


def _is_plain_container(cls: type) -> bool:
    """Whether the class is a builtin container, with no attributes of its own to observe."""
    return cls in _PLAIN_CONTAINERS


_BY_RAISING = ("__traceback__", "__dict__", "__weakref__")


def _fields_of_errors(cls: type) -> dict[str, object]:
    """What errors of a class hold beside attributes (`args`, `__cause__`, `errno`), as descriptors by name; not what
    raising one sets.
    """
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if issubclass(base, BaseException) and not base.__flags__ & _HEAP:
            for name, field in vars(base).items():
                if isinstance(field, _FIELDS) and name not in _BY_RAISING:
                    found.setdefault(name, field)
    return found


def field_of(value: Any, field: Any) -> object:
    """What stands in a field of C's, MISSING where nothing does."""
    try:
        return field.__get__(value)
    except AttributeError:
        return MISSING


# The attribute of a hook (see reads_patch) that holds the method it stands for.
HOOKED: Final = "smelt_original"


def _has_own_lookup(cls: type) -> bool:
    """Whether attributes of instances may come from code of the class (`__getattr__`, `__getattribute__`)."""
    getattr_ = raw_lookup(cls, "__getattr__")
    own_getattr = getattr_ is not MISSING and getattr_ is not torch.nn.Module.__dict__["__getattr__"]
    lookup = raw_lookup(cls, "__getattribute__")
    return own_getattr or getattr(lookup, HOOKED, lookup) is not object.__getattribute__


def raw_lookup(cls: type, name: str) -> object:
    """What the class holds under a name, as stored (no descriptor is called), or MISSING.

    The recorder's own wrappers, there during a run only, count as what they wrap.
    """
    for base in cls.__mro__:
        found = own_attribute(base, name)
        if found is not MISSING:
            return found
    return MISSING


def overrides_instance(stored: object) -> bool:
    """Whether a class attribute wins over the instance's own (a data descriptor, as a property is)."""
    return stored is not MISSING and (hasattr(type(stored), "__set__") or hasattr(type(stored), "__delete__"))


def own_attribute(cls: type, name: str) -> Any:
    """The same for the class's own namespace."""
    found = cls.__dict__.get(name, MISSING)
    return found.__dict__.get(TRACKS, found) if type(found) is types.FunctionType else found


def is_plain_builtin(value: object) -> bool:
    """Whether a builtin function is bound to nothing but its module or class."""
    return type(value) is types.BuiltinFunctionType and isinstance(value.__self__, (type(None), types.ModuleType, type))


def instance_dict(value: object) -> dict[str, Any] | None:
    """The object's own attribute dict, without running the user's code; None if it has none."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def peek(value: object, name: str) -> object:
    """The value of a stored attribute (own dict, a module's registries, a slot), or MISSING; runs no user code."""
    own = instance_dict(value)
    if own is not None:
        if name in own:
            return own[name]
        for registry in REGISTRIES:
            entries = own.get(registry)
            if isinstance(entries, dict) and name in entries and isinstance(value, torch.nn.Module):
                return entries[name]
    slot = raw_lookup(type(value), name)
    if isinstance(slot, types.MemberDescriptorType):
        try:
            return slot.__get__(value)
        except AttributeError:
            return MISSING
    return MISSING


def has_standard_call(cls: type) -> bool:
    """Whether calling instances of this module class is torch's own doing, so that what it reads is known.

    Seen through the wrapper that stands in torch's class while a program is recorded. Asked anew each time: a class of
    torch's may be given another call.
    """
    return raw_lookup(cls, "__call__") is own_attribute(torch.nn.Module, "__call__") and not has_own_lookup(cls)


# What `nn.Module.__call__` reads of the module it calls: tables of hooks, and methods that the instance may shadow.
CALL_HOOKS: Final = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
CALL_METHODS: Final = ("forward", "_call_impl", "_compiled_call_impl")
CALL_PROTOCOL: Final = frozenset({*CALL_HOOKS, *CALL_METHODS})
# The property by which a compiled object shows the original that it stands for.
COMPILED_TARGET: Final = "smelt_target"
# The class attribute by which an object of ours names those of its attributes that hold nothing of the program's.
ASIDE: Final = "smelt_aside"
REGISTRIES: Final = ("_parameters", "_buffers", "_modules")


def is_user_class(cls: type) -> bool:
    """Whether a class is the user's, so that its attributes may be settings that someone changes."""
    return owner_kind(cls) == "user" and not issubclass(cls, Enum)


def class_attributes(cls: type) -> dict[str, object]:
    """The class's own attributes, without the special ones that Python keeps there."""
    return {
        k: v.__dict__.get(TRACKS, v) if type(v) is types.FunctionType else v  # as `own_attribute`
        for k, v in cls.__dict__.items()
        if k[:2] != "__" or k[-2:] != "__"
    }


# What a class is that its own namespace does not hold; what that holds by itself, or what may be put there unread.
CLASS_PARTS: Final = ("__mro__", "__name__", "__qualname__")
_PARTS = [type.__dict__[name] for name in CLASS_PARTS]
_UNREAD = frozenset((
    *CLASS_PARTS, "__dict__", "__weakref__", "__doc__", "__module__", "__slotnames__",
    "__signature__", "__abstractmethods__", "__slots__", "__static_attributes__", "__firstlineno__",
    *ANNOTATIONS, "__conditional_annotations__",
))  # fmt: skip
# What Python looks up by itself, with another answer where there is none.
SPECIAL: Final = (
    "__new__",
    "__init__",
    "__post_init__",
    "__call__",
    "__str__",
    "__repr__",
    "__format__",
    "__bytes__",
    "__hash__",
    "__eq__",
    "__ne__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__bool__",
    "__len__",
    "__contains__",
    "__iter__",
    "__next__",
    "__reversed__",
    "__getitem__",
    "__setitem__",
    "__delitem__",
    "__missing__",
    "__getattr__",
    "__getattribute__",
    "__setattr__",
    "__delattr__",
    "__get__",
    "__set__",
    "__delete__",
    "__enter__",
    "__exit__",
    "__copy__",
    "__deepcopy__",
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
    "__dir__",
    "__class_getitem__",
    "__match_args__",
    "__int__",
    "__float__",
    "__index__",
    "__round__",
    "__abs__",
    "__neg__",
    "__add__",
    "__radd__",
    "__sub__",
    "__rsub__",
    "__mul__",
    "__rmul__",
    "__truediv__",
    "__rtruediv__",
    "__matmul__",
    "__rmatmul__",
    "__iadd__",
    "__isub__",
    "__imul__",
    "__instancecheck__",
    "__subclasscheck__",
    "__torch_function__",
)


def class_parts(cls: type) -> tuple[object, ...]:
    """What these are now, past the class's own class."""
    return tuple(part.__get__(cls) for part in _PARTS)


def is_special(name: str) -> bool:
    """Whether an attribute of a class is one that Python, or a library, looks up by itself."""
    return name[:1] == "_" and name[-1:] == "_" and name not in _UNREAD


def cell_contents(cell: Any) -> object:
    """What a closure cell holds, MISSING if it is not assigned."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


# A class's answers, kept: each is asked thousands of times in one run.
kind_of: Callable[[type], Kind] = lru_cache(maxsize=8192)(_kind_of)
is_plain_container: Callable[[type], bool] = lru_cache(maxsize=8192)(_is_plain_container)
fields_of_errors: Callable[[type], dict[str, object]] = lru_cache(maxsize=1024)(_fields_of_errors)
has_own_lookup: Callable[[type], bool] = lru_cache(maxsize=8192)(_has_own_lookup)


_REGISTRY_ITEM = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")


def _as_attribute(item: re.Match[str]) -> str:
    """A member of a module's registry, as the user writes it: `[3]` or `.weight`."""
    return f"[{item[1]}]" if item[1].isdigit() else f".{item[1]}"


def as_written(name: str) -> str:
    """The name of a place, with members of modules as the user writes them."""
    return _REGISTRY_ITEM.sub(_as_attribute, name)
