"""One operation of the loop-nest language on vectors: torch's meaning of it, in every dtype.

In registers bool is `i1`, f16 and bf16 are `float` holding a number of the narrow type (`lanes_types.register_type`),
all else has its own type. Invariant: `emit` takes an operation on exactly the dtypes that its record names.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from smelt.codegen.kernels.element_types import rounded, wrapped
from smelt.codegen.kernels.operations import OPS
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes.lanes_bits import LaneBits
from smelt.codegen.llvm.lanes.lanes_integers import LaneIntegers
from smelt.codegen.llvm.lanes.lanes_modulo import LaneModulo
from smelt.codegen.llvm.lanes.lanes_types import Arith, float_literal, has_fma, register_type, vector_type
from smelt.codegen.llvm.lanes.vmath import VectorMath
from smelt.codegen.llvm.lanes.vmath_inverse import InverseMath
from smelt.codegen.llvm.lanes.vmath_trig import Trigonometry
from smelt.codegen.llvm.text import FunctionText
from smelt.diag import InternalError
from smelt.ir import DType
from smelt.ir.python_operators import COMPARISON_NAMES

_ARITHMETIC = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven"}
_COMPARE = {name: f"{'u' if name == 'ne' else 'o'}{name}" for name in COMPARISON_NAMES}
_NEEDS_FMA = frozenset({"fmod", "rem", "floordiv"})
ELEMENTARY = frozenset({"exponential", "trigonometric", "inverse"})
"""Families of functions that are polynomials with edges: 20 to 150 instructions each."""


def is_supported(op: str, operand: DType, isa: Isa) -> bool:
    """Whether a kernel for this instruction set can do the operation on operands of a dtype."""
    if not has_fma(isa) and ((op in _NEEDS_FMA and operand.is_floating) or (op == "pow" and operand is DType.F64)):
        return False
    return operand in OPS[op].operands


class ExprEmitter:
    """Emits operations on SSA vectors of `lanes` lanes (one lane: scalars).

    on_fail: given an `i1` vector of lanes where the operation refuses its operands (an integer division by zero); it
    has to leave the kernel with `nest.FAILED` if any lane in use is set. Without it such a lane gives 0.
    calls: whether elementary functions are private functions that are called, rather than written out at each use.
    """

    def __init__(
        self, fn: FunctionText, isa: Isa, lanes: int, on_fail: Callable[[str], None] | None = None, *,
        calls: bool = False,
    ) -> None:  # fmt: skip
        self.fn, self.isa, self.lanes, self.calls = fn, isa, lanes, calls
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
            literal = float_literal(rounded(float(value), dtype), element)
        elif dtype is DType.BOOL:
            literal = "true" if value else "false"
        else:
            literal = str(wrapped(int(value), dtype))
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

        Raises: InternalError if the operation does not take that dtype.
        """
        source = dtype if operand is None else operand
        if source not in OPS[op].operands:
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
        if op == "idiv" and dtype.is_half:
            return self._arith[32].rounded("trunc", self.emit("div", dtype, args))
        result = self._float_result(op, bits, args)
        if OPS[op].gives_bool or OPS[op].exact or not dtype.is_half:
            return result
        return self.bits.round_to(result, dtype)

    def _float_result(self, op: str, bits: int, args: list[str]) -> str:
        m = self._arith[bits]
        if self.calls and OPS[op].family in ELEMENTARY:
            return self._called(op, m.type, bits, args)
        if op in _ARITHMETIC:
            return self.fn.let(f"{_ARITHMETIC[op]} {m.type} {args[0]}, {args[1]}")
        if op in _COMPARE:
            return m.cmp(_COMPARE[op], args[0], args[1])
        if op in _ROUNDING:
            return m.rounded(_ROUNDING[op], args[0])
        match OPS[op].family:
            case "exponential":
                return str(getattr(self._math[bits], op)(*args))
            case "trigonometric":
                return str(getattr(Trigonometry(m), op)(*args))
            case "inverse":
                return str(getattr(InverseMath(self._math[bits]), op)(*args))
            case "modulo":
                return str(getattr(LaneModulo(m), op)(*args))
        return str(getattr(self, f"_{op}")(m, *args))

    def _called(self, op: str, type_: str, bits: int, args: list[str]) -> str:
        """A call of a private function that computes an elementary function."""
        name = f"{op}.{type_.strip('<>').replace(' ', '')}"
        names = [f"%a{k}" for k in range(len(args))]
        fn = FunctionText(name, ", ".join(f"{type_} {a}" for a in names), result=f"internal {type_}")
        result = ExprEmitter(fn, self.isa, self.lanes)._float_result(op, bits, names)
        self.fn.private(fn, f"{type_} {result}")
        return self.fn.let(f"call {type_} @{name}({', '.join(f'{type_} {a}' for a in args)})")

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
