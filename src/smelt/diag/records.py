"""Frozen records: what `@dataclass(frozen=True, slots=True)` makes, for a tenth of the time that its class takes.

    @record
    class Extent:
        start: int
        nbytes: int = 0

Invariant: a record is a dataclass (`fields`, `replace`, `match` and pickling take it), and cannot be changed.

`dataclasses` compiles six functions for each class when its module is imported, most of what it takes to load a
saved program, and a third of what it takes to load the compiler. Here all records share them, but for the constructor,
which is compiled for classes of which there are many records; and what `dataclasses` says of a class is made when
somebody wants to know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields, is_dataclass
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")
_put = object.__setattr__
_FEW = 30
"""So many records take less time than to compile what makes them."""


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
    described = {**_described_by_bases(cls), **_described(cls)}
    made = _with_slots(cls, tuple(described))
    names = tuple(described)
    compared = tuple(name for name, each in described.items() if each.compare)
    shared: dict[str, Any] = {
        "__init__": _first_init(made, described),
        "__repr__": _repr_of(tuple(name for name, each in described.items() if each.repr)),
        "__setattr__": _refuse_setting,
        "__delattr__": _refuse_deleting,
        "__getstate__": lambda self: [getattr(self, name) for name in names],
        "__setstate__": lambda self, state: _set_all(self, names, state),
        "__match_args__": tuple(name for name, each in described.items() if each.init and not _is_named(each)),
        "__dataclass_fields__": _Later(cls, made, "__dataclass_fields__"),
        "__dataclass_params__": _Later(cls, made, "__dataclass_params__"),
        _DESCRIBED: described,
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


_DESCRIBED = "_record_fields"
_Described = Mapping[str, "Field[Any]"]


def names_of(cls: Any) -> tuple[str, ...] | None:
    """The names of the fields of a record, or of any other dataclass; None of what is neither."""
    described = getattr(cls, _DESCRIBED, None)
    if described is not None:
        return tuple(described)
    return tuple(each.name for each in fields(cls)) if is_dataclass(cls) else None


def _described(cls: type) -> dict[str, Field[Any]]:
    """The fields that a class itself has, by name."""
    found: dict[str, Field[Any]] = {}
    for name, kind in cls.__annotations__.items():
        if not str(kind).startswith(("ClassVar", "typing.ClassVar")):
            default = cls.__dict__.get(name, MISSING)
            found[name] = default if isinstance(default, Field) else field(default=default)
    return found


def _described_by_bases(cls: type) -> dict[str, Field[Any]]:
    found: dict[str, Field[Any]] = {}
    for base in reversed(cls.__mro__[1:]):
        if _DESCRIBED in vars(base):
            found.update(vars(base)[_DESCRIBED])
        elif "__dataclass_fields__" in vars(base):
            found.update((each.name, each) for each in fields(base))
    return found


def _with_slots(cls: type[T], names: tuple[str, ...]) -> type[T]:
    """The class with slots for its fields: a new one, as a class has slots from the start or never."""
    there = {name for base in cls.__mro__[1:] for name in getattr(base, "__slots__", ())}
    own = {name: value for name, value in vars(cls).items() if name not in (*names, "__dict__", "__weakref__")}
    slots = tuple(name for name in names if name not in there)
    # dataclasses would make a text of the constructor's signature.
    own |= {"__slots__": slots, "__doc__": cls.__doc__ or cls.__name__}
    kind: Any = type(cls)
    made: type[T] = kind(cls.__name__, cls.__bases__, own)
    made.__qualname__ = cls.__qualname__
    return made


class _Later:
    """What `dataclasses` puts on a class, made when it is read: of a plain class with the same fields."""

    def __init__(self, cls: type, made: type, name: str) -> None:
        self._cls, self._made, self._name = cls, made, name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        kinds = self._cls.__annotations__
        values = {name: self._cls.__dict__[name] for name in kinds if name in self._cls.__dict__}
        space = {"__annotations__": kinds, "__module__": self._cls.__module__, **values}
        bare = type(self._cls.__name__, self._cls.__bases__, space)
        plain: Any = dataclass(init=False, repr=False, eq=False)(bare)
        for name in ("__dataclass_fields__", "__dataclass_params__"):
            setattr(self._made, name, getattr(plain, name))
        return getattr(plain, self._name)


def _values_of(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the values of these fields."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda self: ()
    get = attrgetter(*names)
    return lambda self: (get(self),)


def _is_named(each: Field[Any]) -> bool:
    """Whether a field is passed by its name only."""
    return each.kw_only is True


def _first_init(cls: Any, described: _Described) -> Callable[..., None]:
    """A constructor that compiles another one when it pays."""
    positional = tuple(name for name, each in described.items() if each.init and not _is_named(each))
    passed = {name for name, each in described.items() if each.init}
    finish = getattr(cls, "__post_init__", None)
    nwhole = len(positional) if len(positional) == len(described) and finish is None else -1
    count = 0

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal count
        count += 1
        if len(args) == nwhole and not kwargs and count <= _FEW:
            for name, value in zip(positional, args, strict=True):
                _put(self, name, value)
            return
        values = {**dict(zip(positional, args, strict=False)), **kwargs}
        # What does not fit is refused in the words of a function.
        fits = len(args) + len(kwargs) == len(values) and values.keys() <= passed
        if count > _FEW or not fits or not _put_all(self, described, values):
            cls.__init__ = _compiled_init(cls, described)
            cls.__init__(self, *args, **kwargs)
        elif finish is not None:
            self.__post_init__()

    return __init__


def _put_all(self: Any, described: _Described, values: Mapping[str, Any]) -> bool:
    """Set all fields; False where the value of one is missing."""
    for name, each in described.items():
        if name in values:
            _put(self, name, values[name])
        elif each.default_factory is not MISSING:
            _put(self, name, each.default_factory())
        elif each.default is not MISSING:
            _put(self, name, each.default)
        elif each.init:
            return False
    return True


def _compiled_init(cls: Any, described: _Described) -> Callable[..., None]:
    """def __init__(self, start, nbytes=...): put(self, "start", start); put(self, "nbytes", nbytes)"""
    known: dict[str, Any] = {"_put": _put, "_missing": MISSING}
    positional, named, lines = ["self"], ["*"], []
    for name, each in described.items():
        value = name
        if each.init:
            default = "" if each.default is MISSING else f"=_default_{name}"
            known[f"_default_{name}"] = each.default
            if each.default_factory is not MISSING:
                known[f"_factory_{name}"], default = each.default_factory, "=_missing"
                value = f"_factory_{name}() if {name} is _missing else {name}"
            (named if _is_named(each) else positional).append(f"{name}{default}")
        elif each.default_factory is not MISSING:
            known[f"_factory_{name}"], value = each.default_factory, f"_factory_{name}()"
        elif each.default is not MISSING:
            known[f"_default_{name}"], value = each.default, f"_default_{name}"
        else:
            continue
        lines.append(f" _put(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    taken = ", ".join(positional + (named if named[1:] else []))
    exec(f"def __init__({taken}):\n" + "\n".join(lines or [" pass"]), known)
    init: Callable[..., None] = known["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return init


def _repr_of(names: tuple[str, ...]) -> Callable[[Any], str]:
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
