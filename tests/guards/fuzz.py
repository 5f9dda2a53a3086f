"""The mutation fuzzer: every place that a program can read is changed in turn, and the next call must see it.

    report = fuzz(Program(f, args))     -> report.stale: places whose change a compiled call did not see
                                           report.counts: places tried, by kind

The places are found by a walk of its own over the objects that the program reaches (attributes, classes, globals,
cells, containers, defaults, hooks, parameters, tables of modules, torch's settings), not from what the recorder noted:
what it fails to note is what is looked for. Each is changed to other values of its kind, eager and compiled are called,
and the place is put back.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import enum
import functools
import os
import sys
import types
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

import smelt
from smelt.compiler.object.compiled import dispatcher_of
from smelt.compiler.object.compiled_table import STORM_LIMIT

Apply = Callable[[], Callable[[], None]]  # makes a change, returns what takes it back
_MISSING = object()
_OWN = ("tests.", "fuzz_")


@dataclass(frozen=True)
class Subject:
    """A program to compile, its arguments, and the environment variables that it reads.

    state: dicts and lists that it changes (of a dict, some keys): compared after each call, and put back.
    """

    name: str
    fn: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    environment: tuple[str, ...] = ()
    state: Callable[[], list[tuple[Any, tuple[str, ...]]]] = list


@dataclass
class Report:
    """What became of a program's places: tried and seen to matter, by kind; those that a compiled call missed.

    fleeting: changes that the program itself takes back as it runs, so that the next call cannot see them.
    """

    counts: Counter[str] = field(default_factory=Counter)
    mattered: Counter[str] = field(default_factory=Counter)
    stale: list[str] = field(default_factory=list)
    fleeting: list[str] = field(default_factory=list)
    uncompiled: str = ""


# ---------------------------------------------------------------- other values of the same kind


def bump(value: Any) -> Any:
    """What a function gives, so that nobody takes it for what it gave before."""
    if isinstance(value, torch.Tensor):
        return value + 1 if value.dtype != torch.bool else ~value
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map(bump, value))
    if callable(value) and not isinstance(value, type):
        return bumped(value)
    return value


def bumped(function: Any) -> Any:
    """A function like the one given, with other results."""

    @functools.wraps(function, updated=())
    def patched(*args: Any, **kwargs: Any) -> Any:
        return bump(function(*args, **kwargs))

    return patched


def others(value: Any) -> Iterator[Any]:
    """Plausible other values of the same kind."""
    if isinstance(value, enum.Enum):
        yield from [member for member in type(value) if member is not value][:1]
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, float(value), bool(value) if value in (0, 1) else -value - 1)
    elif isinstance(value, float):
        yield from (value + 0.5, float("nan"), -0.0 if value == 0 else -value)
    elif isinstance(value, complex):
        yield value + 1
    elif isinstance(value, str):
        yield from (_OTHER_WORDS.get(value, value + "x"),)
    elif value is None:
        yield 2
    elif isinstance(value, torch.dtype):
        yield torch.float64 if value != torch.float64 else torch.float32
    elif isinstance(value, torch.nn.Parameter):
        yield torch.nn.Parameter(value.detach() + 1 if value.is_floating_point() else value.detach().clone(), False)
    elif isinstance(value, torch.Tensor):
        yield bump(value)
        if value.is_floating_point():
            yield value.double()
    elif isinstance(value, torch.nn.Module):
        other = copy.deepcopy(value)
        for parameter in other.parameters():
            parameter.data.add_(1)
        yield other
        yield torch.nn.Identity()
    elif isinstance(value, types.FunctionType | types.BuiltinFunctionType | functools.partial):
        yield bumped(value)
    elif isinstance(value, property) and value.fget is not None:
        yield property(bumped(value.fget))
    elif isinstance(value, staticmethod | classmethod):
        yield type(value)(bumped(value.__func__))
    elif isinstance(value, types.MethodType):
        yield bumped(value)
    elif type(value) is tuple:
        yield from (
            (*value[:i], other, *value[i + 1 :]) for i in range(len(value)) for other in list(others(value[i]))[:1]
        )
        yield value[:-1]
        yield (*value, *value[-1:])
    elif type(value) is list:
        yield value[::-1] + value[:1]
    elif type(value) is dict:
        yield {k: next(others(v), v) for k, v in value.items()}
    elif isinstance(value, frozenset):
        yield frozenset((*value, 77)) if value and isinstance(next(iter(value)), int) else frozenset()
    elif _is_ours(type(value)) and hasattr(value, "__dict__"):
        with contextlib.suppress(Exception):
            other = copy.copy(value)
            changed = {k: next(others(v), v) for k, v in vars(other).items()}
            vars(other).update(changed)
            yield other


_OTHER_WORDS = {
    "relu": "tanh",
    "tanh": "relu",
    "gelu": "silu",
    "silu": "gelu",
    "sum": "mean",
    "mean": "sum",
    "add": "mul",
    "on": "off",
}


# ---------------------------------------------------------------- ways to change a place


def _set_item(space: Any, key: Any, value: Any) -> Apply:
    def apply() -> Callable[[], None]:
        order = list(space.items()) if isinstance(space, dict) else None
        before = space[key] if not isinstance(space, dict) or key in space else _MISSING
        if value is _MISSING:
            del space[key]
        else:
            space[key] = value

        def undo() -> None:
            if order is not None and (value is _MISSING or before is _MISSING):
                space.clear()
                space.update(order)
            else:
                space[key] = before

        return undo

    return apply


def _set_class(value: Any, cls: type) -> Apply:
    def apply() -> Callable[[], None]:
        before = type(value)
        value.__class__ = cls

        def undo() -> None:
            value.__class__ = before

        return undo

    return apply


def _set_attribute(owner: Any, name: str, value: Any) -> Apply:
    def apply() -> Callable[[], None]:
        setter, remover = (type.__setattr__, type.__delattr__) if isinstance(owner, type) else (setattr, delattr)
        own = owner.__dict__ if isinstance(owner, type) or hasattr(owner, "__dict__") else None
        before = (
            own.get(name, _MISSING)
            if own is not None and (name in own or isinstance(owner, type))
            else getattr(owner, name, _MISSING)
        )
        if value is _MISSING:
            remover(owner, name)
        else:
            setter(owner, name, value)

        def undo() -> None:
            if before is _MISSING:
                remover(owner, name)
            else:
                setter(owner, name, before)

        return undo

    return apply


def _by(act: Callable[[], Any], back: Callable[[Any], Any]) -> Apply:
    def apply() -> Callable[[], None]:
        token = act()
        return lambda: back(token)

    return apply


def _in_place(container: Any, change: Callable[[Any], Any]) -> Apply:
    def apply() -> Callable[[], None]:
        before = copy.copy(container)
        change(container)

        def undo() -> None:
            container.clear()
            (container.extend if isinstance(container, list | deque) else container.update)(before)

        return undo

    return apply


def _tensor_in_place(tensor: torch.Tensor, counted: bool) -> Apply:
    def apply() -> Callable[[], None]:
        before = tensor.detach().clone()
        target = tensor if counted else tensor.data
        with torch.no_grad():
            target.logical_not_() if tensor.dtype == torch.bool else target.add_(1)

        def undo() -> None:
            with torch.no_grad():
                target.copy_(before)

        return undo

    return apply


def _tensor_data(tensor: torch.Tensor, data: torch.Tensor) -> Apply:
    def apply() -> Callable[[], None]:
        before = tensor.data
        tensor.data = data

        def undo() -> None:
            tensor.data = before

        return undo

    return apply


# ---------------------------------------------------------------- the walk


class Walk:
    """All places that a program can read, each with changes: (kind, name, change)."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.seen: set[int] = set()
        self.keep: list[Any] = []
        self.places: list[tuple[str, str, Apply]] = []
        self.names: set[str] = set()
        self.executed = _executed(subject)
        passed = pytree.tree_leaves((subject.args, subject.kwargs))
        self.seen.update(map(id, passed))
        self.value(subject.fn, subject.name)
        for name in subject.environment:
            self._environment(name)
        self._settings()

    def add(self, kind: str, name: str, change: Apply) -> None:
        self.places.append((kind, name, change))

    def value(self, value: Any, name: str) -> None:
        """Walk into a value."""
        if id(value) in self.seen:
            return
        self.seen.add(id(value))
        self.keep.append(value)
        if isinstance(value, torch.nn.Module):
            self._module(value, name)
        elif isinstance(value, torch.Tensor):
            self._tensor(value, name)
        elif isinstance(value, types.FunctionType):
            self._function(value, name)
        elif isinstance(value, types.MethodType):
            self.value(value.__func__, f"{name}.__func__")
            self.value(value.__self__, f"{name}.__self__")
        elif isinstance(value, functools.partial):
            self.value(value.func, f"{name}.func")
            for i, member in enumerate(value.args):
                self.value(member, f"{name}.args[{i}]")
            self._entries(value.keywords, f"{name}.keywords")
        elif isinstance(value, staticmethod | classmethod):
            self.value(value.__func__, f"{name}.__func__")
        elif isinstance(value, property):
            self.value(value.fget, f"{name}.fget")
        elif isinstance(value, type):
            self._class(value, name)
        elif isinstance(value, list | tuple | dict | set | frozenset | deque):
            self._entries(value, name)
        elif isinstance(value, types.ModuleType):
            pass  # followed by the names that code reads of it
        elif _is_ours(type(value)) and not isinstance(value, enum.Enum):
            self._instance(value, name)

    def _entries(self, value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, member in list(value.items())[:6]:
                for other in others(member):
                    self.add("entry", f"{name}[{key!r}] = {_show(other)}", _set_item(value, key, other))
                self.value(member, f"{name}[{key!r}]")
            for key in list(value)[:2]:
                self.add("entry", f"del {name}[{key!r}]", _set_item(value, key, _MISSING))
            if value and all(isinstance(key, str) for key in value):
                self.add("entry", f"{name}['another'] = …", _set_item(value, "another", next(iter(value.values()))))
            if len(value) > 1:
                self.add("entry", f"{name} in another order", _in_place(value, _reverse))
        elif isinstance(value, list | deque):
            for i, member in list(enumerate(value))[:6]:
                for other in others(member):
                    self.add("entry", f"{name}[{i}] = {_show(other)}", _set_item(value, i, other))
                self.value(member, f"{name}[{i}]")
            if value:
                self.add("entry", f"{name}.append", _in_place(value, lambda v: v.append(v[0])))
                self.add("entry", f"{name}.pop", _in_place(value, lambda v: v.pop()))
                self.add("entry", f"{name}.reverse", _in_place(value, lambda v: v.reverse()))
        elif isinstance(value, set):
            for member in list(value)[:2]:
                self.add("entry", f"{name}.discard({member!r})", _in_place(value, functools.partial(_discard, member)))
            for member in [other for kept in list(value)[:1] for other in others(kept)][:1]:
                self.add("entry", f"{name}.add({member!r})", _in_place(value, functools.partial(_insert, member)))
        else:
            for i, member in enumerate(value):
                self.value(member, f"{name}[{i}]")

    def _tensor(self, tensor: torch.Tensor, name: str) -> None:
        self.add("tensor", f"{name}.add_(1)", _tensor_in_place(tensor, True))
        if tensor.is_floating_point():
            self.add("tensor", f"{name}.data = double", _tensor_data(tensor, tensor.data.double()))
        self.add("tensor", f"{name}.data = other", _tensor_data(tensor, bump(tensor.data)))
        other = copy.deepcopy(tensor.detach())
        self.add(
            "tensor",
            f"{name} swapped",
            _by(functools.partial(_swap, tensor, bump(other)), functools.partial(_swap, tensor)),
        )
        if tensor.dim() > 1:
            self.add(
                "tensor", f"{name}.data = transposed", _tensor_data(tensor, (bump(tensor.data)).mT.contiguous().mT)
            )

    def _attributes(self, value: Any, name: str, skip: tuple[str, ...] = ()) -> None:
        for key, member in list(vars(value).items()):
            if key in skip:
                continue
            for other in others(member):
                self.add("attribute", f"{name}.{key} = {_show(other)}", _set_attribute(value, key, other))
            self.add("attribute", f"del {name}.{key}", _set_item(vars(value), key, _MISSING))
            self.value(member, f"{name}.{key}")

    def _shadow(self, value: Any, name: str) -> None:
        """Set on the instance what only its class has."""
        for cls in type(value).__mro__:
            if _is_ours(cls):
                for key, member in list(vars(cls).items()):
                    if key.startswith("__") or key in vars(value):
                        continue
                    if isinstance(member, types.FunctionType):
                        if member.__code__ not in self.executed:
                            continue
                        other = bumped(types.MethodType(member, value))
                        self.add("shadow", f"{name}.{key} shadowed", _set_attribute(value, key, other))
                    else:
                        for other in list(others(member))[:1]:
                            if not isinstance(
                                member, property | staticmethod | classmethod | types.MemberDescriptorType
                            ):
                                self.add("shadow", f"{name}.{key} shadowed", _set_attribute(value, key, other))

    def _instance(self, value: Any, name: str) -> None:
        if hasattr(value, "__dict__"):
            self._attributes(value, name)
            self._shadow(value, name)
        for cls in type(value).__mro__:
            slots = vars(cls).get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                member = getattr(value, slot, _MISSING)
                if member is not _MISSING and slot not in ("__dict__", "__weakref__"):
                    for other in others(member):
                        self.add("slot", f"{name}.{slot} = {_show(other)}", _set_attribute(value, slot, other))
                    self.value(member, f"{name}.{slot}")
        self._reclass(value, name)
        self.value(type(value), f"type({name})")

    def _reclass(self, value: Any, name: str) -> None:
        """Make the object one of another class, whose methods do something else."""
        cls = type(value)
        namespace = {
            key: bumped(member)
            for base in cls.__mro__[::-1]
            if _is_ours(base)
            for key, member in vars(base).items()
            if isinstance(member, types.FunctionType) and (not key.startswith("__") or key in ("__call__", "__len__"))
        }
        with contextlib.suppress(TypeError):
            other = type(cls.__name__, (cls,), {**namespace, "__module__": cls.__module__, "__slots__": ()})
            self.add("class of", f"{name}.__class__", _set_class(value, other))

    def _class(self, cls: type, name: str) -> None:
        for base in cls.__mro__:
            if not _is_ours(base) or (base is not cls and id(base) in self.seen):
                continue
            self.seen.add(id(base))
            for key, member in list(vars(base).items()):
                if key.startswith("__") and key not in (
                    "__call__",
                    "__getattr__",
                    "__len__",
                    "__getitem__",
                    "__iter__",
                ):
                    continue
                if isinstance(member, types.FunctionType) and member.__code__ not in self.executed:
                    continue
                for other in others(member):
                    self.add("class", f"{base.__qualname__}.{key} = {_show(other)}", _set_attribute(base, key, other))
                if not isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType):
                    self.add("class", f"del {base.__qualname__}.{key}", _set_attribute(base, key, _MISSING))
                self.value(member, f"{base.__qualname__}.{key}")
                if (
                    base is not cls and key not in vars(cls) and _is_ours(cls)
                ):  # what a subclass inherits, it gets itself
                    for other in list(others(member))[:1]:
                        self.add("class", f"{cls.__qualname__}.{key} = {_show(other)}", _set_attribute(cls, key, other))

    def _function(self, function: types.FunctionType, name: str) -> None:
        if not _is_ours(function) or function.__code__ not in self.executed:
            return
        for i, default in enumerate(function.__defaults__ or ()):
            for other in others(default):
                changed = (*function.__defaults__[:i], other, *function.__defaults__[i + 1 :])  # type: ignore[index]
                self.add(
                    "default",
                    f"{name}.__defaults__[{i}] = {_show(other)}",
                    _set_attribute(function, "__defaults__", changed),
                )
            self.value(default, f"{name}.__defaults__[{i}]")
        for key, default in (function.__kwdefaults__ or {}).items():
            for other in others(default):
                self.add(
                    "default",
                    f"{name}.__kwdefaults__[{key!r}] = {_show(other)}",
                    _set_item(function.__kwdefaults__, key, other),
                )
            self.value(default, f"{name}.__kwdefaults__[{key!r}]")
        for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):
                for other in others(cell.cell_contents):
                    self.add("cell", f"{name}:{key} = {_show(other)}", _set_attribute(cell, "cell_contents", other))
                self.value(cell.cell_contents, f"{name}:{key}")
        for key, member in list(function.__dict__.items()):
            for other in others(member):
                self.add("attribute", f"{name}.{key} = {_show(other)}", _set_item(function.__dict__, key, other))
            self.value(member, f"{name}.{key}")
        changed_code = _other_constants(function.__code__)
        if changed_code is not None:
            self.add("code", f"{name}.__code__", _set_attribute(function, "__code__", changed_code))
        self._globals(function.__code__, function.__globals__)

    def _globals(self, code: types.CodeType, space: dict[str, Any]) -> None:
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self._globals(inner, space)
        for key in code.co_names:
            if key in sys.modules and _is_ours(sys.modules[key]):  # imported where it is used
                self._of_module(code, sys.modules[key], key)
            if f"{id(space)}:{key}" in self.names:
                continue
            if key not in space:
                if key in vars(builtins) and not isinstance(vars(builtins)[key], type):
                    self.names.add(f"{id(space)}:{key}")
                    shadow = bumped(vars(builtins)[key])
                    self.add(
                        "builtin", f"{space.get('__name__')}.{key} over the builtin", _set_item(space, key, shadow)
                    )
                continue
            self.names.add(f"{id(space)}:{key}")
            member = space[key]
            label = f"{space.get('__name__', '?').rsplit('.', 1)[-1]}.{key}"
            if isinstance(member, types.ModuleType):
                self._of_module(code, member, label)
                continue
            for other in others(member):
                self.add("global", f"{label} = {_show(other)}", _set_item(space, key, other))
            self.add("global", f"del {label}", _set_item(space, key, _MISSING))
            self.value(member, label)

    def _of_module(self, code: types.CodeType, module: types.ModuleType, label: str) -> None:
        for key in code.co_names:
            member = vars(module).get(key, _MISSING)
            if member is _MISSING or f"{id(module)}:{key}" in self.names or key.startswith("__"):
                continue
            self.names.add(f"{id(module)}:{key}")
            if isinstance(member, types.ModuleType):
                self._of_module(code, member, f"{label}.{key}")
                continue
            if module is torch and isinstance(member, torch.dtype):
                continue  # nobody re-binds these
            for other in others(member):
                self.add("module global", f"{label}.{key} = {_show(other)}", _set_item(vars(module), key, other))
            if _is_ours(module):
                self.value(member, f"{label}.{key}")

    def _module(self, module: torch.nn.Module, name: str) -> None:
        own = vars(module)
        self._attributes(
            module, name, ("_parameters", "_buffers", "_modules", *_HOOK_TABLES, "_non_persistent_buffers_set")
        )
        self._shadow(module, name)
        self.add("attribute", f"{name}.forward shadowed", _set_attribute(module, "forward", bumped(module.forward)))
        for table in ("_parameters", "_buffers", "_modules"):
            for key, member in list(own[table].items()):
                for other in others(member):
                    if member is not None:
                        self.add(table.strip("_"), f"{name}.{key} = {_show(other)}", _set_item(own[table], key, other))
                self.add(table.strip("_"), f"{name}.{key} = None", _set_item(own[table], key, None))
                self.value(member, f"{name}.{key}")
            if len(own[table]) > 1:
                self.add(table.strip("_"), f"{name}.{table} in another order", _in_place(own[table], _reverse))
        if isinstance(module, torch.nn.Sequential | torch.nn.ModuleList) and len(module):
            self.add("modules", f"{name}.append", _set_item(own["_modules"], str(len(module)), module[0]))
        for what, register in (
            ("forward hook", module.register_forward_hook),
            ("pre-hook", module.register_forward_pre_hook),
        ):
            hook = _forward_hook if what == "forward hook" else _pre_hook
            self.add("hook", f"{name}: {what}", _by(functools.partial(register, hook), lambda handle: handle.remove()))
        for key in _HOOK_TABLES:
            if own.get(key):
                self.value(own[key], f"{name}.{key}")
        self.add(
            "mode", f"{name}.train", _by(functools.partial(_flip, module), functools.partial(_restore_training, module))
        )
        self._reclass(module, name)
        cls = type(module)
        if not _is_ours(cls):  # a class of torch's, patched by somebody
            self.add("class", f"{cls.__qualname__}.forward", _set_attribute(cls, "forward", bumped(cls.forward)))
        self.value(cls, f"type({name})")

    def _environment(self, name: str) -> None:
        for other in ("7", "off", None):
            self.add("environment", f"{name} = {other}", functools.partial(_set_environment, name, other))

    def _settings(self) -> None:
        def dtype() -> Callable[[], None]:
            torch.set_default_dtype(torch.float64)
            return lambda: torch.set_default_dtype(torch.float32)

        def autocast() -> Callable[[], None]:
            stack = contextlib.ExitStack()
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
            return stack.close

        def inference() -> Callable[[], None]:
            stack = contextlib.ExitStack()
            stack.enter_context(torch.inference_mode())
            return stack.close

        def everywhere() -> Callable[[], None]:
            return torch.nn.modules.module.register_module_forward_hook(_forward_hook).remove

        def before() -> Callable[[], None]:
            return torch.nn.modules.module.register_module_forward_pre_hook(_pre_hook).remove

        def device() -> Callable[[], None]:
            stack = contextlib.ExitStack()
            stack.enter_context(torch.device("meta"))
            return stack.close

        for change in (dtype, autocast, inference, everywhere, before, device):
            self.add("setting", change.__name__, change)


_HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _forward_hook(module: Any, args: Any, result: Any) -> Any:
    return bump(result)


def _pre_hook(module: Any, args: Any) -> Any:
    return tuple(bump(a) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)


def _swap(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, torch.nn.Parameter) and not isinstance(other, torch.nn.Parameter):
        other = torch.nn.Parameter(other, tensor.requires_grad)
    torch.utils.swap_tensors(tensor, other)
    return other


def _flip(module: torch.nn.Module) -> list[tuple[torch.nn.Module, bool]]:
    before = [(m, m.training) for m in module.modules()]
    module.train(not module.training)
    return before


def _restore_training(module: torch.nn.Module, before: list[tuple[torch.nn.Module, bool]]) -> None:
    for part, flag in before:
        part.training = flag


def _set_environment(name: str, value: str | None) -> Callable[[], None]:
    before = os.environ.get(name)

    def put(text: str | None) -> None:
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text

    put(value)
    return lambda: put(before)


def _reverse(entries: dict[Any, Any]) -> None:
    pairs = list(entries.items())[::-1]
    entries.clear()
    entries.update(pairs)


def _discard(member: Any, entries: set[Any]) -> None:
    entries.discard(member)


def _insert(member: Any, entries: set[Any]) -> None:
    entries.add(member)


def _other_constants(code: types.CodeType) -> types.CodeType | None:
    """The same code with its numbers changed."""
    numbers = [c for c in code.co_consts if isinstance(c, float)]
    if not numbers:
        return None
    return code.replace(co_consts=tuple(c + 0.5 if isinstance(c, float) else c for c in code.co_consts))


def _executed(subject: Subject) -> set[types.CodeType]:
    """The code that a call runs."""
    found: set[types.CodeType] = set()

    def note(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.add(frame.f_code)

    sys.setprofile(note)
    try:
        outcome(subject.fn, subject)
    finally:
        sys.setprofile(None)
    return found


def _is_ours(thing: Any) -> bool:
    """Whether it is a program's own, not Python's, torch's or pytest's. Of libraries, `transformers` counts."""
    name = getattr(thing, "__module__", None) or getattr(thing, "__name__", "")
    if isinstance(thing, types.FunctionType):  # a decorator's wrapper says that it is of the module of what it wraps
        name = thing.__globals__.get("__name__", "")
    return str(name).startswith(("tests.", "transformers.", "fuzz_"))


def _show(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value.dtype}"
    return " ".join(repr(value).split())[:40]


# ---------------------------------------------------------------- calling


def outcome(fn: Any, subject: Subject) -> Any:
    """The answer as leaves and structure, or the error."""
    args, kwargs = pytree.tree_map(_fresh, (subject.args, subject.kwargs))
    state = list(fn_state(subject.fn))
    before = [tensor.detach().clone() for tensor in state]
    places = subject.state()
    contents = [_contents(*place) for place in places]
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            leaves, structure = pytree.tree_flatten(
                (fn(*args, **kwargs), [_contents(*place) for place in subject.state()])
            )
    except Exception as error:
        return type(
            error
        ), f"{error}, and leaves {[_contents(*place) for place in subject.state()]}" if places else str(error)
    finally:
        for (container, _), content in zip(places, contents, strict=True):
            _put_contents(container, content)
        for tensor, held in zip(state, before, strict=True):  # statistics that training updates
            if not torch.equal(tensor, held):
                tensor.data.copy_(held)
    return [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], structure


def _contents(container: Any, keys: tuple[str, ...]) -> Any:
    if isinstance(container, list):
        return list(container)
    return {key: container[key] for key in keys or container if key in container}


def _put_contents(container: Any, contents: Any) -> None:
    if isinstance(container, list):
        container[:] = contents
    else:
        container.update(contents)


def fn_state(fn: Any) -> Iterator[torch.Tensor]:
    """The tensors of a module."""
    if isinstance(fn, torch.nn.Module):
        yield from (*fn.parameters(), *fn.buffers())


def _fresh(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def agree(a: Any, b: Any) -> bool:
    """Whether two outcomes are the same but for rounding."""
    if isinstance(a[0], type) or isinstance(b[0], type):
        return bool(a[0] is b[0] and (a[1] == b[1] or isinstance(a[0], type)))
    return a[1] == b[1] and len(a[0]) == len(b[0]) and all(map(_leaves_agree, a[0], b[0]))


def _leaves_agree(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and (a is b or _parts_agree(a, b))
    if a.dtype != b.dtype or a.shape != b.shape or a.device != b.device:
        return False
    if not a.is_floating_point() or a.device.type == "meta":
        return a.device.type == "meta" or torch.equal(a, b)
    tolerance = 2e-2 if a.dtype in (torch.bfloat16, torch.float16) else 1e-4
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def _parts_agree(a: Any, b: Any) -> bool:
    """Whether two values of one type are the same; objects of a library's (a cache of keys) are by what they hold."""
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_leaves_agree, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(_leaves_agree(a[key], b[key]) for key in a)
    if _is_ours(type(a)) and hasattr(a, "__dict__"):
        return _parts_agree(vars(a), vars(b))
    return bool(a == b or a != a)


def fuzz(subject: Subject, every: int = 1, start: int = 0, again: bool = False) -> Report:
    """Change each `every`-th place in turn. again: let calls compile anew, so that the entries made meanwhile are used.

    Otherwise a call whose guards fail runs the original, which is quick: what is looked for is a guard that holds.
    """
    report = Report()
    walk = Walk(subject)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = _compiled(subject, report, again)
        if compiled is None:
            return report
        first = outcome(subject.fn, subject)
        for kind, name, change in walk.places[start::every]:
            is_split = bool(subject.state()) and not dispatcher_of(compiled).has_state
            if is_split or (again and dispatcher_of(compiled).stats().builds > STORM_LIMIT - 4):
                compiled = _compiled(subject, report, again)
            before = len(report.stale)
            _try(subject, compiled, kind, name, change, first, report)
            if len(report.stale) > before:
                compiled, first = _compiled(subject, report, again), outcome(subject.fn, subject)
    return report


def _compiled(subject: Subject, report: Report, again: bool) -> Any:
    compiled = smelt.compile(subject.fn)
    for _ in range(4):
        outcome(compiled, subject)
    stats = dispatcher_of(compiled).stats()
    is_known = dispatcher_of(compiled).has_state if subject.state() else not stats.fallbacks
    if not is_known or not stats.rows or stats.rows[0].entry is None:
        report.uncompiled = str(next(iter(stats.fallbacks), "no entry"))
        return None
    if not again:
        dispatcher_of(compiled)._builds._guarded = STORM_LIMIT
    return compiled


def _try(subject: Subject, compiled: Any, kind: str, name: str, change: Apply, first: Any, report: Report) -> None:
    try:
        undo = change()
    except Exception:
        return  # not a change that Python, or torch, allows
    try:
        expected, lasts = outcome(subject.fn, subject), True
        if not agree(expected, first):  # some programs put a place back themselves
            lasts = agree(expected, outcome(subject.fn, subject))
        found, found_again = outcome(compiled, subject), outcome(compiled, subject)
    finally:
        undo()
    report.counts[kind] += 1
    report.mattered[kind] += not agree(expected, first)
    if not lasts:
        report.fleeting.append(f"{kind}: {name}")
    elif not agree(expected, found):
        report.stale.append(f"{kind}: {name}: {_brief(found)} for {_brief(expected)}")
    elif not agree(expected, found_again):
        report.stale.append(f"{kind}: {name}, at the second call: {_brief(found_again)} for {_brief(expected)}")
    if not agree(first, outcome(compiled, subject)):
        report.stale.append(f"{kind}: {name}, put back")


def _brief(found: Any) -> str:
    if isinstance(found[0], type):
        return f"{found[0].__name__}: {found[1][:60]}"
    return ", ".join(
        _show(x) + (f" {x.flatten()[:2].tolist()}" if isinstance(x, torch.Tensor) and x.device.type != "meta" else "")
        for x in found[0]
    )[:80]


__all__ = ["Report", "Subject", "Walk", "fuzz"]
