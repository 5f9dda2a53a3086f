"""One operation of the loop-nest language on vectors: torch's meaning of it, in every dtype.

In registers bool is `i1`, f16 and bf16 are `float` holding a number of the narrow type (`lanes_types.register_type`),
all else has its own type. Invariant: `SUPPORTED` names exactly what `emit` takes; a name outside raises.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes_bits import LaneBits, to_bfloat, to_half
from smelt.codegen.llvm.lanes_integers import LaneIntegers
from smelt.codegen.llvm.lanes_modulo import LaneModulo
from smelt.codegen.llvm.lanes_types import Arith, float_literal, has_fma, register_type, vector_type
from smelt.codegen.llvm.text import FunctionText
from smelt.codegen.llvm.vmath import VectorMath
from smelt.codegen.llvm.vmath_inverse import InverseMath
from smelt.codegen.llvm.vmath_trig import Trigonometry
from smelt.diag import InternalError
from smelt.ir import DType

FLOATS: Final = (DType.F16, DType.BF16, DType.F32, DType.F64)
INTEGERS: Final = (DType.U8, DType.I8, DType.I16, DType.I32, DType.I64)
DTYPES: Final = (DType.BOOL, *INTEGERS, *FLOATS)
"""The element types of own kernels."""

_ARITHMETIC = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven"}
_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_EXPONENTIAL = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "erf", "erfc", "tanh",
    "sigmoid", "silu", "gelu", "gelu_tanh", "softplus", "mish", "rsqrt",
)  # fmt: skip
_TRIGONOMETRIC = ("sin", "cos", "tan")
_INVERSE = (
    "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh", "hypot", "pow",
)  # fmt: skip
# Results of these are operands or small numbers, so a narrow type holds them without rounding.
_EXACT = frozenset(
    {"neg", "abs", "sign", "min", "max", "fmin", "fmax", "copysign", "select", "floor", "ceil", "trunc", "round"}
)
_BOOL_OPS = frozenset({"add", "mul", "min", "max", "and", "or", "xor", "not", "select", "cast", *_COMPARE})
_INT_OPS = frozenset(
    {"add", "sub", "mul", "idiv", "floordiv", "rem", "fmod", "neg", "abs", "sign", "min", "max", "and", "or", "xor",
     "not", "shl", "shr", "select", "cast", *_COMPARE}
)  # fmt: skip
_FLOAT_OPS = frozenset(
    {*_ARITHMETIC, *_ROUNDING, *_COMPARE, *_EXPONENTIAL, *_TRIGONOMETRIC, *_INVERSE, "neg", "abs", "sign", "min", "max",
     "fmin", "fmax", "fma", "copysign", "isnan", "isinf", "signbit", "frac", "sqrt", "recip", "select", "cast", "idiv",
     "floordiv", "rem", "fmod"}
)  # fmt: skip
_NEEDS_FMA = frozenset({"fmod", "rem", "floordiv"})

SUPPORTED: Final[frozenset[tuple[str, DType]]] = frozenset(
    {(op, d) for op in _BOOL_OPS for d in (DType.BOOL,)}
    | {(op, d) for op in _INT_OPS for d in INTEGERS}
    | {(op, d) for op in _FLOAT_OPS for d in FLOATS}
    # eager rounds within floordiv of the narrow floats, in ways of its own
    - {("floordiv", d) for d in (DType.F16, DType.BF16)}
)
"""(operation, dtype of its operands); for `select` the dtype chosen from, for `cast` the dtype cast from."""

BOOL_RESULTS: Final = frozenset({*_COMPARE, "isnan", "isinf", "signbit"})
"""Operations whose result is bool whatever their operands are."""


def is_supported(op: str, operand: DType, isa: Isa) -> bool:
    """Whether a kernel for this instruction set can do the operation on operands of a dtype."""
    if not has_fma(isa) and ((op in _NEEDS_FMA and operand.is_floating) or (op == "pow" and operand is DType.F64)):
        return False
    return (op, operand) in SUPPORTED


class ExprEmitter:
    """Emits operations on SSA vectors of `lanes` lanes (one lane: scalars).

    on_fail: given an `i1` vector of lanes where the operation refuses its operands (an integer division by zero); it
    has to leave the kernel with `nest.FAILED` if any lane in use is set. Without it such a lane gives 0.
    """

    def __init__(self, fn: FunctionText, isa: Isa, lanes: int, on_fail: Callable[[str], None] | None = None) -> None:
        self.fn, self.isa, self.lanes = fn, isa, lanes
        self._arith = {bits: Arith(fn, isa, lanes, bits) for bits in (32, 64)}
        self._math = {bits: VectorMath(fn, isa, lanes, bits) for bits in (32, 64)}
        self.bits = LaneBits(fn, isa, lanes)
        self.integers = LaneIntegers(fn, isa, lanes, on_fail)

    def type(self, dtype: DType) -> str:
        """The LLVM type of a value of a dtype in registers."""
        return vector_type(register_type(dtype), self.lanes)

    def const(self, value: float | int | bool, dtype: DType) -> str:
        """A number in every lane, rounded to the dtype."""
        element = register_type(dtype)
        if element in ("float", "double"):
            literal = float_literal(_rounded(float(value), dtype), element)
        elif dtype is DType.BOOL:
            literal = "true" if value else "false"
        else:
            literal = str(_wrapped(int(value), dtype))
        return literal if self.lanes == 1 else f"splat ({element} {literal})"

    def splat(self, value: str, dtype: DType) -> str:
        """A scalar in every lane."""
        if self.lanes == 1:
            return value
        element, type_ = register_type(dtype), self.type(dtype)
        one = self.fn.let(f"insertelement {type_} poison, {element} {value}, i64 0")
        return self.fn.let(f"shufflevector {type_} {one}, {type_} poison, <{self.lanes} x i32> zeroinitializer")

    def emit(self, op: str, dtype: DType, args: list[str], operand: DType | None = None) -> str:
        """One operation with a result of `dtype`; `operand` is the operands' dtype where it differs (comparisons of
        numbers, the source of a cast).

        Raises: InternalError if it is not in `SUPPORTED`.
        """
        source = dtype if operand is None else operand
        if (op, source) not in SUPPORTED:
            raise InternalError(f"no vector code for {op} of {source}")
        if op == "cast":
            return self.bits.cast(args[0], source, dtype)
        if op == "select":
            type_ = self.type(dtype)
            mask = vector_type("i1", self.lanes)
            return self.fn.let(f"select {mask} {args[0]}, {type_} {args[1]}, {type_} {args[2]}")
        if source is DType.BOOL:
            return self.integers.emit_bool(op, args)
        if not source.is_floating:
            return self.integers.emit(op, source, args)
        return self._floating(op, source, args)

    def _floating(self, op: str, dtype: DType, args: list[str]) -> str:
        bits = 64 if dtype is DType.F64 else 32
        if op == "idiv" and dtype in (DType.F16, DType.BF16):
            return self._arith[32].rounded("trunc", self.emit("div", dtype, args))
        result = self._float_result(op, bits, args)
        if op in BOOL_RESULTS or op in _EXACT or dtype in (DType.F32, DType.F64):
            return result
        return self.bits.round_to(result, dtype)

    def _float_result(self, op: str, bits: int, args: list[str]) -> str:
        m = self._arith[bits]
        if op in _ARITHMETIC:
            return self.fn.let(f"{_ARITHMETIC[op]} {m.type} {args[0]}, {args[1]}")
        if op in _COMPARE:
            return m.cmp(_COMPARE[op], args[0], args[1])
        if op in _ROUNDING:
            return m.rounded(_ROUNDING[op], args[0])
        if op in _EXPONENTIAL:
            return str(getattr(self._math[bits], op)(*args))
        if op in _TRIGONOMETRIC:
            return str(getattr(Trigonometry(m), op)(*args))
        if op in _INVERSE:
            return str(getattr(InverseMath(self._math[bits]), op)(*args))
        if op in ("fmod", "rem", "floordiv", "idiv"):
            return str(getattr(LaneModulo(m), op)(*args))
        return str(getattr(self, f"_{op}")(m, *args))

    # --- floats

    def _neg(self, m: Arith, a: str) -> str:
        return m.neg(a)

    def _abs(self, m: Arith, a: str) -> str:
        return m.abs(a)

    def _sqrt(self, m: Arith, a: str) -> str:
        return m.sqrt(a)

    def _recip(self, m: Arith, a: str) -> str:
        return m.div(1.0, a)

    def _fma(self, m: Arith, a: str, b: str, c: str) -> str:
        return m.fma(a, b, c)

    def _copysign(self, m: Arith, a: str, b: str) -> str:
        return m.copysign(a, b)

    def _frac(self, m: Arith, a: str) -> str:
        return m.sub(a, m.rounded("trunc", a))

    def _sign(self, m: Arith, a: str) -> str:
        """0 for zeros and NaN."""
        positive = m.select(m.cmp("ogt", a, 0.0), 1.0, 0.0)
        return m.select(m.cmp("olt", a, 0.0), -1.0, positive)

    def _max(self, m: Arith, a: str, b: str) -> str:
        """NaN if either is; the second of equals."""
        return m.select(m.cmp("uno", a, a), a, m.select(m.cmp("ogt", a, b), a, b))

    def _min(self, m: Arith, a: str, b: str) -> str:
        return m.select(m.cmp("uno", a, a), a, m.select(m.cmp("olt", a, b), a, b))

    def _fmax(self, m: Arith, a: str, b: str) -> str:
        """The one that is a number, if only one is; the first of equals."""
        return m.select(m.cmp("uno", a, a), b, m.select(m.cmp("olt", a, b), b, a))

    def _fmin(self, m: Arith, a: str, b: str) -> str:
        return m.select(m.cmp("uno", a, a), b, m.select(m.cmp("ogt", a, b), b, a))

    def _isnan(self, m: Arith, a: str) -> str:
        return m.cmp("uno", a, a)

    def _isinf(self, m: Arith, a: str) -> str:
        return m.cmp("oeq", m.abs(a), math.inf)

    def _signbit(self, m: Arith, a: str) -> str:
        return m.icmp("slt", m.to_bits(a), 0)


def _rounded(value: float, dtype: DType) -> float:
    """A number as an f16 or bf16 holds it; other dtypes are left to the literal's type."""
    if dtype is DType.F16:
        return to_half(value)
    if dtype is DType.BF16:
        return to_bfloat(value)
    return value


def _wrapped(value: int, dtype: DType) -> int:
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "int" and value >> (bits - 1) else value
