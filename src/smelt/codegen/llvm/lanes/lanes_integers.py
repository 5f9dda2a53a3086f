"""Integer and bool operations on vectors, as torch means them.

Invariant: no operand makes the processor trap: division by zero is reported to `on_fail`, and the least integer divided
by -1 wraps. Narrow integers divide as doubles, which is exact for 32 bits and has vector instructions.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes.lanes_types import register_type, type_suffix, vector_type
from smelt.codegen.llvm.text import FunctionText
from smelt.diag import InternalError
from smelt.ir import DType
from smelt.ir.python_operators import COMPARISON_NAMES

_SIMPLE = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_ON_BOOL = {"add": "or", "mul": "and", "max": "or", "min": "and", "and": "and", "or": "or", "xor": "xor"}
_EQUALITY = ("eq", "ne")
_SIGNED, _UNSIGNED = (
    {name: name if name in _EQUALITY else f"{sign}{name}" for name in COMPARISON_NAMES} for sign in "su"
)


class LaneIntegers:
    """Operations on vectors of `lanes` integers or bools."""

    def __init__(self, fn: FunctionText, isa: Isa, lanes: int, on_fail: Callable[[str], None] | None) -> None:
        self.fn, self.isa, self.lanes, self._on_fail = fn, isa, lanes, on_fail
        self._mask = vector_type("i1", lanes)

    def emit_bool(self, op: str, args: list[str]) -> str:
        """An operation on bools."""
        if op in _ON_BOOL:
            return self.fn.let(f"{_ON_BOOL[op]} {self._mask} {args[0]}, {args[1]}")
        if op == "not":
            return self.fn.let(f"xor {self._mask} {args[0]}, {self._const('i1', 'true')}")
        return self.fn.let(f"icmp {_UNSIGNED[op]} {self._mask} {args[0]}, {args[1]}")

    def emit(self, op: str, dtype: DType, args: list[str]) -> str:
        """An operation on integers of a dtype."""
        element = register_type(dtype)
        type_ = vector_type(element, self.lanes)
        unsigned = dtype is DType.U8
        if op in _SIMPLE:
            return self.fn.let(f"{_SIMPLE[op]} {type_} {args[0]}, {args[1]}")
        if op in _SIGNED:
            return self.fn.let(f"icmp {(_UNSIGNED if unsigned else _SIGNED)[op]} {type_} {args[0]}, {args[1]}")
        if op in ("min", "max"):
            return self._intrinsic(f"{'u' if unsigned else 's'}{op}", element, args)
        if op in ("shl", "shr"):
            return self._shift(op, dtype, args)
        if op in ("idiv", "floordiv", "rem", "fmod"):
            return self._divide(op, dtype, args)
        match op:
            case "neg":
                return self.fn.let(f"sub {type_} {self._zero()}, {args[0]}")
            case "not":
                return self.fn.let(f"xor {type_} {args[0]}, {self._const(element, '-1')}")
            case "abs":
                return args[0] if unsigned else self._abs(element, args[0])
            case "sign":
                return self._sign(element, unsigned, args[0])
        raise InternalError(f"no vector code for {op} of {dtype}")

    # --- parts

    def _zero(self) -> str:
        return "0" if self.lanes == 1 else "zeroinitializer"

    def _const(self, element: str, literal: str) -> str:
        return literal if self.lanes == 1 else f"splat ({element} {literal})"

    def _intrinsic(self, name: str, element: str, args: list[str], extra: str = "") -> str:
        type_, suffix = vector_type(element, self.lanes), type_suffix(element, self.lanes)
        types = [type_] * len(args) + (["i1"] if extra else [])
        self.fn.declare(f"declare {type_} @llvm.{name}.{suffix}({', '.join(types)})")
        inside = ", ".join([*(f"{type_} {a}" for a in args), *([extra] if extra else [])])
        return self.fn.let(f"call {type_} @llvm.{name}.{suffix}({inside})")

    def _abs(self, element: str, a: str) -> str:
        return self._intrinsic("abs", element, [a], "i1 false")

    def _sign(self, element: str, unsigned: bool, a: str) -> str:
        type_ = vector_type(element, self.lanes)
        positive = self.fn.let(f"icmp {'ugt' if unsigned else 'sgt'} {type_} {a}, {self._zero()}")
        one = self.fn.let(f"zext {self._mask} {positive} to {type_}")
        if unsigned:
            return one
        negative = self.fn.let(f"icmp slt {type_} {a}, {self._zero()}")
        return self.fn.let(f"select {self._mask} {negative}, {type_} {self._const(element, '-1')}, {type_} {one}")

    def _shift(self, op: str, dtype: DType, args: list[str]) -> str:
        """By a negative count or by the width or more: 0, or the sign for an arithmetic shift right."""
        element = register_type(dtype)
        type_, width = vector_type(element, self.lanes), 8 * dtype.itemsize
        inside = self.fn.let(f"icmp ult {type_} {args[1]}, {self._const(element, str(width))}")
        arithmetic = op == "shr" and dtype is not DType.U8
        spare = self._const(element, str(width - 1)) if arithmetic else self._zero()
        by = self.fn.let(f"select {self._mask} {inside}, {type_} {args[1]}, {type_} {spare}")
        name = "shl" if op == "shl" else ("ashr" if arithmetic else "lshr")
        shifted = self.fn.let(f"{name} {type_} {args[0]}, {by}")
        if arithmetic:
            return shifted
        return self.fn.let(f"select {self._mask} {inside}, {type_} {shifted}, {type_} {self._zero()}")

    # --- division

    def _divide(self, op: str, dtype: DType, args: list[str]) -> str:
        a, b = args
        element = register_type(dtype)
        type_ = vector_type(element, self.lanes)
        unsigned = dtype is DType.U8
        is_zero = self.fn.let(f"icmp eq {type_} {b}, {self._zero()}")
        if self._on_fail is not None:
            self._on_fail(is_zero)
        divisor = self.fn.let(f"select {self._mask} {is_zero}, {type_} {self._const(element, '1')}, {type_} {b}")
        quotient = self._quotient(a, divisor, element, unsigned)
        product = self.fn.let(f"mul {type_} {quotient}, {divisor}")
        rest = self.fn.let(f"sub {type_} {a}, {product}")
        if op == "idiv" or (op == "floordiv" and unsigned):
            return quotient
        if op == "fmod" or unsigned:
            return rest
        # The rest has the dividend's sign; rounding down turns it to the divisor's.
        some = self.fn.let(f"icmp ne {type_} {rest}, {self._zero()}")
        mixed = self.fn.let(f"xor {type_} {rest}, {divisor}")
        differ = self.fn.let(f"icmp slt {type_} {mixed}, {self._zero()}")
        turn = self.fn.let(f"and {self._mask} {some}, {differ}")
        if op == "rem":
            by = self.fn.let(f"select {self._mask} {turn}, {type_} {divisor}, {type_} {self._zero()}")
            return self.fn.let(f"add {type_} {rest}, {by}")
        return self.fn.let(f"add {type_} {quotient}, {self.fn.let(f'sext {self._mask} {turn} to {type_}')}")

    def _quotient(self, a: str, b: str, element: str, unsigned: bool) -> str:
        """a / b rounded towards zero, b not zero."""
        type_ = vector_type(element, self.lanes)
        if element != "i64":
            double, middle = vector_type("double", self.lanes), vector_type("i32", self.lanes)
            convert = "uitofp" if unsigned else "sitofp"
            floats = [self.fn.let(f"{convert} {type_} {x} to {double}") for x in (a, b)]
            whole = self.fn.let(f"fptosi {double} {self.fn.let(f'fdiv {double} {floats[0]}, {floats[1]}')} to {middle}")
            return whole if element == "i32" else self.fn.let(f"trunc {middle} {whole} to {type_}")
        # The least integer by -1 would trap: that quotient is a wrapped negation.
        minus = self.fn.let(f"icmp eq {type_} {b}, {self._const(element, '-1')}")
        safe = self.fn.let(f"select {self._mask} {minus}, {type_} {self._const(element, '1')}, {type_} {b}")
        plain = self.fn.let(f"sdiv {type_} {a}, {safe}")
        turned = self.fn.let(f"sub {type_} {self._zero()}, {a}")
        return self.fn.let(f"select {self._mask} {minus}, {type_} {turned}, {type_} {plain}")
