"""Calls in a scripted program: functions run converted, torch's get marks for what a run knows, builtins are staged."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import types
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from smelt._torch.library.schemas import OPERATORS
from smelt._torch.seen.module_call import CALL_OF_MODULES
from smelt.capture.convert.runtime import Args, Kwargs
from smelt.capture.reads.reads_values import home_of
from smelt.capture.scripting import quiet
from smelt.capture.scripting.builtins import handler_of
from smelt.capture.scripting.domain import Open
from smelt.capture.scripting.functions import TORCH, is_converted, run_builtin, run_converted
from smelt.capture.scripting.making import made
from smelt.capture.scripting.marking import mark
from smelt.capture.scripting.values import tensors
from smelt.capture.scripting.values.casts import cast
from smelt.capture.scripting.values.sequences import OpenTuple, ShapeObject, Spread
from smelt.capture.staging import calls as staged
from smelt.capture.staging.fakes.symbols import StagedBool, is_staged, slot_of
from smelt.capture.staging.objects.handlers import is_caught
from smelt.capture.staging.texts import holds_staged
from smelt.capture.structure.plain import is_plain_sequence
from smelt.ir import ANY
from smelt.ops.python import in_python

if TYPE_CHECKING:
    from smelt.capture.scripting.runtime import OpenRuntime


def call(domain: Open, runtime: OpenRuntime, at: int, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    """`fn(*args, **kwargs)`."""
    if any(isinstance(a, Spread) for a in args):
        args = _spread(domain, fn, args)
    if getattr(fn, "__module__", None) == "torch.random" or isinstance(getattr(fn, "__self__", None), torch.Generator):
        domain.cannot("the random generator's state is read or set", "a graph draws numbers and does no more with it")
    if domain.iterators:
        for value in (*args, getattr(fn, "__self__", None)):
            domain.check_iterator(value)
    handler = handler_of(fn)
    if handler is not None:
        found = handler(domain, runtime, args, kwargs)
        if found is not NotImplemented:
            return found
    owner = getattr(fn, "__self__", None)
    if id(owner) in domain.given and type(owner) in (list, dict) and fn.__name__ in _CHANGES:
        domain.check_change(owner)
    if isinstance(fn, tensors.TensorMethod):
        return fn(*args, **kwargs)
    if isinstance(fn, functools.partial):
        return call(domain, runtime, at, fn.func, (*fn.args, *args), {**fn.keywords, **kwargs})
    if isinstance(fn, MethodType):
        if isinstance(fn.__func__, FunctionType):
            return _bound(domain, fn.__self__, fn.__func__, args, kwargs)
        return call(domain, runtime, at, fn.__func__, (fn.__self__, *args), kwargs)
    if isinstance(fn, FunctionType):
        return run_converted(domain, fn, args, kwargs)
    if isinstance(fn, torch.nn.Module):
        return _module(domain, runtime, at, fn, args, kwargs)
    if isinstance(fn, type):
        return _instance(domain, runtime, at, fn, args, kwargs)
    wrapped = getattr(fn, "__wrapped__", None)
    if isinstance(fn, functools._lru_cache_wrapper) and wrapped is not None:
        return call(domain, runtime, at, wrapped, args, kwargs)
    if is_torch(fn):
        return torch_call(domain, runtime, fn, args, kwargs)
    if not isinstance(fn, (BuiltinFunctionType, types.MethodDescriptorType, types.MethodWrapperType)):
        own = inspect.getattr_static(type(fn), "__call__", None)
        if isinstance(own, FunctionType):
            return _bound(domain, fn, own, args, kwargs)
    named = _staged_method(domain, fn, args, kwargs)
    if named is not NotImplemented:
        return named
    args = tuple(_callback(domain, a) for a in args)
    kwargs = {k: _callback(domain, v) for k, v in kwargs.items()}
    return staged.call(domain.session, runtime, fn, args, kwargs)


def _spread(domain: Open, fn: object, args: Args) -> Args:
    spread = [i for i, a in enumerate(args) if isinstance(a, Spread)]
    others = [a for i, a in enumerate(args) if i not in spread and not isinstance(a, torch.Tensor)]
    if len(spread) == 1 and not others and is_torch(fn):
        return tuple(a.items if isinstance(a, Spread) else a for a in args)
    if len(args) == 1 and (fn is max or fn is min):
        count = domain.emit("py.len", args[0].items)
        if domain.fork(slot_of(domain.emit("py.gt", count, 1))):
            return (args[0].items,)
        return tuple(
            domain.getitem(args[0].items, 0) for _ in range(domain.fork(slot_of(domain.emit("py.eq", count, 1))))
        )
    if is_torch(fn):
        # Sizes among others: one list.
        ahead = [a for a in args[: spread[0]] if isinstance(a, torch.Tensor)]
        parts = [a.items if isinstance(a, Spread) else [a] for a in args[len(ahead) :]]
        whole = parts[0]
        for part in parts[1:]:
            whole = domain.emit("py.concat", whole, part)
        return (*ahead, ShapeObject(slot_of(whole)))
    return domain.cannot("a list of dynamic length is unpacked into a call's arguments")


def _callback(domain: Open, value: object) -> object:
    """A function that C code is going to call, converted."""
    if isinstance(value, FunctionType):
        return domain.functions.of(value)
    return value


def _bound(domain: Open, owner: object, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    if isinstance(owner, torch.nn.Module) and fn.__name__ == "forward":
        return _scoped(domain, owner, lambda: run_converted(domain, fn, (owner, *args), kwargs))
    if isinstance(owner, torch.Tensor) and not args and not kwargs:
        found = tensors.method(domain, fn.__name__, owner, args, kwargs)
        if found is not NotImplemented:
            return found
    return run_converted(domain, fn, (owner, *args), kwargs)


def _scoped(domain: Open, module: torch.nn.Module, run: Callable[[], object]) -> object:
    scope = domain.recorder.scope
    if scope.module is module:
        return run()
    saved = scope.path, scope.module
    scope.path, scope.module = scope.modules.get(id(module), scope.path), module
    try:
        return run()
    finally:
        scope.path, scope.module = saved


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _module(domain: Open, runtime: OpenRuntime, at: int, module: torch.nn.Module, args: Args, kwargs: Kwargs) -> object:
    target = getattr(type(module), "smelt_target", None)
    source = vars(module).get("_source") if type(module).__module__.startswith("smelt.") else None
    if source is not None:
        return call(domain, runtime, at, source, args, kwargs)
    if target is not None:
        module = module.smelt_target
    if type(module).__call__ is not torch.nn.Module.__call__ and not hasattr(type(module).__call__, "__smelt_tracks__"):
        own: Any = type(module).__call__
        filename = own.__code__.co_filename if isinstance(own, FunctionType) else TORCH
        if is_converted(filename) and not filename.startswith(TORCH):
            return run_converted(domain, own, (module, *args), kwargs)
    general = torch.nn.modules.module
    has_hooks = any(getattr(module, name, None) for name in _HOOKS) or any(
        getattr(general, f"_global{name}", None) for name in _HOOKS
    )
    if has_hooks:
        whole = CALL_OF_MODULES
        return _scoped(domain, module, lambda: run_converted(domain, whole, (module, *args), kwargs))
    forward = module.forward
    return _scoped(domain, module, lambda: call(domain, runtime, at, forward, args, kwargs))


def _instance(domain: Open, runtime: OpenRuntime, at: int, cls: Any, args: Args, kwargs: Kwargs) -> object:
    init = cls.__init__
    is_error = issubclass(cls, BaseException) and not isinstance(cls.__new__, FunctionType)
    plain = type(cls).__call__ is type.__call__ and (cls.__new__ is object.__new__ or is_error)
    if plain and isinstance(init, FunctionType) and is_converted(init.__code__.co_filename):
        made = cls.__new__(cls, *args, **kwargs) if is_error else cls.__new__(cls)
        run_converted(domain, init, (made, *args), kwargs)
        return made
    if home_of(cls).startswith("torch") and issubclass(cls, torch.autograd.Function):
        return cls(*args, **kwargs)
    if home_of(cls).startswith("torch"):
        # A mode that data chooses: torch's C code takes nothing but a bool, and what follows runs under either.
        args = tuple(bool(a) if isinstance(a, StagedBool) else a for a in args)
        kwargs = {name: bool(v) if isinstance(v, StagedBool) else v for name, v in kwargs.items()}
    return staged.call(domain.session, runtime, cls, args, kwargs)


# --- torch -----------------------------------------------------------------------------------------------------------


def is_torch(fn: object) -> bool:
    """Whether a callable is torch's, in C."""
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, torch.Tensor):
        return True
    if isinstance(fn, OPERATORS):
        return True
    module = getattr(fn, "__module__", None) or getattr(getattr(fn, "__objclass__", None), "__module__", None) or ""
    if isinstance(fn, types.MethodDescriptorType) and issubclass(torch.Tensor, fn.__objclass__):
        return True
    named = (
        type(owner).__name__ if owner is not None and not isinstance(owner, type) else getattr(owner, "__name__", "")
    )
    return isinstance(fn, BuiltinFunctionType) and (module.startswith("torch") or "VariableFunctions" in str(named))


def torch_call(domain: Open, runtime: OpenRuntime, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """A call of torch's, with marks for what a run knows."""
    args = tuple(_narrowed(domain, a) for a in args)
    kwargs = {name: _narrowed(domain, value) for name, value in kwargs.items()}
    name, owner = getattr(fn, "__name__", ""), getattr(fn, "__self__", None)
    tensor, rest = (owner, args) if isinstance(owner, torch.Tensor) else (args[0] if args else None, args[1:])
    is_method = isinstance(owner, torch.Tensor) or isinstance(fn, types.MethodDescriptorType)
    if isinstance(tensor, torch.Tensor) and (is_method or name in ("numel", "is_floating_point", "is_complex", "conj")):
        found = tensors.method(domain, name, tensor, rest, kwargs)
        if found is not NotImplemented:
            return found
    found = cast(domain, runtime, name, tensor, rest, kwargs)
    if found is not NotImplemented:
        return found
    found = made(domain, functools.partial(run_builtin, domain, in_python.mapped), fn, args, kwargs)
    if found is not NotImplemented:
        return found
    domain.operators.is_named = isinstance(fn, OPERATORS)
    try:
        if staged.asks(fn):
            return domain.session.asked(lambda: _with_marks(domain, fn, args, kwargs))
        return given(domain, _with_marks(domain, fn, args, kwargs))
    finally:
        domain.operators.is_named = False


def _narrowed(domain: Open, value: object) -> object:
    """An argument with what is in it as this way knows it: a number where it is known not to be None."""
    if not is_plain_sequence(value):
        return domain.narrowed(value)
    items = [_narrowed(domain, item) for item in value]
    return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)


def _with_marks(domain: Open, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """The call with marks. Tensors are the numbers in them where torch takes nothing else."""
    try:
        return _of_kinds(domain, fn, args, kwargs)
    except TypeError as error:
        if any(error is own for own in (*domain.session.raised, *domain.session.refused)) or not _WANTS_INTS.search(
            str(error)
        ):
            raise
        takes_self = not isinstance(getattr(fn, "__self__", None), torch.Tensor) and fn not in _OF_SIZES
        first, rest = (args[:1], args[1:]) if takes_self else ((), args)
        numbers = [_numbers_in(domain, a, True) for a in rest]
        named = {name: _numbers_in(domain, value, False) for name, value in kwargs.items()}
        if all(a is b for a, b in zip((*rest, *kwargs.values()), (*numbers, *named.values()), strict=True)):
            raise
        return _of_kinds(domain, fn, (*first, *numbers), named)


_WANTS_INTS = re.compile(r"\bints?\b.*FakeTensor|invalid combination of arguments")
_OF_SIZES = (torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn)


def _numbers_in(domain: Open, value: object, is_itself: bool) -> object:
    """A value with the number in each tensor that only a run knows, where it is or holds one."""
    if isinstance(value, torch.Tensor):
        return domain.item(value) if is_itself and tensors.is_symbolic(domain, value) else value
    if not (is_plain_sequence(value) or isinstance(value, torch.Size)):
        return value
    items = [_numbers_in(domain, item, True) for item in value]
    return value if all(a is b for a, b in zip(items, value, strict=True)) else tuple(items)


def _of_kinds(domain: Open, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """The call with marks. Numbers of unknown kind are ints where torch takes nothing else."""
    unknown = list({id(v): v for a in (*args, *kwargs.values()) for v in _of_any_kind(a)}.values())
    most = len(unknown) if len(unknown) <= _MOST_UNKNOWN else 0
    for count in range(most + 1):
        for ints in itertools.combinations(unknown, count):
            if ints and is_caught(domain.session):
                break
            records = domain.recorder.records
            before = len(records)
            known = {id(v): domain.emit("py.call", "torch.int", v) for v in ints}
            try:
                positional = [mark(domain, _instead(known, a)) for a in args]
                named = {k: mark(domain, _instead(known, v)) for k, v in kwargs.items()}
                with quiet.unwarned():
                    return fn(*positional, **named)
            except TypeError as error:
                if not unknown or any(error is own for own in (*domain.session.raised, *domain.session.refused)):
                    raise
                del records[before:]
    name = getattr(fn, "__name__", fn)
    return domain.cannot(
        f"{name} receives a value whose kind is not known until run time", "annotate where it comes from"
    )


_MOST_UNKNOWN = 3  # values of unknown kind that are tried as ints, in one call


def _of_any_kind(value: object) -> list[object]:
    if is_staged(value):
        return [value] if slot_of(value).type == ANY else []
    if isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    return [found for item in value for found in _of_any_kind(item)] if is_plain_sequence(value) else []


def _instead(known: dict[int, object], value: object) -> object:
    if not known or isinstance(value, torch.Tensor):
        return value
    if is_plain_sequence(value):
        return type(value)(_instead(known, item) for item in value)
    return known.get(id(value), value)


def given(domain: Open, made: object) -> object:
    """What torch gave; a list of tensors whose length a run knows is a staged one."""
    if is_plain_sequence(made) and len(made) == 1 and id(made[0]) in domain.operators.listed:
        return OpenTuple(domain.operators.listed[id(made[0])])
    return made


_CHANGES = frozenset((
    "append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear", "update", "setdefault", "popitem",
))  # fmt: skip


def _staged_method(domain: Open, fn: object, args: Args, kwargs: Kwargs) -> object:
    """A method of a plain string or list with staged arguments."""
    owner, name = getattr(fn, "__self__", None), getattr(fn, "__name__", "")
    if isinstance(owner, str) and (any(map(holds_staged, args)) or any(map(holds_staged, kwargs.values()))):
        return domain.emit("py.call", f"str.{name}", owner, *map(domain.as_in_program, args), **kwargs)
    if isinstance(owner, (list, tuple)) and name in ("count", "index") and any(map(is_staged, args)):
        return domain.emit("py.call", f"{type(owner).__name__}.{name}", owner, *args)
    if type(owner) is dict and name == "get" and is_staged(args[0]):
        return domain.emit("py.call", "dict.get", owner, *args)
    return NotImplemented


AS_PYTHON = (call, torch_call, _bound, _scoped, _module, _instance, _with_marks, _of_kinds)
"""What does for the program what Python does: what is raised there is the program's."""
