"""Calls in a scripted program: functions run converted, torch's get marks for what a run knows, builtins are staged.

Every Python function that is called runs in its converted form, a copy that nobody else sees.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import re
import sysconfig
import types
from collections.abc import Callable
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch

from smelt._torch.library.schemas import OPERATORS
from smelt._torch.seen.module_call import CALL_OF_MODULES
from smelt.capture.convert import CannotConvert, convert
from smelt.capture.reads.reads_values import home_of
from smelt.capture.scripting import checks, quiet
from smelt.capture.scripting.joining import joined
from smelt.capture.scripting.making import made
from smelt.capture.scripting.marking import mark
from smelt.capture.scripting.session import DEEP, ScriptSession
from smelt.capture.scripting.values import conversions, tensors
from smelt.capture.scripting.values.casts import cast, is_legacy
from smelt.capture.scripting.values.sequences import OpenTuple, PlainShape, ShapeObject, Spread
from smelt.capture.scripting.values.types import TENSOR
from smelt.capture.staging import calls as staged
from smelt.capture.staging.fakes.symbols import StagedBool, StagedObject, class_of, is_staged, slot_of
from smelt.capture.staging.flow.iterables import StagedRange, StagedSequence, sequence_of
from smelt.capture.staging.flow.stops import MEMBERS
from smelt.capture.staging.objects.classes import CLASSES
from smelt.capture.staging.objects.handlers import is_caught
from smelt.capture.staging.texts import holds_staged
from smelt.capture.staging.texts import own_text as staged_own_text
from smelt.ir import ANY, INT, DictType, DType, ListType, TensorType, TupleType
from smelt.ops.python import in_python

if TYPE_CHECKING:
    from smelt.capture.scripting.runtime import ScriptRuntime

_TORCH = f"{Path(torch.__file__).parent.resolve()}/"
_SMELT = f"{Path(__file__).resolve().parents[2]}/"
_STDLIB = f"{Path(sysconfig.get_path('stdlib')).resolve()}/"
# torch's Python code that asks tensors for what types may not tell.
_CONVERTED = tuple(
    f"{_TORCH}{p}" for p in (
        "nn/", "functional.py", "_tensor.py", "utils/_contextlib.py", "distributions/", "ao/nn/quantized/dynamic/",
    )
)  # fmt: skip
_IN_PYTHON = in_python.__file__
_NOT_CONVERTED = (f"{_TORCH}nn/parameter.py", f"{_TORCH}nn/init.py")


class Functions:
    """The converted copies of functions."""

    def __init__(self) -> None:
        self.copies: dict[int, tuple[FunctionType, FunctionType]] = {}
        self.codes: set[int] = set()
        self.refused: dict[int, CannotConvert] = {}
        self._keep: list[Any] = []

    def of(self, function: FunctionType) -> FunctionType:
        """What runs in place of a function."""
        if id(function.__code__) in self.codes or not is_converted(function.__code__.co_filename):
            return function
        known = self.copies.get(id(function))
        if known is not None and known[0] is function and known[2] is function.__code__:  # type: ignore[misc]
            return known[1]
        try:
            made = convert(function)
        except CannotConvert as refused:
            self.refused[id(function.__code__)] = refused
            return function
        copy = FunctionType(
            made.code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__qualname__ = function.__qualname__
        copy.__dict__.update(function.__dict__)
        copy.__module__ = function.__module__
        self.copies[id(function)] = (function, copy, function.__code__)  # type: ignore[assignment]
        self._add(made.code)
        return copy

    def _add(self, code: types.CodeType) -> None:
        self._keep.append(code)
        self.codes.add(id(code))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add(constant)


@functools.lru_cache(maxsize=4096)
def is_converted(filename: str) -> bool:
    """Whether functions of a file run converted: the user's and libraries' own, and torch's that look at tensors."""
    if filename.startswith(_TORCH):
        return filename.startswith(_CONVERTED) and not filename.startswith(_NOT_CONVERTED)
    if filename.startswith(_SMELT) or filename.startswith("<frozen"):
        return filename == _IN_PYTHON
    return not filename.startswith(_STDLIB) or "/site-packages/" in filename


def call(
    session: ScriptSession, runtime: ScriptRuntime, at: int, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`fn(*args, **kwargs)`."""
    if any(isinstance(a, Spread) for a in args):
        args = _spread(session, fn, args)
    if getattr(fn, "__module__", None) == "torch.random" or isinstance(getattr(fn, "__self__", None), torch.Generator):
        session.cannot("the random generator's state is read or set", "a graph draws numbers and does no more with it")
    if session.iterators:
        for value in (*args, getattr(fn, "__self__", None)):
            session.check_iterator(value)
    handler = _handler(fn)
    if handler is not None:
        found = handler(session, runtime, args, kwargs)
        if found is not NotImplemented:
            return found
    owner = getattr(fn, "__self__", None)
    if id(owner) in session.given and type(owner) in (list, dict) and fn.__name__ in _CHANGES:
        session.check_change(owner)
    if isinstance(fn, tensors.TensorMethod):
        return fn(*args, **kwargs)
    if isinstance(fn, functools.partial):
        return call(session, runtime, at, fn.func, (*fn.args, *args), {**fn.keywords, **kwargs})
    if isinstance(fn, MethodType):
        if isinstance(fn.__func__, FunctionType):
            return _bound(session, fn.__self__, fn.__func__, args, kwargs)
        return call(session, runtime, at, fn.__func__, (fn.__self__, *args), kwargs)
    if isinstance(fn, FunctionType):
        return _function(session, fn, args, kwargs)
    if isinstance(fn, torch.nn.Module):
        return _module(session, runtime, at, fn, args, kwargs)
    if isinstance(fn, type):
        return _instance(session, runtime, at, fn, args, kwargs)
    wrapped = getattr(fn, "__wrapped__", None)
    if isinstance(fn, functools._lru_cache_wrapper) and wrapped is not None:
        return call(session, runtime, at, wrapped, args, kwargs)
    if is_torch(fn):
        return torch_call(session, runtime, fn, args, kwargs)
    if not isinstance(fn, (BuiltinFunctionType, types.MethodDescriptorType, types.MethodWrapperType)):
        own = inspect.getattr_static(type(fn), "__call__", None)
        if isinstance(own, FunctionType):
            return _bound(session, fn, own, args, kwargs)
    named = _staged_method(session, fn, args, kwargs)
    if named is not NotImplemented:
        return named
    args = tuple(_callback(session, a) for a in args)
    kwargs = {k: _callback(session, v) for k, v in kwargs.items()}
    return staged.call(session, runtime, fn, args, kwargs)


def _spread(session: ScriptSession, fn: object, args: tuple[Any, ...]) -> tuple[Any, ...]:
    spread = [i for i, a in enumerate(args) if isinstance(a, Spread)]
    others = [a for i, a in enumerate(args) if i not in spread and not isinstance(a, torch.Tensor)]
    if len(spread) == 1 and not others and is_torch(fn):
        return tuple(a.items if isinstance(a, Spread) else a for a in args)
    if len(args) == 1 and (fn is max or fn is min):
        count = session.emit("py.len", args[0].items)
        if session.fork(slot_of(session.emit("py.gt", count, 1))):
            return (args[0].items,)
        return tuple(
            session.getitem(args[0].items, 0) for _ in range(session.fork(slot_of(session.emit("py.eq", count, 1))))
        )
    if is_torch(fn):
        # Sizes among others: one list.
        ahead = [a for a in args[: spread[0]] if isinstance(a, torch.Tensor)]
        parts = [a.items if isinstance(a, Spread) else [a] for a in args[len(ahead) :]]
        whole = parts[0]
        for part in parts[1:]:
            whole = session.emit("py.concat", whole, part)
        return (*ahead, ShapeObject(slot_of(whole)))
    return session.cannot("a list of dynamic length is unpacked into a call's arguments")


def _callback(session: ScriptSession, value: object) -> Any:
    """A function that C code is going to call, converted."""
    if isinstance(value, FunctionType):
        return session.functions.of(value)
    return value


def _function(session: ScriptSession, fn: FunctionType, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
    code = fn.__code__
    session.depth += 1
    session.running[code] = session.running.get(code, 0) + 1
    try:
        if min(session.running[code], session.recorder.depth) > session.most_recursion:
            # As Python would further down, at a depth that depends on who called: what ends it depends on data.
            session.too_deep += 1
            if session.too_deep > session.most_ends:
                session.cannot(f"{fn.__qualname__} calls itself more than once at each of its levels", DEEP)
            error = RecursionError("maximum recursion depth exceeded")
            session.raised.append(error)
            raise error
        if session.depth > session.most_depth:
            session.cannot(
                f"{fn.__qualname__} calls itself more than {session.most_depth} deep",
                DEEP,
            )
        run = session.functions.of(fn)
        return joined(session, fn, (args, kwargs), lambda: run(*args, **kwargs))
    finally:
        session.depth -= 1
        session.running[code] -= 1
        if not session.running[code]:
            session.too_deep = 0


def _bound(
    session: ScriptSession, owner: object, fn: FunctionType, args: tuple[object, ...], kwargs: dict[str, object]
) -> Any:
    if isinstance(owner, torch.nn.Module) and fn.__name__ == "forward":
        return _scoped(session, owner, lambda: _function(session, fn, (owner, *args), kwargs))
    if isinstance(owner, torch.Tensor) and not args and not kwargs:
        found = tensors.method(session, fn.__name__, owner, args, kwargs)
        if found is not NotImplemented:
            return found
    return _function(session, fn, (owner, *args), kwargs)


def _scoped(session: ScriptSession, module: torch.nn.Module, run: Callable[[], object]) -> Any:
    scope = session.recorder.scope
    if scope.module is module:
        return run()
    saved = scope.path, scope.module
    scope.path, scope.module = scope.modules.get(id(module), scope.path), module
    try:
        return run()
    finally:
        scope.path, scope.module = saved


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _module(session: ScriptSession, runtime: ScriptRuntime, at: int, module: Any, args: Any, kwargs: Any) -> Any:
    target = getattr(type(module), "smelt_target", None)
    source = vars(module).get("_source") if type(module).__module__.startswith("smelt.") else None
    if source is not None:
        return call(session, runtime, at, source, args, kwargs)
    if target is not None:
        module = module.smelt_target
    if type(module).__call__ is not torch.nn.Module.__call__ and not hasattr(type(module).__call__, "__smelt_tracks__"):
        own: Any = type(module).__call__
        filename = own.__code__.co_filename if isinstance(own, FunctionType) else _TORCH
        if is_converted(filename) and not filename.startswith(_TORCH):
            return _function(session, own, (module, *args), kwargs)
    general = torch.nn.modules.module
    has_hooks = any(getattr(module, name, None) for name in _HOOKS) or any(
        getattr(general, f"_global{name}", None) for name in _HOOKS
    )
    if has_hooks:
        whole = CALL_OF_MODULES
        return _scoped(session, module, lambda: _function(session, whole, (module, *args), kwargs))
    forward = module.forward
    return _scoped(session, module, lambda: call(session, runtime, at, forward, args, kwargs))


def _instance(session: ScriptSession, runtime: ScriptRuntime, at: int, cls: Any, args: Any, kwargs: Any) -> Any:
    init = cls.__init__
    is_error = issubclass(cls, BaseException) and not isinstance(cls.__new__, FunctionType)
    plain = type(cls).__call__ is type.__call__ and (cls.__new__ is object.__new__ or is_error)
    if plain and isinstance(init, FunctionType) and is_converted(init.__code__.co_filename):
        made = cls.__new__(cls, *args, **kwargs) if is_error else cls.__new__(cls)
        _function(session, init, (made, *args), kwargs)
        return made
    if home_of(cls).startswith("torch") and issubclass(cls, torch.autograd.Function):
        return cls(*args, **kwargs)
    if home_of(cls).startswith("torch"):
        # A mode that data chooses: torch's C code takes nothing but a bool, and what follows runs under either.
        args = tuple(bool(a) if isinstance(a, StagedBool) else a for a in args)
        kwargs = {name: bool(v) if isinstance(v, StagedBool) else v for name, v in kwargs.items()}
    return staged.call(session, runtime, cls, args, kwargs)


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


def torch_call(
    session: ScriptSession, runtime: ScriptRuntime, fn: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> Any:
    """A call of torch's, with marks for what a run knows."""
    args = tuple(_narrowed(session, a) for a in args)
    kwargs = {name: _narrowed(session, value) for name, value in kwargs.items()}
    name, owner = getattr(fn, "__name__", ""), getattr(fn, "__self__", None)
    tensor, rest = (owner, args) if isinstance(owner, torch.Tensor) else (args[0] if args else None, args[1:])
    is_method = isinstance(owner, torch.Tensor) or isinstance(fn, types.MethodDescriptorType)
    if isinstance(tensor, torch.Tensor) and (is_method or name in ("numel", "is_floating_point", "is_complex", "conj")):
        found = tensors.method(session, name, tensor, rest, kwargs)
        if found is not NotImplemented:
            return found
    found = cast(session, runtime, name, tensor, rest, kwargs)
    if found is not NotImplemented:
        return found
    found = made(session, functools.partial(_in_python, session, in_python.mapped), fn, args, kwargs)
    if found is not NotImplemented:
        return found
    session.recorder.is_named = isinstance(fn, OPERATORS)
    try:
        if staged.asks(fn):
            return session.asked(lambda: _with_marks(session, fn, args, kwargs))
        return given(session, _with_marks(session, fn, args, kwargs))
    finally:
        session.recorder.is_named = False


def _narrowed(session: ScriptSession, value: Any) -> Any:
    """An argument with what is in it as this way knows it: a number where it is known not to be None."""
    if type(value) not in (list, tuple):
        return session.narrowed(value)
    items = [_narrowed(session, item) for item in value]
    return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)


def _with_marks(session: ScriptSession, fn: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """The call with marks. Tensors are the numbers in them where torch takes nothing else."""
    try:
        return _of_kinds(session, fn, args, kwargs)
    except TypeError as error:
        if any(error is own for own in (*session.raised, *session.refused)) or not _WANTS_INTS.search(str(error)):
            raise
        takes_self = not isinstance(getattr(fn, "__self__", None), torch.Tensor) and fn not in _OF_SIZES
        first, rest = (args[:1], args[1:]) if takes_self else ((), args)
        numbers = [_numbers_in(session, a, True) for a in rest]
        named = {name: _numbers_in(session, value, False) for name, value in kwargs.items()}
        if all(a is b for a, b in zip((*rest, *kwargs.values()), (*numbers, *named.values()), strict=True)):
            raise
        return _of_kinds(session, fn, (*first, *numbers), named)


_WANTS_INTS = re.compile(r"\bints?\b.*FakeTensor|invalid combination of arguments")
_OF_SIZES = (torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn)


def _numbers_in(session: ScriptSession, value: Any, is_itself: bool) -> Any:
    """A value with the number in each tensor that only a run knows, where it is or holds one."""
    if isinstance(value, torch.Tensor):
        return session.item(value) if is_itself and tensors.is_symbolic(session, value) else value
    if type(value) not in (list, tuple, torch.Size):
        return value
    items = [_numbers_in(session, item, True) for item in value]
    return value if all(a is b for a, b in zip(items, value, strict=True)) else tuple(items)


def _of_kinds(session: ScriptSession, fn: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """The call with marks. Numbers of unknown kind are ints where torch takes nothing else."""
    unknown = list({id(v): v for a in (*args, *kwargs.values()) for v in _of_any_kind(a)}.values())
    most = len(unknown) if len(unknown) <= _MOST_UNKNOWN else 0
    for count in range(most + 1):
        for ints in itertools.combinations(unknown, count):
            if ints and is_caught(session):
                break
            records = session.recorder.records
            before = len(records)
            known = {id(v): session.emit("py.call", "torch.int", v) for v in ints}
            try:
                positional = [mark(session, _instead(known, a)) for a in args]
                named = {k: mark(session, _instead(known, v)) for k, v in kwargs.items()}
                with quiet.unwarned():
                    return fn(*positional, **named)
            except TypeError as error:
                if not unknown or any(error is own for own in (*session.raised, *session.refused)):
                    raise
                del records[before:]
    name = getattr(fn, "__name__", fn)
    return session.cannot(
        f"{name} receives a value whose kind is not known until run time", "annotate where it comes from"
    )


_MOST_UNKNOWN = 3  # values of unknown kind that are tried as ints, in one call


def _of_any_kind(value: Any) -> list[Any]:
    if is_staged(value):
        return [value] if slot_of(value).type == ANY else []
    if isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    return [found for item in value for found in _of_any_kind(item)] if type(value) in (list, tuple) else []


def _instead(known: dict[int, Any], value: Any) -> Any:
    if not known or isinstance(value, torch.Tensor):
        return value
    if type(value) in (list, tuple):
        return type(value)(_instead(known, item) for item in value)
    return known.get(id(value), value)


def tensors_any() -> TensorType:
    """The type of a tensor of which nothing is known."""
    return TENSOR


def given(session: ScriptSession, made: Any) -> Any:
    """What torch gave; a list of tensors whose length a run knows is a staged one."""
    if type(made) in (list, tuple) and len(made) == 1 and id(made[0]) in session.recorder.listed:
        return OpenTuple(session.recorder.listed[id(made[0])])
    return made


# --- builtins --------------------------------------------------------------------------------------------------------


def _handler(fn: object) -> Any:
    try:
        return _HANDLERS.get(fn)
    except TypeError:
        return None


def _len(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: object) -> Any:
    (value,) = args
    if isinstance(value, ShapeObject):
        return session.rank(value.of) if value.of is not None else session.emit("py.len", value)
    if isinstance(value, torch.Tensor) and tensors.is_symbolic(session, value):
        if session.type_of(value).rank == 0:
            raise TypeError("len() of a 0-d tensor")
        return session.size(value, 0)
    is_ours = is_staged(value) or isinstance(value, StagedSequence)
    own = None if is_ours else getattr(type(value), "__len__", None)
    return _function(session, own, (value,), {}) if isinstance(own, FunctionType) else NotImplemented


def _getattr(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: object) -> Any:
    try:
        return runtime.getattr_(0, args[0], args[1])
    except AttributeError:
        if len(args) < 3:
            raise
        return args[2]


def _setattr(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: object) -> Any:
    return runtime.setattr_(0, *args)


def _isinstance(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: object) -> Any:
    value, classes = args
    of_class = class_of(value)
    if of_class is not None:
        return isinstance(of_class(), classes)
    if is_staged(value) and slot_of(value).type == ANY:
        return session.cannot("the program reads the class of a value of unknown kind", "annotate the parameter")
    if isinstance(value, torch.Tensor):
        kinds = classes if isinstance(classes, tuple) else (classes,)
        if session.type_of(value).dtype == DType.UNKNOWN and any(map(is_legacy, kinds)):
            return _is_of_kinds(session, runtime, value, kinds)
        takes_tensors = any(isinstance(k, type) and issubclass(torch.Tensor, k) for k in kinds)
        if session.recorder.slot_of(value) in session.assumable and not takes_tensors:
            return False
        if tensors.is_symbolic(session, value):
            return isinstance(torch.empty(0), classes)
    return NotImplemented


def _is_of_kinds(session: ScriptSession, runtime: ScriptRuntime, value: torch.Tensor, kinds: Any) -> Any:
    """Whether a tensor whose element type a run knows is an instance of one of several classes."""
    tests = [
        (lambda k=k: session.emit("py.eq", session.attribute(value, "dtype"), k.dtype)) if is_legacy(k)
        else (lambda k=k: _isinstance(session, runtime, (value, k), {}))
        for k in kinds
    ]  # fmt: skip
    return runtime.or_(0, *tests)


def _is_open(session: ScriptSession, items: object) -> bool:
    """Whether only a run knows how many items there are."""
    return not isinstance(items, (list, tuple, dict, str)) and sequence_of(session, items) is not None


def _in_python(session: ScriptSession, function: Any, *args: Any) -> Any:
    """A builtin as a function of the program's."""
    return _function(session, function, args, {})


def list_of(session: ScriptSession, items: object) -> Any:
    """The items as a list of the graph."""
    if isinstance(items, StagedObject) and isinstance(slot_of(items).type, ListType):
        return items
    return _in_python(session, in_python.listed, items)


def _map(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: object) -> Any:
    fn, *rest = args
    if any(_is_open(session, r) for r in rest):
        if len(rest) == 1:
            return _in_python(session, in_python.mapped, fn, rest[0])
        return _in_python(session, in_python.mapped_together, fn, runtime.call(0, zip, tuple(rest), {}))
    # Taken as it is asked, as Python's: its lists may change until then.
    return map(lambda *items: runtime.call(0, fn, items, {}), *rest)


def _filter(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: object) -> Any:
    fn, items = args
    if _is_open(session, items):
        return _in_python(session, in_python.filtered, fn, items)
    keeps = bool if fn is None else lambda item: bool(runtime.call(0, fn, (item,), {}))
    return filter(keeps, items)


def _hasattr(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: object) -> Any:
    value, name = args
    if is_staged(value):
        kind = slot_of(value).type
        plain = {ListType: list, DictType: dict, TupleType: tuple}.get(type(kind)) or CLASSES.get(kind)
        if plain is None and not hasattr(object, name):
            session.cannot(
                f"the program tests for {name} on a value that may be of any kind", "nothing says what it is"
            )
        return hasattr(class_of(value) or plain or object, name)
    if isinstance(value, torch.Tensor) and name not in _OF_SOME and hasattr(torch.Tensor, name):
        return True  # to read it would leave its sizes in the graph, of a tensor that may have another rank
    if isinstance(value, torch.Tensor) and name in _OF_SOME:
        with quiet.unwarned():
            return hasattr(value, name)
    return hasattr(value, name)


# Attributes that some tensors refuse.
_OF_SOME = ("imag", "H", "mH", "mT")


def _range(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: Any) -> Any:
    for value in args:
        if isinstance(value, torch.Tensor):
            session.assume(value, INT)
    return staged.call(session, runtime, range, tuple(map(session.index_of, args)), kwargs)


def _tuple_or_list(kind: type) -> Any:
    def make(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: object) -> Any:
        if len(args) == 1 and isinstance(args[0], ShapeObject):
            return session.emit("py.slice", args[0]) if kind is list else PlainShape(slot_of(args[0]), args[0].of)
        if len(args) == 1 and isinstance(args[0], StagedSequence) and not isinstance(args[0], StagedRange):
            found = list_of(session, args[0])
            return found if kind is list or type(found) is not StagedObject else OpenTuple(slot_of(found))
        if len(args) == 1 and kind is tuple and is_staged(args[0]) and isinstance(slot_of(args[0]).type, ListType):
            return OpenTuple(slot_of(session.emit("py.slice", StagedObject(slot_of(args[0])))))
        if len(args) == 1 and isinstance(args[0], torch.Tensor) and not session.type_of(args[0]).is_static:
            return session.cannot("a tensor of open sizes becomes a list")
        return NotImplemented

    return make


def _sorted(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: Any) -> Any:
    if not args or kwargs.get("key") is None or not _is_open(session, args[0]):
        return NotImplemented
    items = list_of(session, args[0])
    keys = _in_python(session, in_python.mapped, kwargs["key"], items)
    return session.emit("py.call", "list.sorted_by", items, keys, kwargs.get("reverse", False))


def _best(fn: Any) -> Any:
    """`min` and `max` of a list with a key, or with a default."""

    def best(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: Any) -> Any:
        if len(args) != 1 or not _is_open(session, args[0]):
            return NotImplemented
        items = list_of(session, args[0])
        if "default" in kwargs and not session.fork(slot_of(session.emit("py.gt", session.emit("py.len", items), 0))):
            return kwargs["default"]
        if kwargs.get("key") is None:
            return session.emit(f"py.{fn.__name__}", items)
        keys = _in_python(session, in_python.mapped, kwargs["key"], items)
        found = session.emit(f"py.{fn.__name__}", keys)
        return session.getitem(items, session.emit("py.call", "list.index", keys, found))

    return best


def _over(function: Any) -> Any:
    """A builtin of one iterable."""

    def run(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: Any) -> Any:
        if len(args) != 1 or kwargs or isinstance(args[0], StagedObject) or not _is_open(session, args[0]):
            return NotImplemented
        return _in_python(session, function, args[0])

    return run


def _dict_of(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: Any) -> Any:
    if len(args) != 1 or kwargs or not _is_open(session, args[0]):
        return NotImplemented
    if isinstance(args[0], StagedObject) and isinstance(slot_of(args[0]).type, DictType):
        return NotImplemented
    return _in_python(session, in_python.as_dict, args[0])


def _dict_from_keys(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: Any) -> Any:
    if kwargs or not args or not _is_open(session, args[0]):
        return NotImplemented
    return _in_python(session, in_python.from_keys, *args)


def _set(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: object) -> Any:
    if len(args) == 1 and _is_open(session, args[0]):
        session.cannot("a set is made of dynamic values", MEMBERS)
    return NotImplemented


def _sum(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: Any) -> Any:
    if not args or isinstance(args[0], StagedObject) or not _is_open(session, args[0]):
        return NotImplemented
    return runtime.call(0, sum, (list_of(session, args[0]), *args[1:]), kwargs)


def _reversed(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: object) -> Any:
    (items,) = args
    if not _is_open(session, items):
        return NotImplemented
    if isinstance(items, StagedRange):
        items = runtime.call(0, list, (items,), {})
    return session.emit("py.call", "builtins.reversed", list_of(session, items))


def _reduce(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: object) -> Any:
    fn, items, *start = args
    if not _is_open(session, items):
        return NotImplemented
    items = list_of(session, items)
    if not start:
        runtime.raise_if(
            session.emit("py.eq", session.emit("py.len", items), 0),
            lambda: TypeError("reduce() of empty iterable with no initial value"),
        )
        start, items = [session.getitem(items, 0)], session.emit("py.slice", items, 1)
    return _in_python(session, in_python.reduced, fn, items, start[0])


def _accumulate(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: Any) -> Any:
    if kwargs or not _is_open(session, args[0]):
        return NotImplemented
    return _in_python(session, in_python.running, list_of(session, args[0]), *(args[1:] or (operator.add,)))


def _chain(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: object) -> Any:
    if not any(_is_open(session, a) for a in args):
        return NotImplemented
    whole = session.listed(args[0])
    for more in args[1:]:
        whole = session.emit("py.concat", whole, session.listed(more))
    return whole


def _product(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: Any) -> Any:
    if len(args) != 2 or kwargs or not any(_is_open(session, a) for a in args):
        return NotImplemented
    return _in_python(session, in_python.pairs_of, args[0], list_of(session, args[1]))


def _zip(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: Any) -> Any:
    if not kwargs or not any(_is_open(session, a) for a in args):
        return NotImplemented
    if not kwargs.get("strict"):
        return runtime.call(0, zip, args, {})
    lengths = [runtime.call(0, len, (a,), {}) for a in args]
    for number, length in enumerate(lengths[1:], 2):
        before = "argument 1" if number == 2 else f"arguments 1-{number - 1}"
        for op, word in (("<", "shorter"), (">", "longer")):
            test = runtime.compare(0, length, (op, lambda: lengths[0]))
            if is_staged(test):
                runtime.raise_if(
                    test, lambda n=number, w=word, b=before: ValueError(f"zip() argument {n} is {w} than {b}")
                )
            elif test:
                raise runtime._raised(ValueError(f"zip() argument {number} is {word} than {before}"))
    return runtime.call(0, zip, args, {})


def _is_scripting(session: ScriptSession, runtime: ScriptRuntime, args: object, kwargs: object) -> Any:
    return False


def _annotate(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: object) -> Any:
    return args[1]


class _Limits:
    """`torch.finfo(x.dtype)` of an element type that a run knows."""

    def __init__(self, session: ScriptSession, dtype: object, kind: object) -> None:
        self._session, self._dtype, self._kind = session, dtype, kind

    def __getattr__(self, name: str) -> object:
        found = self._session.emit("py.call", f"dtype.{name}", self._dtype)
        return self._session.emit("py.float" if self._kind is torch.finfo else "py.int", found)


def _limits(kind: object) -> Any:
    def make(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: Any) -> Any:
        given = args[0] if args else kwargs.get("type")
        return _Limits(session, given, kind) if is_staged(given) else NotImplemented

    return make


def _pow(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: object) -> Any:
    if len(args) == 3 and any(map(is_staged, args)):
        return session.emit("py.call", "builtins.pow", *args)
    return NotImplemented


def _has_torch_function(session: ScriptSession, runtime: ScriptRuntime, args: object, kwargs: object) -> Any:
    return False


def _size(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: object) -> Any:
    """`torch.Size(sizes)`, of sizes that only a run knows."""
    if len(args) == 1 and isinstance(args[0], ShapeObject) and type(args[0]) is not PlainShape:
        return args[0]
    if len(args) == 1 and isinstance(args[0], StagedObject) and slot_of(args[0]).type == ListType(INT):
        return ShapeObject(slot_of(args[0]))
    return NotImplemented


def own_text(value: object, name: str) -> FunctionType | None:
    """The same for errors, too, whose texts hold what their arguments do."""
    if isinstance(value, BaseException) and any(map(holds_staged, value.args)):
        written = getattr(type(value), f"__{name}__")
        if written in _TEXTS_OF_ERRORS:
            return _TEXTS_OF_ERRORS[written]
    return staged_own_text(value, name)


# What writes the text of an exception, as functions that are converted.
_TEXTS_OF_ERRORS: dict[Any, Any] = {
    BaseException.__str__: in_python.error_text,
    BaseException.__repr__: in_python.error_repr,
    KeyError.__str__: in_python.key_error_text,
}


def text_of(session: ScriptSession, value: object) -> Any:
    """`str(value)`, where what makes the text may be the program's own."""
    own = own_text(value, "str")
    return str(value) if own is None else _function(session, own, (value,), {})


def shape_text(session: ScriptSession, value: object) -> Any:
    """The text of sizes of an unknown rank, made of texts alone; None for anything else."""
    if not isinstance(value, ShapeObject) or isinstance(value, PlainShape):
        return None
    return session.emit("py.join", "torch.Size(", session.emit("py.str", value), ")")


def _str_of(kind: Any) -> Any:
    def make(session: ScriptSession, runtime: ScriptRuntime, args: Any, kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], ShapeObject):
            text = shape_text(session, args[0])
            return session.emit("py.str", session.as_in_program(args[0])) if text is None else text
        own = own_text(args[0], kind.__name__) if len(args) == 1 and not kwargs else None
        return NotImplemented if own is None else _function(session, own, args, {})

    return make


_HANDLERS: dict[Any, Callable[..., Any]] = {
    sorted: _sorted, min: _best(min), max: _best(max), any: _over(in_python.any_of), all: _over(in_python.all_of),
    dict: _dict_of, dict.fromkeys: _dict_from_keys, set: _set, frozenset: _set,
    sum: _sum, reversed: _reversed, functools.reduce: _reduce, zip: _zip,
    itertools.accumulate: _accumulate, itertools.chain: _chain, itertools.product: _product,
    len: _len, getattr: _getattr, setattr: _setattr, hasattr: _hasattr, isinstance: _isinstance, map: _map,
    filter: _filter, range: _range, list: _tuple_or_list(list), tuple: _tuple_or_list(tuple),
    torch.Size: _size, str: _str_of(str), repr: _str_of(repr),
    pow: _pow, torch.finfo: _limits(torch.finfo), torch.iinfo: _limits(torch.iinfo),
    **checks.HANDLERS, **conversions.HANDLERS,
    torch.jit.is_scripting: _is_scripting,
    torch.jit.is_tracing: _is_scripting, torch.jit.annotate: _annotate,
    torch.overrides.has_torch_function: _has_torch_function,
    torch.overrides.has_torch_function_unary: _has_torch_function,
    torch.overrides.has_torch_function_variadic: _has_torch_function,
}  # fmt: skip


_CHANGES = frozenset((
    "append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear", "update", "setdefault", "popitem",
))  # fmt: skip


def _staged_method(session: ScriptSession, fn: object, args: Any, kwargs: Any) -> Any:
    """A method of a plain string or list with staged arguments."""
    owner, name = getattr(fn, "__self__", None), getattr(fn, "__name__", "")
    if isinstance(owner, str) and (any(map(holds_staged, args)) or any(map(holds_staged, kwargs.values()))):
        return session.emit("py.call", f"str.{name}", owner, *map(session.as_in_program, args), **kwargs)
    if isinstance(owner, (list, tuple)) and name in ("count", "index") and any(map(is_staged, args)):
        return session.emit("py.call", f"{type(owner).__name__}.{name}", owner, *args)
    if type(owner) is dict and name == "get" and is_staged(args[0]):
        return session.emit("py.call", "dict.get", owner, *args)
    return NotImplemented
