"""Frozen records: what `@dataclass(frozen=True, slots=True)` makes, for a tenth of the time that its class takes.

    @record
    class Extent:
        start: int
        nbytes: int = 0

Invariant: a record is a dataclass (`fields`, `replace`, `match` and pickling take it), and cannot be changed.

`dataclasses` compiles six functions for each class when its module is imported, most of what it takes to load a
saved program. Here all records share them, but for the constructor, which is compiled when the first record is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")
_put = object.__setattr__


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """The class as a frozen dataclass with slots, two of which are equal where their fields are."""
    return _made(cls, compares=True)


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(field,))
def distinct_record(cls: type[T]) -> type[T]:
    """The same, but one is equal to itself only, or to what the class says."""
    return _made(cls, compares=False)


def _made(cls: type[T], compares: bool) -> type[T]:
    own = {
        name for name, value in vars(cls).items() if value is not None
    }  # Python has no hash where there is an `__eq__`
    # dataclasses would make a text of the constructor's signature.
    cls.__doc__ = cls.__doc__ or cls.__name__
    made = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    names = tuple(each.name for each in fields(made))  # type: ignore[arg-type]
    compared = tuple(each.name for each in fields(made) if each.compare)  # type: ignore[arg-type]
    shared: dict[str, Any] = {
        "__init__": _first_init(made),
        "__repr__": _repr_of(made),
        "__setattr__": _refuse_setting,
        "__delattr__": _refuse_deleting,
        "__getstate__": lambda self: [getattr(self, name) for name in names],
        "__setstate__": lambda self, state: _set_all(self, names, state),
    }
    if compares:
        values = _values_of(compared)
        shared["__eq__"] = lambda self, other: (
            values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented
        )
        shared["__hash__"] = lambda self: hash(values(self))
    for name, function in shared.items():
        if name not in own:
            setattr(made, name, function)
    return made


def _values_of(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the values of these fields."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda self: ()
    get = attrgetter(*names)
    return lambda self: (get(self),)


def _first_init(cls: Any) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__ = _compiled_init(cls)
        cls.__init__(self, *args, **kwargs)

    return __init__


def _compiled_init(cls: Any) -> Callable[..., None]:
    """def __init__(self, start, nbytes=...): put(self, "start", start); put(self, "nbytes", nbytes)"""
    known: dict[str, Any] = {"_put": _put, "_missing": MISSING}
    positional, named, lines = ["self"], ["*"], []
    for each in fields(cls):
        value = each.name
        if each.init:
            default = "" if each.default is MISSING else f"=_default_{each.name}"
            known[f"_default_{each.name}"] = each.default
            if each.default_factory is not MISSING:
                known[f"_factory_{each.name}"], default = each.default_factory, "=_missing"
                value = f"_factory_{each.name}() if {each.name} is _missing else {each.name}"
            (named if each.kw_only else positional).append(f"{each.name}{default}")
        elif each.default_factory is not MISSING:
            known[f"_factory_{each.name}"], value = each.default_factory, f"_factory_{each.name}()"
        else:
            continue
        lines.append(f" _put(self, {each.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    taken = ", ".join(positional + (named if named[1:] else []))
    exec(f"def __init__({taken}):\n" + "\n".join(lines or [" pass"]), known)
    init: Callable[..., None] = known["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return init


def _repr_of(cls: Any) -> Callable[[Any], str]:
    names = tuple(each.name for each in fields(cls) if each.repr)

    def __repr__(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({shown})"

    return __repr__


def _set_all(self: Any, names: tuple[str, ...], values: list[Any]) -> None:
    for name, value in zip(names, values, strict=True):
        _put(self, name, value)


def _refuse_setting(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deleting(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
