"""Element by element: arithmetic, comparisons, bits, selection, casts, in torch's promotion and rounding.

Inside one operator torch computes the half types in f32 and rounds once; so does each formula here. `fma` stands where
torch's own kernel has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from smelt.codegen.fusion.index import Idx, Unfusible
from smelt.codegen.fusion.pull import Pull, Rule
from smelt.codegen.fusion.rules.promote import LARGEST, NUMBER_TYPES, common_dtype, is_float, math_dtype
from smelt.codegen.kernels.nest import Const, Expr
from smelt.codegen.kernels.operations import INTEGERS, KERNEL_OPS
from smelt.ir import FLOAT, INT, Arg, DType, Node, TensorType, Value
from smelt.ir.python_operators import COMPARISON_NAMES
from smelt.ir.sizes import equals, is_symbolic

Formula = Callable[[Pull, DType, Expr], Expr]
"""The result for an element, both in the dtype of the computation."""


def result_dtype(node: Node, k: int = 0) -> DType:
    """The dtype of a node's result."""
    type_ = node.results[k].type
    assert isinstance(type_, TensorType)
    return type_.dtype


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise Unfusible(why)


# --- one operand


def unary(name: str, argument: str = "self") -> Rule:
    """A function of `OPS` of a floating-point number; integers are converted first."""

    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        out = result_dtype(node)
        _require(is_float(out), f"{node.op} of {out}")
        x = p.operand(p.call(node)[argument], idx, out)
        m = math_dtype(out)
        return p.cast(p.op(name, m, p.cast(x, m)), out)

    return rule


def formula(f: Formula, argument: str = "self") -> Rule:
    """A formula in the dtype of the computation, of an operand in the result's dtype."""

    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        out = result_dtype(node)
        _require(is_float(out), f"{node.op} of {out}")
        m = math_dtype(out)
        return p.cast(f(p, m, p.cast(p.operand(p.call(node)[argument], idx, out), m)), out)

    return rule


def _rounding(name: str) -> Rule:
    """floor and its like: integers stay."""

    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        out = result_dtype(node)
        x = p.operand(p.call(node)["self"], idx, out)
        return x if not is_float(out) else p.cast(p.op(name, math_dtype(out), p.cast(x, math_dtype(out))), out)

    return rule


def _numeric(name: str) -> Rule:
    """abs, neg, sign: of floats and integers."""

    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        out = result_dtype(node)
        _require(out is not DType.BOOL, f"{node.op} of bool")
        x = p.operand(p.call(node)["self"], idx, out)
        if out is DType.U8 and name in ("abs", "sign"):
            return x if name == "abs" else p.cast(p.op("ne", DType.BOOL, x, Const(0, out)), out)
        m = math_dtype(out)
        return p.cast(p.op(name, m, p.cast(x, m)), out)

    return rule


def _test(name: str) -> Rule:
    """isnan, isinf, isfinite: False or True of integers."""

    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        x = _plain(p, p.call(node)["self"], idx)
        if not is_float(x.dtype):
            return Const(name == "isfinite", DType.BOOL)
        x = p.cast(x, math_dtype(x.dtype))
        if name != "isfinite":
            return p.op(name, DType.BOOL, x)
        either = p.op("or", DType.BOOL, p.op("isnan", DType.BOOL, x), p.op("isinf", DType.BOOL, x))
        return p.op("not", DType.BOOL, either)

    return rule


def _plain(p: Pull, arg: Any, idx: Idx) -> Expr:
    """An operand in its own dtype."""
    assert isinstance(arg, Value) and isinstance(arg.type, TensorType)
    return p.operand(arg, idx, arg.type.dtype)


def _truth(p: Pull, arg: Any, idx: Idx) -> Expr:
    x = _plain(p, arg, idx)
    return x if x.dtype is DType.BOOL else p.op("ne", DType.BOOL, x, p.const(0, x.dtype))


def _logical_not(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    return p.op("not", DType.BOOL, _truth(p, p.call(node)["self"], idx))


def _bitwise_not(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    return p.op("not", result_dtype(node), _plain(p, p.call(node)["self"], idx))


def _nan_to_num(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    x = _plain(p, call["self"], idx)
    if not is_float(out):
        return x
    m = math_dtype(out)
    x, largest = p.cast(x, m), LARGEST[out]
    nan, high, low = (
        p.cast(p.const(default if call[n] is None else call[n], out), m)
        for n, default in (("nan", 0.0), ("posinf", largest), ("neginf", -largest))
    )
    is_high = p.op("eq", DType.BOOL, x, p.const(math.inf, m))
    is_low = p.op("eq", DType.BOOL, x, p.const(-math.inf, m))
    found = p.op("select", m, is_high, high, p.op("select", m, is_low, low, x))
    return p.cast(p.op("select", m, p.op("isnan", DType.BOOL, x), nan, found), out)


# --- two operands


def _pair(p: Pull, node: Node, idx: Idx, names: tuple[str, str] = ("self", "other")) -> tuple[Arg, Arg]:
    call = p.call(node)
    return call[names[0]], call[names[1]]


def _is_scalar(arg: Arg) -> bool:
    """Whether torch's kernels for half types take an operand as a number of f32: a number or a 0-d tensor."""
    return not isinstance(arg, Value) or not isinstance(arg.type, TensorType) or arg.type.rank == 0


def _in_math(p: Pull, arg: Arg, idx: Idx, out: DType, *, wide_number: bool = False) -> Expr:
    """An operand rounded to the result's dtype, then widened to that of the computation.

    wide_number: a number is not rounded to a half type first.
    """
    m = math_dtype(out)
    if wide_number and _is_scalar(arg):
        return p.operand(arg, idx, m)
    return p.cast(p.operand(arg, idx, out), m)


def _sum(sign: int, first: str = "self", second: str = "other") -> Rule:
    """first + sign * alpha * second; for bools a disjunction."""

    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        call, out = p.call(node), result_dtype(node)
        alpha = call.get("alpha", 1)
        if isinstance(alpha, Value):
            return _scaled_sum(p, sign, (call[first], call[second], alpha), idx, out)
        _require(isinstance(alpha, (int, float)), "its alpha is no number")
        if out is DType.BOOL:
            _require(sign == 1 and alpha in (True, 1), "alpha beside bools")
            return p.op("or", out, p.operand(call[first], idx, out), p.operand(call[second], idx, out))
        m = math_dtype(out)
        a, b = _in_math(p, call[first], idx, out), _in_math(p, call[second], idx, out)
        if equals(alpha, 1):
            return p.cast(p.op("add" if sign == 1 else "sub", m, a, b), out)
        if out in INTEGERS:
            factor = p.const(alpha, out)
            return p.op("add" if sign == 1 else "sub", out, a, p.op("mul", out, b, factor))
        # Eager's vectors of a half type multiply by a number of that type.
        return p.cast(p.op("fma", m, b, p.cast(p.const(sign * alpha, out), m), a), out)

    return rule


def _scaled_sum(p: Pull, sign: int, args: tuple[Arg, Arg, Value], idx: Idx, out: DType) -> Expr:
    """The same for an alpha of the run: where it is 1, a multiplication by it changes nothing."""
    first, second, alpha = args
    _require(out is not DType.BOOL and alpha.type in (INT, FLOAT), "alpha beside bools")
    m = math_dtype(out)
    a, b = _in_math(p, first, idx, out), _in_math(p, second, idx, out)
    if out in INTEGERS:
        return p.op("add" if sign == 1 else "sub", out, a, p.op("mul", out, b, p.scalar(alpha, out)))
    factor = p.scalar(alpha, m)
    if sign == -1:
        # As an int where it is one: -0 is 0 there.
        factor = p.op("neg", m, factor) if alpha.type == FLOAT else p.cast(p.op("neg", DType.I64, p.number(alpha)), m)
    if m is not out:
        factor = p.cast(p.cast(factor, out), m)
    return p.cast(p.op("fma", m, b, factor, a), out)


def _mul(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    a, b = _pair(p, node, idx)
    out = result_dtype(node)
    if out is DType.BOOL:
        return p.op("and", out, p.operand(a, idx, out), p.operand(b, idx, out))
    m = math_dtype(out)
    wide = out is not m
    left, right = (_in_math(p, x, idx, out, wide_number=wide) for x in (a, b))
    return p.cast(p.op("mul", m, left, right), out)


_WITHIN = "eager rounds 16-bit floats within it, in vectors differently than one by one"


def _div(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    a, b = _pair(p, node, idx)
    out = result_dtype(node)
    _require(is_float(out), "a quotient of integers")
    mode = p.call(node).get("rounding_mode")
    m = math_dtype(out)
    _require(mode is None or out is m, _WITHIN)
    left, right = _in_math(p, a, idx, out), _in_math(p, b, idx, out, wide_number=True)
    quotient = p.op("floordiv" if mode == "floor" else "div", m, left, right)
    return p.cast(p.op("trunc", m, quotient) if mode == "trunc" else quotient, out)


def _div_mode(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    mode, out = p.call(node).get("rounding_mode"), result_dtype(node)
    return (
        _integer_division(p, node, idx, "idiv" if mode == "trunc" else "floordiv")
        if out in INTEGERS
        else _div(p, node, idx, k)
    )


def _floor_divide(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    out = result_dtype(node)
    if out in INTEGERS:
        return _integer_division(p, node, idx, "floordiv")
    a, b = _pair(p, node, idx)
    m = math_dtype(out)
    _require(out is m, _WITHIN)
    left, right = _in_math(p, a, idx, out), _in_math(p, b, idx, out, wide_number=True)
    return p.cast(p.op("floordiv", m, left, right), out)


def _integer_division(p: Pull, node: Node, idx: Idx, name: str) -> Expr:
    """A division that the kernel refuses where torch raises: by zero."""
    a, b = _pair(p, node, idx)
    out = result_dtype(node)
    _require(out in INTEGERS, f"{node.op} of {out}")
    _require(isinstance(b, Value) or (isinstance(b, (int, float)) and b != 0), "it divides by zero")
    # Where nothing is loaded a zero stands, which must not be refused.
    _require(not p.is_masked or not isinstance(b, Value), "its divisor is not there everywhere")
    return p.op(name, out, p.operand(a, idx, out), p.operand(b, idx, out))


def _modulo(name: str) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        out = result_dtype(node)
        if out in INTEGERS:
            return _integer_division(p, node, idx, name)
        _require(is_float(out), f"{node.op} of {out}")
        a, b = _pair(p, node, idx)
        m = math_dtype(out)
        return p.cast(p.op(name, m, _in_math(p, a, idx, out), _in_math(p, b, idx, out)), out)

    return rule


def _float_pair(name: str, names: tuple[str, str] = ("self", "other")) -> Rule:
    """A function of `OPS` of two floats."""

    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        out = result_dtype(node)
        _require(is_float(out), f"{node.op} of {out}")
        a, b = _pair(p, node, idx, names)
        m = math_dtype(out)
        return p.cast(p.op(name, m, _in_math(p, a, idx, out), _in_math(p, b, idx, out)), out)

    return rule


def _extreme(name: str) -> Rule:
    """maximum, minimum, fmax, fmin, of floats, integers and (as or, and) bools."""

    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        out = result_dtype(node)
        a, b = _pair(p, node, idx)
        if out is DType.BOOL:
            both = "or" if name in ("max", "fmax") else "and"
            return p.op(both, out, p.operand(a, idx, out), p.operand(b, idx, out))
        m = math_dtype(out)
        own = name.removeprefix("f") if out in INTEGERS else name
        if name in ("fmax", "fmin") and out is DType.BF16:
            # Of equals, zeros of two signs, torch takes the second for this dtype alone.
            a, b = b, a
        return p.cast(p.op(own, m, _in_math(p, a, idx, out), _in_math(p, b, idx, out)), out)

    return rule


def _comparison(name: str) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        a, b = _pair(p, node, idx)
        common = common_dtype((a, b))
        return p.op(name, DType.BOOL, _in_math(p, a, idx, common), _in_math(p, b, idx, common))

    return rule


def _logical(name: str) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        a, b = _pair(p, node, idx)
        return p.op(name, DType.BOOL, _truth(p, a, idx), _truth(p, b, idx))

    return rule


def _bitwise(name: str) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        a, b = _pair(p, node, idx)
        out = result_dtype(node)
        return p.op(name, out, p.operand(a, idx, out), p.operand(b, idx, out))

    return rule


def _shift(name: str) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        a, b = _pair(p, node, idx)
        out = result_dtype(node)
        _require(out in INTEGERS, "a shift of what is no integer multiplies by a power of two")
        is_within = isinstance(b, Value) or (type(b) is int and 0 <= b < 8 * out.itemsize)
        _require(is_within, "a shift by a number that is no count of bits")
        return p.op(name, out, p.operand(a, idx, out), p.operand(b, idx, out))

    return rule


def _power(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    """x ** number with torch's own shortcuts."""
    call, out = p.call(node), result_dtype(node)
    exponent = call["exponent"]
    if isinstance(exponent, Value):
        return _power_of_run(p, p.operand(call["self"], idx, out), exponent, out)
    _require(isinstance(exponent, (int, float)) and not is_symbolic(exponent), "its exponent is no number")
    x = p.operand(call["self"], idx, out)
    if out in INTEGERS:
        _require(exponent in (1, 2, 3) and not isinstance(exponent, bool), "a power of integers")
        found = x
        for _ in range(int(exponent) - 1):
            found = p.op("mul", out, found, x)
        return found
    m = math_dtype(out)
    x = p.cast(x, m)
    one = p.const(1.0, m)
    match float(exponent):
        case 1.0:
            found = x
        case 0.0:
            found = one
        case 2.0:
            found = p.op("mul", m, x, x)
        case 3.0:
            found = p.op("mul", m, p.cast(p.cast(p.op("mul", m, x, x), out), m), x)
        case 0.5 if out is not DType.F16:
            found = p.op("sqrt", m, x)
        case -0.5 if out is not DType.F16:
            found = p.op("rsqrt", m, x)
        case -1.0:
            found = p.op("recip", m, x)
        case -2.0:
            found = p.op("recip", m, p.cast(p.cast(p.op("mul", m, x, x), out), m))
        case _:
            found = p.op("pow", m, x, p.cast(p.const(exponent, out), m))
    return p.cast(found, out)


def _power_of_run(p: Pull, x: Expr, exponent: Value, out: DType) -> Expr:
    """x ** number of the run, by the same shortcuts."""
    _require(is_float(out) and exponent.type in NUMBER_TYPES, f"a power of {out}")
    m = math_dtype(out)
    x, e = p.cast(x, m), p.cast(p.scalar(exponent, out), m)
    if out is DType.F32:
        # torch computes with the number in f64: whether it is odd, or not quite 0, must not be lost.
        wide = p.cast(p.number(exponent), DType.F64)
        size = p.op("abs", DType.F64, wide)
        usual = p.op("and", DType.BOOL, *(
            p.op(name, DType.BOOL, size, p.const(limit, DType.F64)) for name, limit in (("gt", 1e-30), ("lt", 2.0**24))
        ))  # fmt: skip
        exact = p.op("eq", DType.BOOL, p.cast(e, DType.F64), wide)
        e = p.unless_refused(p.op("or", DType.BOOL, usual, exact), e)
    square = p.op("mul", m, x, x)
    narrow = p.cast(p.cast(square, out), m)
    ways = [(1.0, x), (0.0, p.const(1.0, m)), (2.0, square), (3.0, p.op("mul", m, narrow, x))]
    if out is not DType.F16:
        ways += [(0.5, p.op("sqrt", m, x)), (-0.5, p.op("rsqrt", m, x))]
    ways += [(-1.0, p.op("recip", m, x)), (-2.0, p.op("recip", m, narrow))]
    found = p.op("pow", m, x, e)
    for special, value in ways:
        found = p.op("select", m, p.op("eq", DType.BOOL, e, p.const(special, m)), value, found)
    return p.cast(found, out)


# --- three operands


def _addcmul(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    m = math_dtype(out)
    a, b, c = (_in_math(p, call[n], idx, out) for n in ("self", "tensor1", "tensor2"))
    value = call["value"]
    if out in INTEGERS:
        scaled = b if _is_one(value) else p.op("mul", out, b, p.scalar(value, out))
        return p.op("add", out, a, p.op("mul", out, scaled, c))
    scaled = b if _is_one(value) else p.op("mul", m, p.scalar(value, m), b)
    return p.cast(p.op("fma", m, scaled, c, a), out)


def _is_one(factor: Arg) -> bool:
    """Whether a factor changes nothing, as far as is known."""
    return not isinstance(factor, Value) and factor == 1


def _addcdiv(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    _require(is_float(out), "a quotient of integers")
    m = math_dtype(out)
    a, b, c = (_in_math(p, call[n], idx, out) for n in ("self", "tensor1", "tensor2"))
    value = call["value"]
    scaled = b if _is_one(value) else p.op("mul", m, p.scalar(value, m), b)
    return p.cast(p.op("add", m, a, p.op("div", m, scaled, c)), out)


def _lerp(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    """start + w (end - start), counted from the nearer end."""
    call, out = p.call(node), result_dtype(node)
    _require(is_float(out), f"{node.op} of {out}")
    m = math_dtype(out)
    start, end = _in_math(p, call["self"], idx, out), _in_math(p, call["end"], idx, out)
    weight = call["weight"]
    way = p.op("sub", m, end, start)
    if not isinstance(weight, Value):
        w = p.const(weight, m)
        if abs(w.value) < 0.5:
            return p.cast(p.op("fma", m, w, way, start), out)
        return p.cast(p.op("fma", m, p.op("sub", m, w, p.const(1.0, m)), way, end), out)
    at = p.scalar(weight, m) if weight.type in NUMBER_TYPES else _in_math(p, weight, idx, out)
    small = p.op("lt", DType.BOOL, p.op("abs", m, at), p.const(0.5, m))
    rest = p.op("sub", m, at, p.const(1.0, m))
    factor, base = p.op("select", m, small, at, rest), p.op("select", m, small, start, end)
    return p.cast(p.op("fma", m, factor, way, base), out)


def _where(yes: str, no: str) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        call, out = p.call(node), result_dtype(node)
        condition = _plain(p, call["condition"], idx)
        _require(condition.dtype is DType.BOOL, "its condition is not bool")
        picked, other = (
            p.scalar(arg, out) if not isinstance(arg, Value) or arg.type in NUMBER_TYPES else p.operand(arg, idx, out)
            for arg in (call[yes], call[no])
        )
        return p.op("select", out, condition, picked, other)

    return rule


def _masked_fill(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    mask = _plain(p, call["mask"], idx)
    _require(mask.dtype is DType.BOOL, "its mask is not bool")
    value = call["value"]
    if isinstance(value, Value):
        filler = p.scalar(value, out) if value.type in NUMBER_TYPES else p.operand(value, idx[:0], out)
    else:
        filler = p.const(value, out)
    return p.op("select", out, mask, filler, p.operand(call["self"], idx, out))


def clamped(p: Pull, m: DType, x: Expr, low: Expr | None, high: Expr | None) -> Expr:
    """x between numbers that are no NaN; NaN stays, and where low > high it is high."""
    if low is not None:
        x = p.op("select", m, p.op("lt", DType.BOOL, x, low), low, x)
    if high is not None:
        x = p.op("select", m, p.op("gt", DType.BOOL, x, high), high, x)
    return x


def _clamp(low: str, high: str) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        call, out = p.call(node), result_dtype(node)
        m = math_dtype(out)
        limits: list[Expr | None] = []
        of_run: list[Expr] = []
        for name in (low, high):
            limit = call[name] if name else None
            _require(not isinstance(limit, float) or not math.isnan(limit), "a bound is NaN")
            limits.append(None if limit is None else p.cast(p.scalar(limit, out), m))
            of_run += [p.number(limit)] if isinstance(limit, Value) and limits[-1] is not None else []
        found = p.cast(clamped(p, m, _in_math(p, call["self"], idx, out), limits[0], limits[1]), out)
        for number in of_run if is_float(out) else ():
            # A NaN among the bounds is the answer.
            if number.dtype is DType.F64:
                found = p.op("select", out, p.op("isnan", DType.BOOL, number), p.const(math.nan, out), found)
        return found

    return rule


def _clamp_tensor(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    m = math_dtype(out)
    x = _in_math(p, call["self"], idx, out)
    if call["min"] is not None:
        x = p.op("max", m, x, _in_math(p, call["min"], idx, out))
    if call["max"] is not None:
        x = p.op("min", m, x, _in_math(p, call["max"], idx, out))
    return p.cast(x, out)


# --- copies and casts


def _same(argument: str = "self") -> Rule:
    """The operand itself, in the result's dtype: copies, casts, detach."""

    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        return p.operand(p.call(node)[argument], idx, result_dtype(node))

    return rule


def _mse(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    _require(call["reduction"] == 0 and is_float(out), "it is averaged")
    m = math_dtype(out)
    d = p.op("sub", m, _in_math(p, call["self"], idx, out), _in_math(p, call["target"], idx, out))
    d = p.cast(p.cast(d, out), m)  # eager rounds the difference, too
    return p.cast(p.op("mul", m, d, d), out)


def _table() -> dict[str, Rule]:
    rules: dict[str, Rule] = {f"{op.name}.default": unary(op.name) for op in KERNEL_OPS if op.is_float_function}
    rules |= {f"{n}.default": _rounding(n) for n in ("floor", "ceil", "round", "trunc")}
    rules |= {f"{n}.default": _numeric(n) for n in ("abs", "neg", "sign")}
    rules |= {f"{n}.default": _test(n) for n in ("isnan", "isinf", "isfinite")}
    rules |= {f"{n}.{o}": _comparison(n) for n in COMPARISON_NAMES for o in ("Tensor", "Scalar")}
    rules |= {f"logical_{n}.default": _logical(n) for n in ("and", "or", "xor")}
    rules |= {f"bitwise_{n}.{o}": _bitwise(n) for n in ("and", "or", "xor") for o in ("Tensor", "Scalar")}
    for op, names in (("shl", ("bitwise_left_shift", "__lshift__")), ("shr", ("bitwise_right_shift", "__rshift__"))):
        rules |= {f"{n}.{o}": _shift(op) for n in names for o in ("Tensor", "Scalar", "Tensor_Scalar")}
    rules |= {f"{n}.{o}": _sum(1) for n, o in (("add", "Tensor"), ("add", "Scalar"))}
    rules |= {f"sub.{o}": _sum(-1) for o in ("Tensor", "Scalar")}
    rules |= {f"rsub.{o}": _sum(-1, "other", "self") for o in ("Tensor", "Scalar")}
    rules |= {f"mul.{o}": _mul for o in ("Tensor", "Scalar")}
    rules |= {f"div.{o}": _div for o in ("Tensor", "Scalar")}
    rules |= {f"div.{o}": _div_mode for o in ("Tensor_mode", "Scalar_mode")}
    rules |= {f"floor_divide.{o}": _floor_divide for o in ("default", "Scalar")}
    rules |= {f"remainder.{o}": _modulo("rem") for o in ("Tensor", "Scalar", "Scalar_Tensor")}
    rules |= {f"fmod.{o}": _modulo("fmod") for o in ("Tensor", "Scalar")}
    rules |= {
        "frac.default": unary("frac"),
        "reciprocal.default": unary("recip"),
        "logical_not.default": _logical_not,
        "bitwise_not.default": _bitwise_not,
        "nan_to_num.default": _nan_to_num,
        "atan2.default": _float_pair("atan2"),
        "hypot.default": _float_pair("hypot"),
        "copysign.Tensor": _float_pair("copysign"),
        "pow.Tensor_Tensor": _float_pair("pow", ("self", "exponent")),
        "pow.Scalar": _float_pair("pow", ("self", "exponent")),
        "pow.Tensor_Scalar": _power,
        "maximum.default": _extreme("max"),
        "minimum.default": _extreme("min"),
        "fmax.default": _extreme("fmax"),
        "fmin.default": _extreme("fmin"),
        "clamp.default": _clamp("min", "max"),
        "clamp_min.default": _clamp("min", ""),
        "clamp_max.default": _clamp("", "max"),
        "hardtanh.default": _clamp("min_val", "max_val"),
        "clamp.Tensor": _clamp_tensor,
        "where.self": _where("self", "other"),
        "where.ScalarOther": _where("self", "other"),
        "where.ScalarSelf": _where("self", "other"),
        "where.Scalar": _where("self", "other"),
        "masked_fill.Scalar": _masked_fill,
        "masked_fill.Tensor": _masked_fill,
        "lerp.Scalar": _lerp,
        "lerp.Tensor": _lerp,
        "addcmul.default": _addcmul,
        "addcdiv.default": _addcdiv,
        "mse_loss.default": _mse,
        "copy.default": _same("src"),
    }
    copies = ("clone.default", "contiguous.default", "to.dtype", "to.dtype_layout", "to.device", "to.other",
              "_to_copy.default", "type_as.default", "positive.default", "alias.default", "detach.default",
              "lift_fresh.default")  # fmt: skip
    return rules | {name: _same() for name in copies}


POINTWISE: Mapping[str, Rule] = {f"aten.{name}": rule for name, rule in _table().items()}
