"""Attributes of torch's classes and modules replaced for the time of a recording, and what is found by type.

Invariant: a patch is shared by all threads that want it at once and undone by the last; a replacement looks at the
thread itself, so that other threads get torch's own behaviour.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, ClassVar, Final, Protocol
from weakref import WeakKeyDictionary

import torch

from smelt._torch.sequence_slots import has_items_by_number, items_by_key

# Under this name a wrapper that stands in a class while a run is recorded keeps the function it stands for.
TRACKS: Final = "__smelt_tracks__"
_MISSING = object()

Method = Callable[..., Any]
"""A function or method of torch's, or what stands in its place."""


class Descriptor(Protocol):
    """An attribute of all tensors: one that torch has in C, or a property."""

    def __get__(self, instance: object, owner: type | None = None, /) -> Any: ...

    def __set__(self, instance: object, value: object, /) -> None: ...


_FX = os.path.join(os.path.dirname(torch.__file__), "fx", "")


class _Attribute:
    """An attribute with replacements, one upon the other.

    torch.fx sets the calls of `nn.Module` too while it traces, in whatever thread, and neither side can do it in one
    step with the look at what stands there. So none of fx's is ever kept, to be put back when it is long over: where
    one stands nothing is replaced, and what is no longer the one set here stays. The other way round fx may put back
    one of ours, which is then as the original to all threads, and is known again when it is next replaced.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.own: Any = None
        self.put: Any = None
        self.makes: dict[Patches, list[Any]] = {}

    def enter(self, patches: Patches, make: Callable[[Any], object]) -> None:
        if patches in self.makes:
            self.makes[patches][0] += 1
            return
        self.makes[patches] = [1, make]
        found = vars(self.owner).get(self.name, _MISSING)
        if _is_fx(found):
            return
        if self.put is None or found is not self.put:
            self.own = _stands_for.get(found, found) if isinstance(found, FunctionType) else found
        try:
            self._set()
        except BaseException:
            del self.makes[patches]
            self._set()
            raise

    def leave(self, patches: Patches) -> None:
        self.makes[patches][0] -= 1
        if self.makes[patches][0] == 0:
            del self.makes[patches]
            is_ours = self.put is not None and vars(self.owner).get(self.name, _MISSING) is self.put
            if is_ours or (self._is_function and self.own in _acting):
                self._set()

    @property
    def _is_function(self) -> bool:
        """Whether it is a module's own function, which stays in its place and acts as another one."""
        is_plain = isinstance(self.own, FunctionType) and self.own.__closure__ is None
        return is_plain and isinstance(self.owner, ModuleType)

    def _set(self) -> None:
        """Have the attribute be what was found, in all the replacements."""
        if self._is_function:
            _act_as(self.own, list(self.makes.values()))
            self.put = self.own if self.makes else None
            return
        if self.own is not _MISSING:
            value = self.own
        else:
            if self.name in vars(self.owner):
                delattr(self.owner, self.name)
            value = getattr(self.owner, self.name)
        _originals.pop(id(self.put), None)
        found = value
        for _, make in self.makes.values():
            value = make(value)
        self.put = value if self.makes else None
        if self.makes:
            _originals[id(value)] = value, found
        if self.makes or self.own is not _MISSING:
            setattr(self.owner, self.name, value)
        if self.makes and isinstance(value, FunctionType) and self.own is not _MISSING:
            _stands_for[value] = self.own
        _stay_as_they_were(self.owner, self.name)


class Getter(property):
    """A property in place of one that torch has in C, with the names by which torch tells its own."""

    def __init__(
        self,
        original: Any,
        read: Callable[[torch.Tensor], object],
        write: Callable[[torch.Tensor, object], None] | None = None,
    ) -> None:
        super().__init__(read, write or (lambda tensor, value: original.__set__(tensor, value)))
        self.__name__ = original.__name__ if hasattr(original, "__name__") else original.fget.__name__
        self.__objclass__ = getattr(original, "__objclass__", torch.Tensor)


def _hand_on(*args: Any, **kwargs: Any) -> Any:
    replacement: Any = "replacement"
    return replacement(*args, **kwargs)


# The code of each function that acts as another one now, and a function of that code.
_acting: dict[FunctionType, FunctionType] = {}


def _act_as(function: FunctionType, makes: list[list[Any]]) -> None:
    """Have a module's function run its replacements and stay the object that it is, which programs compare with
    (`torch.compile is known`); itself again where there are none.
    """
    original = _acting.get(function)
    if original is None:
        original = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
        original.__kwdefaults__ = function.__kwdefaults__
    if not makes:
        function.__code__ = _acting.pop(function, original).__code__
        return
    _acting[function] = original
    value: Any = original
    for _, make in makes:
        value = make(value)
    code = _hand_on.__code__
    consts = tuple(value if const == "replacement" else const for const in code.co_consts)
    function.__code__ = code.replace(co_consts=consts, co_name=function.__name__, co_qualname=function.__qualname__)


# What is set now, by identity, and what it stands for.
_originals: dict[int, tuple[Any, Any]] = {}


def as_found(value: Any) -> Any:
    """What stands where a value was read when nobody records: the original of what is set only meanwhile."""
    put, original = _originals.get(id(value), (None, None))
    return original if put is value and put is not None else value


# What each function that was once set stood for.
_stands_for: WeakKeyDictionary[FunctionType, Any] = WeakKeyDictionary()


def _is_fx(found: Any) -> bool:
    """Whether a function is one that torch.fx sets somewhere for the time of a trace."""
    return isinstance(found, FunctionType) and found.__code__.co_filename.startswith(_FX)


class Patches:
    """Counted replacements of attributes."""

    _lock: Final = threading.Lock()
    _attributes: ClassVar[dict[tuple[int, str], _Attribute]] = {}

    @contextlib.contextmanager
    def replaced(self, owner: Any, name: str, make: Callable[[Any], object]) -> Iterator[None]:
        """Have `owner.name` be `make(original)` in the block; nested and concurrent uses share the first one."""
        key = (id(owner), name)
        with self._lock:
            attribute = self._attributes.get(key) or _Attribute(owner, name)
            attribute.enter(self, make)
            self._attributes[key] = attribute
        try:
            yield
        finally:
            with self._lock:
                attribute.leave(self)
                if not attribute.makes:
                    del self._attributes[key]


def _stay_as_they_were(owner: Any, name: str) -> None:
    """A tensor that is asked for an item by other means is no sequence for that."""
    if name == "__getitem__" and owner is torch.Tensor and not _tensors_were_sequences:
        items_by_key(owner)


_tensors_were_sequences = has_items_by_number(torch.Tensor)
_disabled_function = getattr(torch._C, "_disabled_torch_function_impl", None)
_disabled_dispatch = getattr(torch._C, "_disabled_torch_dispatch_impl", None)
_default_function = torch.Tensor.__torch_function__


def is_plain_tensor_type(cls: type) -> bool:
    """Whether tensors of the class behave as torch's own: Tensor, Parameter, Buffer and subclasses without hooks."""
    if cls is torch.Tensor or cls is torch.nn.Parameter:
        return True
    function = getattr(cls, "__torch_function__", None)
    dispatch = getattr(cls, "__torch_dispatch__", _disabled_dispatch)
    return function is _disabled_function and dispatch is _disabled_dispatch


def takes_operators(cls: type) -> bool:
    """Whether operators on tensors of the class are its own affair (`__torch_dispatch__`)."""
    return getattr(cls, "__torch_dispatch__", _disabled_dispatch) is not _disabled_dispatch


def is_uninitialized(tensor: torch.Tensor) -> bool:
    """Whether it is a parameter or buffer that gets its size later, and raises where that is asked for."""
    return isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)


tensor_base: Any = getattr(torch._C, "TensorBase", torch.Tensor)
_no_functions: Any = getattr(torch._C, "DisableTorchFunctionSubclass", contextlib.nullcontext)


def past_overrides() -> contextlib.AbstractContextManager[Any]:
    """A block in which what is asked of a tensor does not reach its class's `__torch_function__`."""
    found: contextlib.AbstractContextManager[Any] = _no_functions()
    return found


def facts(tensor: torch.Tensor) -> tuple[torch.dtype, Any, Any, torch.device] | None:
    """Data type, sizes, strides and device of a strided tensor of any class, past code of the class; None of others."""
    with past_overrides():
        if tensor_base.layout.__get__(tensor) is not torch.strided:
            return None
        read = (tensor_base.dtype.__get__(tensor), tensor_base.shape.__get__(tensor), tensor_base.stride(tensor))
        return (*read, tensor_base.device.__get__(tensor))


def in_class(made: torch.Tensor, cls: type) -> torch.Tensor:
    """A new tensor as one of a subclass: the same object where Python lets it be of that class, else an alias."""
    if not takes_operators(cls):
        with contextlib.suppress(TypeError):  # a class whose objects have slots
            made.__class__ = cls
            return made
    alias: torch.Tensor = tensor_base.as_subclass(made, cls)
    return alias


_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def is_going_backward() -> bool:
    """Whether this thread runs autograd's functions now."""
    return _graph_task() != -1


def has_override(args: Any) -> bool:
    """Whether an argument's own class overrides torch's functions, function modes left aside."""
    for arg in args:
        function = getattr(type(arg), "__torch_function__", None)
        if isinstance(arg, torch.Tensor) and getattr(function, "__func__", function) is _default_function.__func__:
            if type(arg) is not torch.Tensor:
                return True
        elif function is not None and function is not _disabled_function:
            return True
    return False


def higher_order_operator() -> type | None:
    """The class of `torch.cond` and its kin, or None where this torch has none under that name."""
    found: type | None = getattr(getattr(torch, "_ops", None), "HigherOrderOperator", None)
    return found


def is_custom_function_call(operator: Any) -> bool:
    """Whether this is how a transform of torch.func applies an autograd function: it only runs its forward, whose
    operators are seen one by one.
    """
    module = sys.modules.get("torch._functorch.autograd_function")
    return operator is not None and operator is getattr(module, "custom_function_call", None)


class _Eager(threading.local):
    """Whether this thread's compiled functions run as plain Python."""

    is_on: bool = False


_eager = _Eager()
_stance_lock = threading.Lock()


class _Stance:
    """The stance of torch's compiler, which is one for the process, with an answer of its own in some threads."""

    def __init__(self, own: Any) -> None:
        self.own = own

    @property
    def stance(self) -> str:
        """What torch's compiler does with a compiled function that this thread calls."""
        return "force_eager" if _eager.is_on else str(self.own.stance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


@contextlib.contextmanager
def eager_stance() -> Iterator[None]:
    """Functions compiled by torch.compile run as plain Python in the block, in this thread.

    In others they are compiled as ever: torch.export relies on it for loops. Free where nothing is compiled.
    """
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is None:
        yield
        return
    if not hasattr(compiler, "_stance"):  # pragma: no cover - another torch
        with torch.compiler.set_stance("force_eager"):
            yield
        return
    with _stance_lock:
        # It stays, for taking it away could undo what a thread has set meanwhile.
        if not isinstance(compiler._stance, _Stance):
            compiler._stance = _Stance(compiler._stance)  # type: ignore[attr-defined]
    before, _eager.is_on = _eager.is_on, True
    try:
        yield
    finally:
        _eager.is_on = before


def is_transform_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of torch.func's wrappers, which mean nothing outside their transform."""
    check = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", None)
    return bool(check is not None and check(tensor))
