"""The object that `compile` returns: a callable that stands for a function, or a module that stays its own class.

Invariant: the compiled object and its original share all state that a program can see. A compiled module is an instance
of a subclass of the module's class over the same `__dict__`; what Smelt adds lives in a slot.
"""

from __future__ import annotations

import copy
import functools
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

import torch

from smelt.capture.reads.reads_values import raw_lookup
from smelt.compiler.object.compiled_dispatch import DISPATCHER, Dispatcher
from smelt.compiler.object.compiled_types import Builder, Settings, SplitProgram, Stats
from smelt.compiler.object.tracebacks import of_program
from smelt.compiler.sizes.dynamic_shapes import check_names
from smelt.compiler.torch_words import check_backend, with_mode
from smelt.diag import Options, SmeltError
from smelt.diag.notebook import text_box

P = ParamSpec("P")
R = TypeVar("R")


def _attach(compiled: Any, dispatcher: Dispatcher) -> None:
    object.__setattr__(compiled, DISPATCHER, dispatcher)
    dispatcher.serve(compiled)


class Compiled:
    """What every compiled object can do besides being called."""

    __slots__ = ()

    @property
    def smelt_target(self) -> Any:
        """The function or module that this object stands for."""
        return dispatcher_of(self).target

    def warmup(self, /, *inputs: Any, **kwargs: Any) -> Any:
        """Compile for these arguments now; returns the answer of that call."""
        dispatcher = dispatcher_of(self)
        with torch.no_grad(), dispatcher.asked_for():
            result = dispatcher(inputs, kwargs)
        dispatcher.finish()
        return result

    def refresh(self) -> None:
        """Take the present contents of parameters into the compiled entries, after a write not counted by torch."""
        dispatcher_of(self).refresh()

    def stats(self) -> Stats:
        """Calls, entries with their guards, misses by guard, fallbacks by reason."""
        return dispatcher_of(self).stats()

    def _repr_html_(self) -> str:
        dispatcher = dispatcher_of(self)
        return text_box(f"compiled {dispatcher.name}", f"{dispatcher.stats()}\n\nsmelt.explain(...) says more")


def dispatcher_of(compiled: Any) -> Dispatcher:
    """The dispatcher behind a compiled object."""
    return cast(Dispatcher, object.__getattribute__(compiled, DISPATCHER))


class _WithAttributes(Compiled, Generic[P, R]):
    """Gives instances a `__dict__` and weak references, beside which a subclass keeps a slot."""


class CompiledFunction(_WithAttributes[P, R]):
    """A function, or any callable, that runs compiled where it can; a descriptor, so it works as a method."""

    __slots__ = (DISPATCHER,)

    def __init__(self, target: Callable[P, R], settings: Settings) -> None:
        functools.update_wrapper(self, target)
        name = getattr(target, "__qualname__", type(target).__name__)
        _attach(self, Dispatcher(target, name, settings))

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        try:
            return cast(R, dispatcher_of(self)(args, kwargs))
        except Exception as error:
            of_program(error)
            raise  # what the program raised, at the lines below

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name in (DISPATCHER, "__wrapped__"):
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __repr__(self) -> str:
        return f"<compiled {dispatcher_of(self).name}>"

    def __copy__(self) -> CompiledFunction[P, R]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        target = self.smelt_target
        fresh = copy.deepcopy(target, memo)
        return self if fresh is target else compile_with(fresh, dispatcher_of(self).settings)

    def __reduce__(self) -> tuple[Any, ...] | str:
        if _named_object(self.__module__, self.__qualname__) is self:
            return cast(str, self.__qualname__)  # a decorated function is found under its own name
        dispatcher = dispatcher_of(self)
        return (compile_with, (dispatcher.target, dispatcher.settings))


def _named_object(module: str | None, qualname: str) -> Any:
    found: Any = sys.modules.get(module or "")
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


class CompiledModule(Compiled):
    """Mixed in before a module's own class; see `_subclass_of`."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Stops here: the user's own `__init_subclass__` is for the user's classes."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return dispatcher_of(self)(args, kwargs)
        except Exception as error:
            of_program(error)
            raise  # what the program raised, at the lines below

    def __copy__(self) -> Any:
        return compile_with(copy.copy(self.smelt_target), dispatcher_of(self).settings)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return compile_with(copy.deepcopy(self.smelt_target, memo), dispatcher_of(self).settings)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        dispatcher = dispatcher_of(self)
        return (compile_with, (dispatcher.target, dispatcher.settings))


_subclasses: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()


def _forwarded(name: str) -> property:
    """A slot of the original: its value lives in the original object, not in the shared `__dict__`."""
    return property(
        lambda self: getattr(self.smelt_target, name),
        lambda self, value: setattr(self.smelt_target, name, value),
        lambda self: delattr(self.smelt_target, name),
    )


def _subclass_of(cls: type) -> type:
    """The class of compiled instances of `cls`: same name, same methods, another `__call__`."""
    found = _subclasses.get(cls)
    if found is None:
        namespace: dict[str, Any] = {
            "__slots__": (DISPATCHER,),
            # Its own, or a change of `nn.Module.__call__` (as while a program is recorded) would reset its native call.
            "__call__": CompiledModule.__call__,
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
        }
        own = [name for name in ("warmup", "refresh", "stats", "_repr_html_") if hasattr(cls, name)]
        namespace.update({name: raw_lookup(cls, name) for name in own})  # the user's names come first
        for base in cls.__mro__:
            for name, value in base.__dict__.items():
                if isinstance(value, types.MemberDescriptorType):
                    namespace[name] = _forwarded(name)
        found = _subclasses[cls] = type.__new__(type(cls), cls.__name__, (CompiledModule, cls), namespace)
    return found


def _compile_module(module: torch.nn.Module, settings: Settings) -> Any:
    cls = _subclass_of(type(module))
    compiled: Any = object.__new__(cls)
    object.__setattr__(compiled, "__dict__", module.__dict__)
    _attach(compiled, Dispatcher(module, type(module).__name__, settings))
    return compiled


def compile_with(target: Any, settings: Settings) -> Any:
    """A compiled object for `target`; what is compiled already comes back as it is."""
    if isinstance(target, Compiled):
        return target
    if isinstance(target, torch.nn.Module) and not isinstance(target, torch.jit.ScriptModule):
        return _compile_module(target, settings)
    return CompiledFunction(target, settings)


F = TypeVar("F", bound=Callable[..., Any])


class CompileCall(Protocol):
    """`smelt.compile` to a type checker: what comes back is of the type that was given."""

    @overload
    def __call__(
        self, f: F, *, fullgraph: bool = ..., dynamic: bool | None = ...,
        dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = ..., background: bool = ...,
        backend: str | None = ..., mode: str | None = ..., disable: bool = ...,
        options: Mapping[str, Any] | Options | None = ...,
    ) -> F: ...  # fmt: skip

    @overload
    def __call__(
        self, f: None = ..., *, fullgraph: bool = ..., dynamic: bool | None = ...,
        dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = ..., background: bool = ...,
        backend: str | None = ..., mode: str | None = ..., disable: bool = ...,
        options: Mapping[str, Any] | Options | None = ...,
    ) -> Callable[[F], F]: ...  # fmt: skip


def make_compile(
    builder: Builder,
    check: Callable[[Options], None] = lambda options: None,
    split: Callable[..., SplitProgram | None] | None = None,
) -> CompileCall:
    """The public `compile` over a given builder; `check` raises for options that the builder would refuse.

    split: makes pieces of a program that cannot be one graph.
    """

    def compile(
        f: Any = None,
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
        background: bool = False,
        backend: str | None = None,
        mode: str | None = None,
        disable: bool = False,
        options: Mapping[str, Any] | Options | None = None,
    ) -> Any:
        """Run `f` as one native program for each kind of call, with the results of `f` itself.

        f: a function or an nn.Module; left out, a decorator is returned. fullgraph: a call that cannot be compiled
        whole is an error. dynamic: None compiles for the sizes and numbers of the first call, and makes those dynamic
        that change in later ones; True makes all dynamic from the first call, False none.
        dynamic_shapes: those that are dynamic
        whatever `dynamic` says, by parameter: {"x": {0: "B"}}, as torch.export spells it; names or `smelt.Dim`s.
        background: run the original while an entry is being compiled. mode: one of torch.compile's ("default",
        "reduce-overhead", "max-autotune", ...): all give the same program, measured kernels and one native call.
        backend: "smelt"; others are torch.compile's. disable: return `f` itself. options: see `Options`; they override
            a mode. The first call with a new kind of argument runs natively and is recorded; its result is that of the
            run.
        Raises: SmeltError (S0301) for a wrong option, (S0106) if `f` cannot be called, (S0304) for dynamic_shapes that
            name no parameter.
        """
        chosen = with_mode(mode, options)
        check(chosen)
        check_backend(backend)
        _check_flag("fullgraph", fullgraph, (True, False))
        _check_flag("dynamic", dynamic, (None, True, False))
        _check_flag("background", background, (True, False))
        _check_flag("disable", disable, (True, False))
        if disable:
            return f if f is not None else _as_it_is
        settings = Settings(builder, chosen, fullgraph, dynamic, background, dynamic_shapes, split)
        if f is None:
            return functools.partial(_compile_checked, settings=settings)
        return _compile_checked(f, settings)

    compile.__qualname__ = "compile"  # as Python names it where it is called wrongly
    return cast(CompileCall, compile)


def _as_it_is(f: F) -> F:
    """The decorator of `compile(disable=True)`."""
    return f


def _check_flag(name: str, value: Any, allowed: Sequence[bool | None]) -> None:
    # By identity: 1 equals True, and a tensor or an array answers with another one.
    if not any(value is one for one in allowed):
        raise SmeltError(
            f"{name} cannot be {value!r}",
            why=f"it takes {', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}",
            fix="correct the value",
            code="S0301",
        )


def _compile_checked(f: Any, settings: Settings) -> Any:
    if not callable(f):
        raise SmeltError(
            f"{f!r} cannot be compiled",
            why="it is not callable",
            fix="give a function or an nn.Module",
            code="S0106",
        )
    check_names(settings.dynamic_shapes, f)
    return compile_with(f, settings)
