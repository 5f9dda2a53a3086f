"""Python's operators on numbers that may be symbols: a polynomial or a tree where there is one, else an atom.

Invariant: the value at hand is what Python computes, and where Python would raise at other sizes (division by zero) a
guard says that it does not.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any

from smelt.capture.dynamic.trace import CaptureTrace, Number
from smelt.ir import size_terms as terms
from smelt.ir.size_numbers import Size, SizeFloat
from smelt.ops.python.python_ops import python_op

_PLAIN: dict[str, Callable[..., object]] = {
    "py.add": operator.add, "py.sub": operator.sub, "py.mul": operator.mul, "py.neg": operator.neg,
    "py.pos": operator.pos,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "py.eq": operator.eq, "py.ne": operator.ne, "py.lt": operator.lt, "py.le": operator.le, "py.gt": operator.gt,
    "py.ge": operator.ge,
}  # fmt: skip
_LARGEST_POWER, _EXACT = 8, 1 << 20
_MOST = sys.float_info.max
_MOST_ABOVE = 1 << 52  # up to here n / d, rounded to a float, comes to no integer that n / d is not


def is_symbolic(number: Number) -> bool:
    """Whether a number has a symbol in it."""
    return type(number) is Size or type(number) is SizeFloat


def is_float(number: Number) -> bool:
    """Whether it is a float."""
    return type(number) is SizeFloat or type(number) is float


def at_hand(number: Number) -> Any:
    """The value that it has at capture."""
    return number.value if is_symbolic(number) else number


def compute(trace: CaptureTrace, op: str, *numbers: Number, literals: tuple[object, ...] = ()) -> Number:
    """The result of an operator of Python's. Raises: what Python raises; NoExpression where it is a complex number."""
    if not any(map(is_symbolic, numbers)):
        run = python_op(op)
        assert run is not None
        return run.run(*literals, *numbers)
    plain = _PLAIN.get(op)
    if plain is not None:
        return plain(*numbers)
    compared = _COMPARISONS.get(op)
    if compared is not None:
        return compared(*numbers)
    rule = _RULES.get(op)
    found = NotImplemented if rule is None or literals else rule(trace, *numbers)
    if found is not NotImplemented:
        return found
    if not isinstance(python_op(op).run(*literals, *map(at_hand, numbers)), (int, float)):  # type: ignore[union-attr]
        raise NoExpressionError(op)
    return trace.computed(op, numbers, literals)


class NoExpressionError(Exception):
    """An operator whose result is no int, float or bool."""


def _floordiv(trace: CaptureTrace, a: Number, b: Number) -> Number:
    _not_zero(operator.floordiv, a, b)
    return NotImplemented if is_float(a) or is_float(b) else a // b


def _mod(trace: CaptureTrace, a: Number, b: Number) -> Number:
    _not_zero(operator.mod, a, b)
    return NotImplemented if is_float(a) or is_float(b) else a % b


def _truediv(trace: CaptureTrace, a: Number, b: Number) -> Number:
    _not_zero(operator.truediv, a, b)
    return a / b


def _not_zero(op: Callable[[object, object], object], a: Number, b: Number) -> None:
    """Raises: ZeroDivisionError, as Python says it of these."""
    if b == 0:
        op(at_hand(a), at_hand(b))


def _pow(trace: CaptureTrace, a: Number, b: Number) -> Number:
    if not is_float(a) and not is_float(b):
        if b >= 0:
            return a**b if type(b) is int and b <= _LARGEST_POWER else NotImplemented
        if a == 0:
            _ = 0 ** at_hand(b)
        return NotImplemented
    if a > 0:
        return a**b if is_symbolic(a) else NotImplemented
    return NotImplemented if type(b) is float and b.is_integer() and b >= 0 else _only(trace, a) ** b


def _only(trace: CaptureTrace, number: Number) -> object:
    """The value at hand of a number that must have it from now on."""
    if type(number) is SizeFloat:
        return trace.fix_float(number)
    if type(number) is Size:
        assert number == number.value
    return at_hand(number)


def _abs(trace: CaptureTrace, a: Number) -> Number:
    # abs(-0.0) is not -0.0, though that is no less than 0.0.
    return NotImplemented if is_float(a) else abs(a)


def _extreme(is_max: bool) -> Callable[..., Number]:
    def extreme(trace: CaptureTrace, *numbers: Number) -> Number:
        if any(map(is_float, numbers)):
            return NotImplemented
        best = numbers[0]
        for number in numbers[1:]:
            p, q = trace.poly_of(best), trace.poly_of(number)
            is_less, is_more = (trace.decide("<=", terms.add(a, b, -1)) for a, b in ((p, q), (q, p)))
            if is_less is not True and is_more is not True:
                return NotImplemented
            if is_less is not is_more and (is_less is True) is is_max:
                best = number
        return best

    return extreme


def _int(trace: CaptureTrace, a: Number) -> Number:
    return _rounded(trace, "trunc", a)


def _float(trace: CaptureTrace, a: Number) -> Number:
    return a * 1.0 if type(a) is Size else a


def _bool(trace: CaptureTrace, a: Number) -> bool:
    return bool(a)


def _rounded(trace: CaptureTrace, function: str, a: Number) -> Number:
    """A float as an int; quotients of numbers that are exact enough, without floats."""
    if not is_float(a):
        return a
    ratio = _ratio(trace, a)
    if ratio is not None and _is_exact(trace, ratio[0]):
        above, below = ratio
        if function == "ceil":
            return -((-above) // below)
        if function == "floor" or (function == "trunc" and trace.decide("<=", trace.poly_of(-above))):
            return above // below
    # What is infinite, or no number, raises also where nobody uses the result.
    if not (a >= -_MOST and a <= _MOST):
        return NotImplemented
    call: dict[str, Callable[[Any], Any]] = {
        "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "round": round,
    }  # fmt: skip
    return call[function](a)


def _is_exact(trace: CaptureTrace, above: Any) -> bool:
    """Whether a numerator is no more than `_MOST_ABOVE`: sizes are, numbers are asked."""
    if all(math.isfinite(end) for end in trace.bounds(trace.poly_of(above))):
        return True
    return bool(above <= _MOST_ABOVE and above >= -_MOST_ABOVE)


def _ratio(trace: CaptureTrace, a: SizeFloat) -> tuple[Any, int] | None:
    """(n, d) where a float is n / d before it is rounded."""
    match a.expr:
        case ("size", p):
            return trace.number(p), 1
        case ("/", ("size", p), ("size", q)) if terms.is_constant(q) and 0 < terms.constant_of(q) < _EXACT:
            return trace.number(p), terms.constant_of(q)
        case ("*", ("size", p), ("float", c)) | ("*", ("float", c), ("size", p)):
            above, below = c.as_integer_ratio()
            if 0 < below < _EXACT and abs(above) < _EXACT:
                return trace.number(p) * above, below
        case ("/", ("size", p), ("float", c)):
            above, below = c.as_integer_ratio()
            if below == 1 and 0 < above < _EXACT:
                return trace.number(p), above
    return None


def call(trace: CaptureTrace, name: str, *numbers: Number) -> Number:
    """A function of `math` or a method of a number by its name."""
    function = name.removeprefix("math.")
    if name.startswith("math.") and function in ("floor", "ceil", "trunc") and len(numbers) == 1:
        return _rounded(trace, function, numbers[0])
    return compute(trace, "py.call", *numbers, literals=(name,))


_RULES: dict[str, Callable[..., Number]] = {
    "py.floordiv": _floordiv, "py.mod": _mod, "py.truediv": _truediv, "py.pow": _pow, "py.abs": _abs,
    "py.min": _extreme(False), "py.max": _extreme(True), "py.int": _int, "py.float": _float, "py.bool": _bool,
    "py.round": lambda trace, a, *digits: NotImplemented if digits else _rounded(trace, "round", a),
}  # fmt: skip
