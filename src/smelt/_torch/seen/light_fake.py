"""torch's mode for data-free tensors, made and run without loading torch's own compiler.

`FakeTensorMode` asks three settings of `torch._dynamo.config`; it and most kernels for data-free tensors are marked as
nothing to compile, for which they import `torch._dynamo` when they are first called: a second and more, for nothing
where nobody compiles. `light_mode` gives a mode that runs the very same code with these settings at hand, and in a
block of `unmarked` the kernels are called as they are. Where the compiler is loaded, or torch is made otherwise, all is
torch's own.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import inspect
import logging
import sys
import threading
from collections.abc import Iterator
from functools import lru_cache
from types import CellType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch

from smelt._torch.seen.plain_sizes import plain_sizes

_COMPILER = "torch._dynamo"
# What torch's compiler has them at unless its user says otherwise, who has then loaded it.
_SETTINGS = SimpleNamespace(
    fake_tensor_cache_enabled=True, fake_tensor_cache_crosscheck_enabled=False, _custom_ops_profile=None
)


class _Torch(ModuleType):
    """The package `torch`, but for its compiler; nothing but `source` of that has classes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _Sources(ModuleType):
    """What tells symbolic sizes where a tensor came from; there are no symbolic sizes here, so nobody asks."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__init__": lambda self, *args: None})
        setattr(self, name, made)
        return made


_TORCH: Any = _Torch("torch")
_SOURCES = _Sources(f"{_COMPILER}.source")
_TORCH._dynamo = SimpleNamespace(config=_SETTINGS, source=_SOURCES)
# A mode notes the stack that it was made on, for which each file on it is looked at on disk; nobody reads it here.
_NO_STACK = SimpleNamespace(extract_stack=list, format_list=list)


def light_mode(mode: Any) -> Any:
    """An instance of torch's FakeTensorMode, the class given; without the import of its compiler where that can be."""
    light = None if _COMPILER in sys.modules else _light_classes(mode)
    return _brief_class(mode)() if light is None else _made(*light)


def _made(mode: Any, converter: Any, memory: Any) -> Any:
    made = mode()
    made.fake_tensor_converter.__class__ = converter
    made.fake_tensor_converter.meta_converter.__class__ = memory
    return made


@lru_cache(maxsize=1)
def _brief_class(mode: Any) -> Any:
    """The mode's class, whose instances note no stack; itself where torch makes them otherwise."""
    try:

        class Brief(mode):
            __init__ = _with_names(mode.__init__, {"traceback": _NO_STACK})

        Brief()
    except Exception:  # pragma: no cover - another torch
        return mode
    return Brief


@lru_cache(maxsize=1)
def _light_classes(mode: Any) -> tuple[Any, Any, Any] | None:
    """The mode's class, and those of what makes its tensors, without the imports; None where they are not as known."""
    try:

        class Light(mode):
            __init__ = _apart(mode.__init__)
            __torch_dispatch__ = inspect.unwrap(mode.__torch_dispatch__)
            _dispatch_impl = _apart(mode._dispatch_impl)

            @classmethod
            def _should_skip_dynamo(cls) -> bool:
                return False

        parts = Light().fake_tensor_converter
        converter: Any = type(parts)
        memory: Any = type(parts.meta_converter)

        class LightConverter(converter):
            from_real_tensor = _apart(converter.from_real_tensor)

        class LightMemory(memory):
            meta_tensor = _apart(memory.meta_tensor)

        light = Light, LightConverter, LightMemory
        made = _made(*light)
        # No view: for its `as_strided` torch would load `torch.distributed.tensor`, a third of a second.
        given = made.from_tensor(torch.empty(2), static_shapes=True)
        with unmarked(), made:
            is_right = type(given + 1) is type(given) is not torch.Tensor
    except Exception:  # pragma: no cover - another torch
        return None
    return light if is_right and _COMPILER not in sys.modules else None


def _apart(function: Any) -> Any:
    """The same code, for which `torch` is all but its compiler."""

    def load(name: str, *args: Any) -> Any:
        if name.startswith(_COMPILER) and _COMPILER not in sys.modules:
            return _SOURCES if name == _SOURCES.__name__ and args[2:3] and args[2] else _TORCH
        found = builtins.__import__(name, *args)
        return _TORCH if found is torch else found

    own = {"torch": _TORCH, "traceback": _NO_STACK, "__builtins__": {**vars(builtins), "__import__": load}}
    return _with_names(function, own)


def _with_names(function: Any, own: dict[str, Any]) -> Any:
    """The same code, for which some global names are others."""
    names = {**function.__globals__, **own}
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


# --- what torch says of failures ----------------------------------------------------------------------------------


class _Unlogged:
    """torch logs every operator that fails on data-free tensors; here that is an answer, so the log is held back."""

    def __init__(self) -> None:
        self._log = logging.getLogger("torch._subclasses.fake_tensor")
        self._lock = threading.Lock()
        self._users = 0
        self._before = False

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before, self._log.disabled = self._log.disabled, True

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._log.disabled = self._before


unlogged = _Unlogged()


# --- kernels ---------------------------------------------------------------------------------------------------------

_MARK = "__dynamo_disable"  # where a kernel that is not to be compiled keeps what is called in its place
_lock = threading.Lock()
_users = 0


@contextlib.contextmanager
def unmarked() -> Iterator[None]:
    """Kernels for data-free tensors run in the block without asking torch's compiler, where nobody has loaded it, nor
    for what tells of symbolic sizes.
    """
    global _users
    marked = () if _COMPILER in sys.modules else _marked_kernels()
    with _lock:
        _users += 1
        for kernel in marked if _users == 1 else ():
            kernel.__dict__.setdefault(_MARK, kernel)
    try:
        with plain_sizes():
            yield
    finally:
        with _lock:
            _users -= 1
            for kernel in _marked_kernels() if _users == 0 else ():
                if kernel.__dict__.get(_MARK) is kernel:
                    del kernel.__dict__[_MARK]


@lru_cache(maxsize=1)
def _marked_kernels() -> tuple[FunctionType, ...]:
    """The kernels that torch calls through a mark; none where it has other tables of them."""
    try:
        tables = importlib.import_module("torch._decomp").global_decomposition_table.values()
        marker = torch._disable_dynamo(len).__code__
    except (ImportError, AttributeError):  # pragma: no cover - another torch
        return ()
    stack: list[Any] = [kernel for table in tables for kernel in table.values()]
    found: list[FunctionType] = []
    seen: set[int] = set()
    while stack:
        function = stack.pop()
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        held = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
        if function.__code__ is marker:
            found.extend(kernel for kernel in held if isinstance(kernel, FunctionType))
        stack.extend((*held, getattr(function, "__wrapped__", None)))
    return tuple(found)
