"""The sizes and numbers that the program gets: ints and floats for all that Python can ask, with an expression inside.

Arithmetic gives more of them. Comparisons, truth and the rest of what Python decides by are answered by the value at
hand, and leave a guard; where C code wants the number itself it is fixed by one, unless the function that asks can be
converted and then does without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from smelt._torch.seen.staged_fakes import SymFloat, SymInt
from smelt.capture.dynamic.arithmetic import NoExpressionError, call, compute, is_symbolic
from smelt.capture.dynamic.nodes import SizeNode, node_of
from smelt.capture.dynamic.trace import CaptureTrace, Number
from smelt.capture.staging import current
from smelt.ir.size_numbers import Size, SizeFloat


def sized(trace: CaptureTrace, number: Number) -> Any:
    """What Python sees of a number."""
    if type(number) is Size:
        return SizedInt(SizeNode(trace, number))
    if type(number) is SizeFloat:
        return SizedFloat(SizeNode(trace, number))
    return number


def own(value: object) -> Any:
    """torch gives its own class around a node of ours back: the same as one of ours."""
    if type(value) is SymInt or type(value) is SymFloat:
        node = node_of(value)
        return value if node is None else sized(node.trace, node.number)
    return value


def for_torch(value: object) -> object:
    """The same number in torch's own class, which its kernels need."""
    if type(value) is SizedInt:
        return SymInt(value.node)
    return SymFloat(value.node) if type(value) is SizedFloat else value


def is_sized(value: object) -> bool:
    """Whether a value is a size or number with an expression."""
    return isinstance(value, (SymInt, SymFloat)) and node_of(value) is not None


def number_of(value: object) -> Number:
    """The number in a value, None where there is none."""
    node = node_of(value) if isinstance(value, (SymInt, SymFloat)) else None
    if node is not None:
        return node.number
    return value if type(value) in (int, float, bool) else None


def computed(op: str, *values: object, literals: tuple[object, ...] = ()) -> Any:
    """An operator of Python's on sizes and plain numbers; NotImplemented where one is neither."""
    numbers = [number_of(v) for v in values]
    if any(n is None for n in numbers):
        return NotImplemented
    trace = next(node.trace for v in values if (node := node_of(v)) is not None)
    try:
        return sized(trace, compute(trace, op, *numbers, literals=literals))
    except NoExpressionError:
        return compute(trace, op, *[plain(v) for v in values], literals=literals)


def called(name: str, *values: object) -> Any:
    """A function of `math`, or a method of a number, on sizes."""
    trace = next(node.trace for v in values if (node := node_of(v)) is not None)
    try:
        return sized(trace, call(trace, name, *[number_of(v) for v in values]))
    except NoExpressionError:
        return call(trace, name, *[plain(v) for v in values])


def plain(value: object) -> Any:
    """The number at hand, which the graph then holds for."""
    node = node_of(value)
    return value if node is None else node.guard_int("", 0)


_TEXT = "its text is made there"
_KEY = "it is a key of a dict, or in a set"
_LENGTH = "it says how long a list or text is"


def _fixed(value: object, use: str = "") -> Any:
    """The same where Python's own code asks: in converted code it need not. use: what it asks for, for reports."""
    session = current.found()
    if session is not None:
        session.reading.want_free(is_text=use == _TEXT, is_key=use == _KEY)
    node = node_of(value)
    if node is None:
        return value
    with node.trace.using(use):
        return plain(value)


def _mixed(op: str, a: object, b: object) -> Any:
    found = computed(op, a, b)
    if found is NotImplemented:
        session = current.found()
        if session is not None and any(isinstance(v, str) for v in (a, b)):
            session.reading.want_free(is_text=True)
        if op == "py.mul" and any(isinstance(v, (list, tuple, str, bytes)) for v in (a, b)):
            return _fixed(a, _LENGTH) * _fixed(b, _LENGTH)
        if session is not None:
            return session.binary(op, a, b)
    return found


def _forward(op: str) -> Callable[..., object]:
    def method(self: object, other: object) -> Any:
        return _mixed(op, self, other)

    return method


def _reverse(op: str) -> Callable[..., object]:
    def method(self: object, other: object) -> Any:
        return _mixed(op, other, self)

    return method


def _unary(op: str) -> Callable[..., object]:
    def method(self: object) -> Any:
        return computed(op, self)

    return method


def _call(function: str) -> Callable[..., object]:
    def method(self: object) -> Any:
        return called(function, self)

    return method


class _Sized:
    """What both kinds have."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return bool(computed("py.ne", self, 0))

    def __round__(self, digits: object = None) -> object:
        return computed("py.round", self, *(() if digits is None else (digits,)))

    def __getattr__(self, name: str) -> object:
        """What numbers have beside: it is of the number at hand."""
        if hasattr(self.__class__, name):
            return getattr(_fixed(self), name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __pow__(self, other: object, modulus: object = None) -> object:
        return _mixed("py.pow", self, other) if modulus is None else pow(_fixed(self), other, modulus)

    def __array__(self, *args: Any, **kwargs: object) -> object:
        # NumPy would make an object of it.
        return numpy.asarray(_fixed(self), *args)

    def __divmod__(self, other: Any) -> object:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> object:
        return other // self, other % self

    def __int__(self) -> object:
        return int(_fixed(self))

    def __float__(self) -> object:
        return float(_fixed(self))

    def __complex__(self) -> object:
        return complex(_fixed(self))

    def __hash__(self) -> int:
        return hash(_fixed(self, _KEY))

    def __repr__(self) -> str:
        return repr(_fixed(self, _TEXT))

    def __str__(self) -> str:
        return str(_fixed(self, _TEXT))

    def __format__(self, spec: str) -> str:
        return format(_fixed(self, _TEXT), spec)

    def __reduce__(self) -> Any:
        return type(plain(self)), (plain(self),)

    def __copy__(self) -> object:
        return self

    def __deepcopy__(self, memo: object) -> object:
        return self

    @property
    def real(self) -> object:
        return self

    @property
    def imag(self) -> object:
        return type(plain(self))(0)

    def conjugate(self) -> object:
        return self

    def as_integer_ratio(self) -> Any:
        return plain(self).as_integer_ratio()


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    if _name != "pow":
        setattr(_Sized, f"__{_name}__", _forward(f"py.{_name}"))
    setattr(_Sized, f"__r{_name}__", _reverse(f"py.{_name}"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(_Sized, f"__{_name}__", _forward(f"py.{_name}"))
for _name in ("neg", "pos", "abs"):
    setattr(_Sized, f"__{_name}__", _unary(f"py.{_name}"))
# What `torch.sym_max` and its like ask for.
for _name, _op in (("max", "max"), ("min", "min")):
    setattr(_Sized, f"__sym_{_name}__", _forward(f"py.{_op}"))
for _name, _op in (("int", "int"), ("float", "float")):
    setattr(_Sized, f"__sym_{_name}__", _unary(f"py.{_op}"))
for _name in ("floor", "ceil", "trunc"):
    setattr(_Sized, f"__{_name}__", _call(f"math.{_name}"))


def _class(kind: type) -> Any:
    """What `isinstance` is told."""
    return property(lambda self: kind)


def int_is_integer(number: object) -> Callable[..., object]:
    """The method of an int, which torch's numbers have and Python's from 3.12 on. Raises: AttributeError."""
    _ = (0).is_integer  # type: ignore[attr-defined]
    return lambda: True


class SizedInt(_Sized, SymInt):
    """An int that the graph's inputs tell."""

    __class__ = _class(int)

    def __index__(self) -> object:
        return _fixed(self, "Python's own code takes the number itself")

    @property
    def is_integer(self) -> object:
        return int_is_integer(self)

    def bit_length(self) -> object:
        return called("int.bit_length", self)

    def bit_count(self) -> object:
        return called("int.bit_count", self)

    numerator = property(lambda self: self)
    denominator = property(lambda self: 1)


for _name, _op in (
    ("lshift", "lshift"), ("rshift", "rshift"), ("and", "and_"), ("or", "or_"), ("xor", "xor"),
):  # fmt: skip
    setattr(SizedInt, f"__{_name}__", _forward(f"py.{_op}"))
    setattr(SizedInt, f"__r{_name}__", _reverse(f"py.{_op}"))
SizedInt.__invert__ = _unary("py.invert")


class SizedFloat(_Sized, SymFloat):
    """A float that the graph's inputs tell."""

    __class__ = _class(float)

    def is_integer(self) -> object:
        return bool(called("math.floor", self) == self)

    def hex(self) -> str:
        return float(plain(self)).hex()


# As Python's errors name them.
SizedInt.__name__ = SizedInt.__qualname__ = "int"
SizedFloat.__name__ = SizedFloat.__qualname__ = "float"

__all__ = [
    "SizedFloat",
    "SizedInt",
    "called",
    "computed",
    "for_torch",
    "int_is_integer",
    "is_sized",
    "is_symbolic",
    "number_of",
    "own",
    "plain",
    "sized",
]
