"""Integers and floats that remember how they follow from the symbols of a trace.

A `Size` passes for an `int` wherever Python asks what it is (`isinstance`, `match`), but is none: C code that wants the
number must call `__index__`, which is an error. Arithmetic that leaves no symbol gives a plain number again, so a size
never hides a constant. Two sizes are equal if their expressions are, before any value is looked at; the hash is of the
expression, so that a dictionary does not see values, and sizes of two traces are never equal. When the trace has ended,
a size is whatever number `evaluating` says.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from smelt.ir import size_terms as terms
from smelt.ir.python_operators import FUNCTIONS
from smelt.ir.size_division import quotient, remainder
from smelt.ir.size_terms import Poly
from smelt.ir.size_trace import INFINITY, Bounds, FloatExpr, Rounded, Trace

MARK = "⟨"
"""Stands in the text of every size, and nowhere in code: a kernel whose text has it holds a size as a constant."""


if TYPE_CHECKING:  # to the type checker, too, they are what they pass for
    from builtins import float as _Float
    from builtins import int as _Int
else:
    _Int, _Float = object, object


class Size(_Int):
    """An integer polynomial over the atoms of a trace, with its value at the sizes at hand."""

    __slots__ = ("poly", "trace", "value")

    def __init__(self, trace: Trace, poly: Poly, value: int) -> None:
        self.trace, self.poly, self.value = trace, poly, value

    __class__ = property(lambda self: int)

    # --- arithmetic -----------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        if not self.trace.is_open:
            return self._ended() + other
        if type(other) in _INTS:
            return _made(self.trace, terms.add(self.poly, _poly(self, other)), self.value + _value(other))
        return _as_float(self).__add__(other) if type(other) in _FLOATS else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if not self.trace.is_open:
            return self._ended() - other
        if type(other) in _INTS:
            return _made(self.trace, terms.add(self.poly, _poly(self, other), -1), self.value - _value(other))
        return _as_float(self).__sub__(other) if type(other) in _FLOATS else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        if not self.trace.is_open:
            return other - self._ended()
        if type(other) in _INTS:
            return _made(self.trace, terms.add(_poly(self, other), self.poly, -1), _value(other) - self.value)
        return _as_float(self).__rsub__(other) if type(other) in _FLOATS else NotImplemented

    def __mul__(self, other: Any) -> Any:
        if not self.trace.is_open:
            return self._ended() * other
        if type(other) in _INTS:
            return _made(self.trace, terms.multiply(self.poly, _poly(self, other)), self.value * _value(other))
        return _as_float(self).__mul__(other) if type(other) in _FLOATS else NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        if not self.trace.is_open:
            return -self._ended()
        return Size(self.trace, terms.scale(self.poly, -1), -self.value)

    def __pos__(self) -> Any:
        return self

    __ceil__ = __floor__ = __trunc__ = __pos__

    def __round__(self, digits: int | None = None) -> Any:  # type: ignore[override]
        return self if digits is None or digits >= 0 else self._leak("rounding")

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __floordiv__(self, other: Any) -> Any:
        if type(other) in _INTS:
            return _division(self, self, other, quotient, operator.floordiv)
        return self._leak("float //") if type(other) in _FLOATS else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return _division(self, other, self, quotient, operator.floordiv) if type(other) in _INTS else NotImplemented

    def __mod__(self, other: Any) -> Any:
        if type(other) in _INTS:
            return _division(self, self, other, remainder, operator.mod)
        return self._leak("float %") if type(other) in _FLOATS else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return _division(self, other, self, remainder, operator.mod) if type(other) in _INTS else NotImplemented

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        return _as_float(self).__truediv__(other)

    def __rtruediv__(self, other: Any) -> Any:
        return _as_float(self).__rtruediv__(other)

    def __pow__(self, other: Any) -> Any:  # type: ignore[override]
        if type(other) is int and other >= 0:
            result: Any = 1
            for _ in range(other):
                result = result * self
            return result
        return _as_float(self).__pow__(other) if type(other) is not Size else self._leak("a power")

    def __lshift__(self, other: Any) -> Any:
        return self * (1 << other) if type(other) is int else self._leak("<<")

    def __rshift__(self, other: Any) -> Any:
        return self // (1 << other) if type(other) is int else self._leak(">>")

    def __and__(self, other: Any) -> Any:
        if type(other) is int and other >= 0 and other & (other + 1) == 0:
            return self % (other + 1)
        if type(other) is int and other < 0 and -other & (-other - 1) == 0:
            return self - self % -other
        return self._leak("&")

    __rand__ = __and__

    def __invert__(self) -> Any:
        return -1 - self

    def _no_arithmetic(self, other: Any, modulo: Any = None) -> NoReturn:
        self._leak("an operation on bits, or a power of two")

    __or__ = __ror__ = __xor__ = __rxor__ = __rlshift__ = __rrshift__ = __rpow__ = _no_arithmetic

    # --- comparisons ----------------------------------------------------------------------------------------------

    def _compare(self, relation: Literal["<", "<=", "=="], left: Any, right: Any) -> bool:
        if not self.trace.is_open:
            return FUNCTIONS[relation](*(self._ended() if x is self else x for x in (left, right)))
        difference = terms.add(_poly(self, left), _poly(self, right), -1)
        return self.trace.compare(relation, difference, _value(left) - _value(right))

    def __eq__(self, other: object) -> bool:
        if type(other) in _INTS:
            if type(other) is Size and (other.trace is not self.trace or other.poly == self.poly):
                return other.trace is self.trace
            return self._compare("==", self, other)
        return _as_float(self) == other if type(other) in _FLOATS else NotImplemented

    def __ne__(self, other: object) -> bool:
        outcome = self.__eq__(other)
        return outcome if outcome is NotImplemented else not outcome

    def __lt__(self, other: Any) -> bool:
        if type(other) in _INTS:
            return self._compare("<", self, other)
        return _as_float(self) < other if type(other) in _FLOATS else NotImplemented

    def __le__(self, other: Any) -> bool:
        if type(other) in _INTS:
            return self._compare("<=", self, other)
        return _as_float(self) <= other if type(other) in _FLOATS else NotImplemented

    def __gt__(self, other: Any) -> bool:
        if type(other) in _INTS:
            return self._compare("<", other, self)
        return _as_float(self) > other if type(other) in _FLOATS else NotImplemented

    def __ge__(self, other: Any) -> bool:
        if type(other) in _INTS:
            return self._compare("<=", other, self)
        return _as_float(self) >= other if type(other) in _FLOATS else NotImplemented

    def __bool__(self) -> bool:
        return not self._compare("==", self, 0)

    def __hash__(self) -> int:
        return hash(("size", id(self.trace), self.poly))

    # --- what is no arithmetic ------------------------------------------------------------------------------------

    def _leak(self, what: str) -> NoReturn:
        raise self.trace.leak(f"{self} ({what})")

    def _ended(self) -> int:
        return self.trace.ended_number(self)

    def __index__(self) -> int:
        return self._leak("__index__") if self.trace.is_open else self._ended()

    def __int__(self) -> int:
        return self._leak("int") if self.trace.is_open else self._ended()

    def __float__(self) -> float:
        return self._leak("float") if self.trace.is_open else float(self._ended())

    def bit_length(self) -> int:
        """Not for a size that is not known."""
        return self._leak("bit_length") if self.trace.is_open else self._ended().bit_length()

    def is_integer(self) -> bool:
        """As of every integer."""
        return True

    def __copy__(self) -> Size:
        return self

    def __deepcopy__(self, memo: Any) -> Size:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self._leak("pickle")

    def __repr__(self) -> str:
        return f"{MARK}{self.trace.text(self.poly)}⟩"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)


class SizeFloat(_Float):
    """The same for a float: a tree of operations, evaluated as written."""

    __slots__ = ("bounds", "expr", "trace", "value")

    def __init__(self, trace: Trace, expr: FloatExpr, value: float, bounds: Bounds) -> None:
        self.trace, self.expr, self.value, self.bounds = trace, expr, value, bounds

    __class__ = property(lambda self: float)

    def _with(self, symbol: str, other: Any, is_swapped: bool = False) -> Any:
        if type(other) not in _NUMBERS:
            return NotImplemented
        if not self.trace.is_open:
            return FUNCTIONS[symbol](*((other, self._ended()) if is_swapped else (self._ended(), other)))
        a, b = (other, self) if is_swapped else (self, other)
        (left, low), (right, high) = _tree(self.trace, a), _tree(self.trace, b)
        number = FUNCTIONS[symbol](_value(a), _value(b))
        return SizeFloat(self.trace, (symbol, left, right), number, _float_bounds(symbol, low, high))

    def __add__(self, other: Any) -> Any:
        return self._with("+", other)

    def __radd__(self, other: Any) -> Any:
        return self._with("+", other, True)

    def __sub__(self, other: Any) -> Any:
        return self._with("-", other)

    def __rsub__(self, other: Any) -> Any:
        return self._with("-", other, True)

    def __mul__(self, other: Any) -> Any:
        return self._with("*", other)

    def __rmul__(self, other: Any) -> Any:
        return self._with("*", other, True)

    def __truediv__(self, other: Any) -> Any:
        return self._with("/", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with("/", other, True)

    def __pow__(self, other: Any) -> Any:  # type: ignore[override]
        return self._with("**", other)

    def __rpow__(self, other: Any) -> Any:  # type: ignore[override]
        return self._with("**", other, True)

    def __neg__(self) -> Any:
        return self._with("*", -1.0)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0.0 else -self

    def _compare(self, relation: Literal["<", "<=", "=="], left: Any, right: Any) -> bool:
        if not self.trace.is_open:
            return FUNCTIONS[relation](*(self._ended() if x is self else x for x in (left, right)))
        (a, (a_low, a_high)), (b, (b_low, b_high)) = _tree(self.trace, left), _tree(self.trace, right)
        if a == b and relation != "<" and a_low > -INFINITY and a_high < INFINITY:
            return True
        if a_high < b_low or (relation == "<=" and a_high <= b_low):
            return relation != "=="
        if a_low > b_high or (relation == "<" and a_low >= b_high):
            return False
        x, y = _value(left), _value(right)
        outcome = x < y if relation == "<" else x <= y if relation == "<=" else x == y
        return self.trace.compare_floats(relation, a, b, outcome)

    def __eq__(self, other: object) -> bool:
        if type(other) not in _NUMBERS or getattr(other, "trace", self.trace) is not self.trace:
            return NotImplemented if type(other) not in _NUMBERS else False
        return self._compare("==", self, other)

    def __ne__(self, other: object) -> bool:
        outcome = self.__eq__(other)
        return outcome if outcome is NotImplemented else not outcome

    def __lt__(self, other: Any) -> bool:
        return self._compare("<", self, other) if type(other) in _NUMBERS else NotImplemented

    def __le__(self, other: Any) -> bool:
        return self._compare("<=", self, other) if type(other) in _NUMBERS else NotImplemented

    def __gt__(self, other: Any) -> bool:
        return self._compare("<", other, self) if type(other) in _NUMBERS else NotImplemented

    def __ge__(self, other: Any) -> bool:
        return self._compare("<=", other, self) if type(other) in _NUMBERS else NotImplemented

    def __bool__(self) -> bool:
        return not self._compare("==", self, 0.0)

    def __hash__(self) -> int:
        return hash(("size", id(self.trace), self.expr))

    def _rounded(self, function: Literal["floor", "ceil", "round", "trunc"]) -> Any:
        if not self.trace.is_open:
            return _ROUNDINGS[function](self._ended())
        number = _ROUNDINGS[function](self.value)
        low, high = self.bounds
        index = self.trace.atom(
            Rounded(function, self.expr),
            number,
            (
                _ROUNDINGS[function](low) if abs(low) < INFINITY else -INFINITY,
                _ROUNDINGS[function](high) if abs(high) < INFINITY else INFINITY,
            ),
        )
        return Size(self.trace, terms.atom(index), number)

    def __floor__(self) -> Any:
        return self._rounded("floor")

    def __ceil__(self) -> Any:
        return self._rounded("ceil")

    def __trunc__(self) -> Any:
        return self._rounded("trunc")

    def __round__(self, digits: int | None = None) -> Any:  # type: ignore[override]
        return self._rounded("round") if digits is None else self._leak("round")

    def _leak(self, what: str) -> NoReturn:
        raise self.trace.leak(f"{self} ({what})")

    def _ended(self) -> float:
        return self.trace.ended_number(self)

    def __int__(self) -> int:
        return self._leak("int") if self.trace.is_open else int(self._ended())

    def __float__(self) -> float:
        return self._leak("float") if self.trace.is_open else self._ended()

    def __copy__(self) -> SizeFloat:
        return self

    def __deepcopy__(self, memo: Any) -> SizeFloat:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self._leak("pickle")

    def __repr__(self) -> str:
        return f"{MARK}{self.trace.float_text(self.expr)}⟩"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)


_INTS = frozenset((int, bool, Size))
_FLOATS = frozenset((float, SizeFloat))
_NUMBERS = _INTS | _FLOATS
_ROUNDINGS: dict[str, Callable[[float], int]] = {
    "floor": lambda x: x.__floor__(), "ceil": lambda x: x.__ceil__(), "round": round, "trunc": int,
}  # fmt: skip


def _value(x: Any) -> Any:
    return x.value if type(x) is Size or type(x) is SizeFloat else x


def _poly(self: Size, x: Any) -> Poly:
    if type(x) is Size:
        if x.trace is not self.trace:
            self._leak("in another trace")
        return x.poly
    return terms.constant(int(x))


def _made(trace: Trace, poly: Poly, value: int) -> Any:
    return terms.constant_of(poly) if terms.is_constant(poly) else Size(trace, poly, value)


def _as_float(x: Size) -> Any:
    if not x.trace.is_open:
        return float(x._ended())
    low, high = x.trace.bounds(x.poly)
    return SizeFloat(x.trace, ("size", x.poly), x.value, (low, high))


def _tree(trace: Trace, x: Any) -> tuple[FloatExpr, Bounds]:
    if type(x) is SizeFloat:
        return x.expr, x.bounds
    if type(x) is Size:
        return ("size", x.poly), trace.bounds(x.poly)
    if type(x) is float:
        return ("float", x), (x, x)
    return ("size", terms.constant(int(x))), (x, x)


def _float_bounds(symbol: str, a: Bounds, b: Bounds) -> Bounds:
    """Rounding keeps order, so the ends bound the results; where an end is no number, nothing is known."""
    try:
        if symbol == "**" or (symbol == "/" and b[0] <= 0 <= b[1]):
            return -INFINITY, INFINITY
        ends = [float(FUNCTIONS[symbol](x, y)) for x in a for y in b]
    except (OverflowError, ZeroDivisionError):
        return -INFINITY, INFINITY
    if any(end != end for end in ends):
        return -INFINITY, INFINITY
    return min(ends), max(ends)


def _division(anchor: Size, left: Any, right: Any, rule: Callable[..., Poly], on_values: Callable[..., int]) -> Any:
    if not anchor.trace.is_open:
        return on_values(*(anchor._ended() if x is anchor else x for x in (left, right)))
    number = on_values(_value(left), _value(right))
    return _made(anchor.trace, rule(anchor.trace, _poly(anchor, left), _poly(anchor, right), number), number)
