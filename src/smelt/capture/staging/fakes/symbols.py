"""Python values that the graph computes: numbers inside torch's `SymInt` and kin, all else as `StagedObject`.

Every staged value has a slot: its type, and what it may be in each of a few *worlds*. World 0 is the one that the
program sees (the native run's value where there was one); the others differ in everything that depends on data, so
that what is equal in all of them is taken to depend on types alone (sizes of results, above all).

Invariant: an operation on staged values records one `py.*` operator and computes nothing but the worlds' examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy

from smelt._torch.seen.staged_fakes import SymBool, SymFloat, SymInt
from smelt.capture.dynamic.values import int_is_integer
from smelt.capture.recording.tensor_slots import Family, Slot
from smelt.capture.staging import current
from smelt.ir import BOOL, FLOAT, INT, Type

WORLDS = 5


class _Dead:
    """Stands for a value in a world in which an operator refused its operands."""

    def __repr__(self) -> str:
        return "DEAD"


DEAD = _Dead()


def _nothing() -> None:
    return None


_WHOLE_FLOATS = 1 << 53  # all whole numbers up to here are floats


class ScalarSlot(Slot):
    """A Python value that the graph computes.

    worlds: an example for each world, DEAD where there is none. is_native: world 0 is what the native run had.
    within: the least and the greatest that the number of a loop, or one that is drawn, can be, which may be sizes.
    affine: a slot, and the numbers that this one is as many times it, plus so much. length: of a list, where Python
    knows it. picked: of a number that is one of several, floats and whole numbers that floats hold: the operator, and
    these; data tell of which kind it is.
    """

    __slots__ = ("affine", "is_native", "length", "picked", "within", "worlds")

    def __init__(self, type_: Type, worlds: tuple[Any, ...], is_native: bool = False) -> None:
        self.ref = _nothing
        self.family = Family(True)
        self.kind = "scalar"
        self.type = type_
        self.worlds = worlds
        self.is_native = is_native
        self.within: tuple[Any, Any] | None = None
        self.affine: tuple[ScalarSlot, int, int] | None = None
        self.length: int | None = None
        self.picked: tuple[str, Sequence[Any]] | None = None


class Node:
    """What torch's symbolic numbers hold; torch asks it for a value only where it cannot go on without one."""

    __slots__ = ("slot",)

    def __init__(self, slot: ScalarSlot) -> None:
        self.slot = slot

    def is_int(self) -> bool:
        return bool(self.slot.type == INT)

    def is_float(self) -> bool:
        return bool(self.slot.type == FLOAT)

    def is_bool(self) -> bool:
        return bool(self.slot.type == BOOL)

    def is_constant(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def singleton_int(self) -> None:
        return None

    def maybe_as_int(self) -> None:
        return None

    def has_hint(self) -> bool:
        return True

    def clone(self) -> Node:
        return self

    def guard_int(self, file: str, line: int) -> object:
        return current.session().specialize(self.slot)

    guard_float = guard_int

    def guard_bool(self, file: str, line: int) -> bool:
        return current.session().decide(self.slot)

    expect_true = guard_bool
    guard_size_oblivious = guard_bool
    guard_or_false = guard_bool
    guard_or_true = guard_bool

    def int_(self) -> object:
        return current.session().specialize(self.slot)

    def bool_(self) -> bool:
        return current.session().decide(self.slot)

    float_ = int_

    def _graph_repr(self) -> str:
        return f"<traced {self.slot.type}>"

    __str__ = _graph_repr


def _forward(op: str) -> Callable[..., object]:
    def method(self: object, other: object) -> Any:
        return current.session().binary(op, self, other)

    return method


def _reverse(op: str) -> Callable[..., object]:
    def method(self: object, other: object) -> Any:
        return current.session().binary(op, other, self)

    return method


def _unary(op: str) -> Callable[..., object]:
    def method(self: object) -> Any:
        return current.session().emit(op, self)

    return method


class _Staged:
    """The operators that every staged value has."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return current.session().truth(self)

    def __round__(self, digits: object = None) -> object:
        return current.session().emit("py.round", self, *(() if digits is None else (digits,)))

    def __pow__(self, other: object, modulus: object = None) -> object:
        session = current.session()
        if modulus is None:
            return session.binary("py.pow", self, other)
        return pow(session.specialize(slot_of(self)), other, modulus)

    def __array__(self, *args: Any, **kwargs: object) -> object:
        return numpy.asarray(current.session().specialize(slot_of(self)), *args)

    def __hash__(self) -> int:
        return hash(current.session().domain.hashed(slot_of(self)))

    def __repr__(self) -> str:
        session = current.found()
        # Code of C's asks, which is not converted: a dict, an exception, a format of a list.
        return f"<traced {slot_of(self).type}>" if session is None else repr(session.specialize(slot_of(self)))

    def __str__(self) -> str:
        return str(current.session().specialize(slot_of(self)))

    def __format__(self, spec: str) -> str:
        return format(current.session().specialize(slot_of(self)), spec)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift"):
    if _name != "pow":
        setattr(_Staged, f"__{_name}__", _forward(f"py.{_name}"))
    setattr(_Staged, f"__r{_name}__", _reverse(f"py.{_name}"))
for _name, _op in (("and", "py.and_"), ("or", "py.or_"), ("xor", "py.xor")):
    setattr(_Staged, f"__{_name}__", _forward(_op))
    setattr(_Staged, f"__r{_name}__", _reverse(_op))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(_Staged, f"__{_name}__", _forward(f"py.{_name}"))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(_Staged, f"__{_name}__", _unary(f"py.{_name}"))


def _call(function: str) -> Callable[..., object]:
    def method(self: object) -> Any:
        return current.session().emit("py.call", function, self)

    return method


for _name in ("floor", "ceil", "trunc"):
    setattr(_Staged, f"__{_name}__", _call(f"math.{_name}"))


def _specialized(kind: type) -> Callable[..., object]:
    def method(self: object) -> Any:
        return kind(current.session().specialize(slot_of(self)))

    return method


def _class(kind: type) -> Any:
    """What `isinstance` is told, so that code that is not converted takes the same way as with a plain number."""
    return property(lambda self: kind)


def _itself(self: object) -> object:
    return self


def _as_int(self: object) -> object:
    return current.session().emit("py.int", self)


class StagedInt(_Staged, SymInt):
    """An int that the graph computes."""

    __class__ = _class(int)

    real = numerator = property(_itself)
    imag = property(lambda self: 0)
    denominator = property(lambda self: 1)
    conjugate = _itself
    bit_length, bit_count = _call("int.bit_length"), _call("int.bit_count")

    def as_integer_ratio(self) -> Any:
        return self, 1

    __index__ = _specialized(int)
    __int__ = _specialized(int)
    __float__ = _specialized(float)

    @property
    def is_integer(self) -> object:
        return int_is_integer(self)


class StagedFloat(_Staged, SymFloat):
    """A float that the graph computes."""

    __class__ = _class(float)

    real = property(_itself)
    imag = property(lambda self: 0.0)
    conjugate = _itself
    is_integer, hex = _call("float.is_integer"), _call("float.hex")

    __int__ = _specialized(int)
    __float__ = _specialized(float)

    def as_integer_ratio(self) -> Any:
        session = current.session()
        found = session.emit("py.call", "float.as_integer_ratio", self)
        return tuple(session.emit("py.getitem", found, i) for i in range(2))


class StagedBool(_Staged, SymBool):
    """A truth value that the graph computes."""

    __class__ = _class(bool)

    real = numerator = property(_as_int)
    imag = property(lambda self: 0)
    denominator = property(lambda self: 1)
    conjugate = _as_int

    def bit_length(self) -> object:
        return _as_int(self)  # of 1 it is 1, of 0 it is 0, and so is the count

    bit_count = bit_length

    def as_integer_ratio(self) -> Any:
        return _as_int(self), 1

    __int__ = _specialized(int)
    __index__ = _specialized(int)
    __float__ = _specialized(float)


# As Python's errors name them.
StagedInt.__name__ = StagedInt.__qualname__ = "int"
StagedFloat.__name__ = StagedFloat.__qualname__ = "float"
StagedBool.__name__ = StagedBool.__qualname__ = "bool"


class StagedObject(_Staged):
    """A string, list, tuple, dictionary or any other value that the graph computes.

    of_class: the class that the value has in the program, where the graph has it as one of another kind.
    """

    __slots__ = ("slot",)
    of_class: type | None = None

    def __init__(self, slot: ScalarSlot) -> None:
        self.slot = slot

    def __getitem__(self, key: object) -> Any:
        return current.session().getitem(self, key)

    def __iter__(self) -> Any:
        return current.session().domain.taken_apart(self)

    def __len__(self) -> int:
        current.session().domain.taken_apart(self)
        raise TypeError  # to `list.extend`, which would know how much room it needs

    def keys(self) -> Any:
        """For `**`, which takes whatever has this."""
        return current.session().spread_names(self)

    def __contains__(self, item: object) -> bool:
        return bool(current.session().cannot("code that is not converted reads a traced container"))


def wrap(slot: ScalarSlot) -> Any:
    """The Python value that stands for a slot."""
    session = current.found()
    if session is not None and session.watch is not None and not session.watch.is_on:
        session.watch.start()
    if slot.type == INT:
        return StagedInt(Node(slot))
    if slot.type == FLOAT:
        return StagedFloat(Node(slot))
    return StagedBool(Node(slot)) if slot.type == BOOL else StagedObject(slot)


def wrap_as(slot: ScalarSlot, like: Any) -> object:
    """The Python value that stands for a slot, of the class that another one has in the program."""
    return wrap(slot) if class_of(like) is None else type(like)(slot)


def class_of(value: object) -> type | None:
    """The class that a value has in the program, where the graph has it as one of another kind."""
    return value.of_class if isinstance(value, StagedObject) else None


def slot_of(value: Any) -> ScalarSlot:
    """The slot of a staged value."""
    found: ScalarSlot = value.slot if isinstance(value, StagedObject) else value.node.slot
    return found


def is_real(value: object) -> bool:
    """Whether a value is a float for sure, or a whole number that a float holds."""
    if is_staged(value):
        slot = slot_of(value)
        return slot.type == FLOAT or (isinstance(slot, ScalarSlot) and slot.picked is not None)
    return type(value) is float or (type(value) is int and abs(value) <= _WHOLE_FLOATS)


def is_staged(value: object) -> bool:
    """Whether a value is one that the graph computes (tensors aside)."""
    return isinstance(value, _Staged) or (
        isinstance(value, (SymInt, SymFloat, SymBool)) and isinstance(value.node, Node)
    )


def own(value: object) -> Any:
    """torch gives its own class around a node of ours back: the same as one of ours."""
    if isinstance(value, (SymInt, SymFloat, SymBool)) and not isinstance(value, _Staged):
        return wrap(value.node.slot) if isinstance(value.node, Node) else value
    return value
