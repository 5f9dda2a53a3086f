"""How each operation of the loop-nest language is written in Triton: one table for floats, integers and bools.

In registers f16 and bf16 are f32 holding a number of the narrow type, bool is `int1`. Decisions that eager's numbers
need stand here and in `helpers`: f32 divides by `div.rn`, roots are `sqrt.rn`, the exponential family is libdevice's
(Triton's own `exp` is off by tens of units in the last place), no negation by subtraction from 0.
"""

from __future__ import annotations

from typing import Final

from smelt.codegen.kernels.operations import OPS, of_family
from smelt.codegen.triton.helpers import HELPERS
from smelt.diag import InternalError
from smelt.diag.records import record
from smelt.ir import DType
from smelt.ir.python_operators import OPERATORS

_INFIX: Final = {
    name: operator.symbol
    for operator in OPERATORS
    if (name := operator.name.removesuffix("_")) in of_family("arithmetic", "comparison", "bits")
}
"""Operations that are written between their operands, on numbers."""


@record
class _Written:
    """An operation as text with its operands: of floats, integers, u8 (where it differs from other integers), bools."""

    floats: str = ""
    integers: str = ""
    unsigned: str = ""
    bools: str = ""


_WRITTEN: Final[dict[str, _Written]] = {
    "add": _Written(bools="({0} | {1})"),
    "mul": _Written(bools="({0} & {1})"),
    "div": _Written("quotient({0}, {1})"),
    "fma": _Written("tl.fma({0}, {1}, {2})"),
    "sqrt": _Written("root({0})"),
    "recip": _Written("quotient(1.0 + tl.zeros_like({0}), {0})"),
    "neg": _Written("negated({0})", "(0 - {0})"),
    "abs": _Written("tl.abs({0})", "tl.abs({0})", "{0}"),
    "sign": _Written("sign({0})", "sign({0})", "({0} != 0).to(tl.uint8)"),
    "min": _Written("min_({0}, {1})", "tl.minimum({0}, {1})", bools="({0} & {1})"),
    "max": _Written("max_({0}, {1})", "tl.maximum({0}, {1})", bools="({0} | {1})"),
    "fmin": _Written("tl.minimum({0}, {1})"),
    "fmax": _Written("tl.maximum({0}, {1})"),
    "copysign": _Written("with_sign({0}, {1})"),
    "idiv": _Written("libdevice.trunc(quotient({0}, {1}))", "truncated({0}, {1})", "({0} // {1})"),
    "floordiv": _Written("float_floor_division({0}, {1})", "integer_floor_division({0}, {1})", "({0} // {1})"),
    "rem": _Written("float_remainder({0}, {1})", "integer_remainder({0}, {1})", "({0} % {1})"),
    "fmod": _Written("libdevice.fmod({0}, {1})", "integer_fmod({0}, {1})", "({0} % {1})"),
    # As a number of one bit, true is less than false.
    "eq": _Written(bools="(~({0} ^ {1}))"),
    "ne": _Written(bools="({0} ^ {1})"),
    "lt": _Written(bools="(~{0} & {1})"),
    "le": _Written(bools="(~{0} | {1})"),
    "gt": _Written(bools="({0} & ~{1})"),
    "ge": _Written(bools="({0} | ~{1})"),
    "isnan": _Written("({0} != {0})"),
    "isinf": _Written('(tl.abs({0}) == float("inf"))'),
    "signbit": _Written("(sign_bits({0}) < 0)"),
    "and": _Written(bools="({0} & {1})"),
    "or": _Written(bools="({0} | {1})"),
    "xor": _Written(bools="({0} ^ {1})"),
    "not": _Written(integers="(~{0})", unsigned="({0} ^ 255)", bools="(~{0})"),
    "shl": _Written(integers="shifted_left({0}, {1}, {width})"),
    "shr": _Written(integers="shifted_right({0}, {1}, {width})", unsigned="shifted_right_unsigned({0}, {1}, {width})"),
    "round": _Written("libdevice.rint({0})"),
    "frac": _Written("({0} - libdevice.trunc({0}))"),
}
"""Operations that are neither a sign between numbers nor a function of `helpers` or libdevice of the same name."""

FAILING: Final = of_family("modulo")
"""Operations of integers that refuse a second operand of 0."""

BESIDE_NUMBERS: Final = frozenset(_INFIX) & of_family("arithmetic", "comparison")
"""Operations beside whose operand a number may stand as it is: it takes the other operand's dtype there."""

_TYPES: Final[dict[DType, str]] = {
    DType.BOOL: "int1", DType.U8: "uint8", DType.I8: "int8", DType.I16: "int16", DType.I32: "int32",
    DType.I64: "int64", DType.F16: "float16", DType.BF16: "bfloat16", DType.F32: "float32", DType.F64: "float64",
}  # fmt: skip


def memory_type(dtype: DType) -> str:
    """Triton's name of an element in memory: a bool is a byte."""
    return "int8" if dtype is DType.BOOL else _TYPES[dtype]


def pointer_type(dtype: DType) -> str:
    """The type of a pointer to elements, as signatures spell it."""
    name = memory_type(dtype)
    for long, short in (("uint", "u"), ("int", "i"), ("bfloat", "bf"), ("float", "fp")):
        if name.startswith(long):
            return f"*{short}{name.removeprefix(long)}"
    raise InternalError(f"no pointer to {dtype}")


def register_type(dtype: DType) -> str:
    """Triton's type of a value in registers."""
    return f"tl.{_TYPES[DType.F32 if dtype.is_half else dtype]}"


def is_supported(op: str, operand: DType) -> bool:
    """Whether an operation has a Triton form on operands of a dtype."""
    return operand in OPS[op].operands


def rounded(text: str, dtype: DType) -> str:
    """A number in an f32 register rounded to f16 or bf16; others as they are."""
    return f"{text}.to(tl.{_TYPES[dtype]}).to(tl.float32)" if dtype.is_half else text


def written(op: str, dtype: DType, args: list[str], operand: DType) -> str:
    """An operation as text, its result in its register form. `operand`: the operands' dtype (of `cast`: the source's).

    Raises: InternalError if it does not take that dtype.
    """
    if not is_supported(op, operand):
        raise InternalError(f"no Triton code for {op} of {operand}")
    if op == "cast":
        return cast(args[0], operand, dtype)
    if op == "select":
        return f"tl.where({', '.join(args)})"
    record = OPS[op]
    form = _WRITTEN.get(op, _Written())
    if operand is DType.BOOL:
        return form.bools.format(*args)
    if op in _INFIX:
        text = f"({args[0]} {_INFIX[op]} {args[1]})"
    elif operand.is_floating:
        text = _floating(op, form.floats, args, operand)
    else:
        text = (form.unsigned if operand is DType.U8 and form.unsigned else form.integers).format(
            *args, width=8 * operand.itemsize
        )
    return text if record.gives_bool or record.exact else rounded(text, dtype)


def _floating(op: str, form: str, args: list[str], operand: DType) -> str:
    if op == "idiv" and operand.is_half:
        return f"libdevice.trunc({rounded(f'quotient({args[0]}, {args[1]})', operand)})"
    if form:
        return form.format(*args)
    return f"{op if op in HELPERS else f'libdevice.{op}'}({', '.join(args)})"


def cast(text: str, source: DType, dtype: DType) -> str:
    """A value as another dtype, as torch converts it on a GPU: a float beyond an integer's range saturates in 32 or 64
    bits and wraps from there to narrower ones.
    """
    if source is dtype:
        return text
    if dtype is DType.BOOL:
        return f"({text} != 0)"
    if dtype.is_half:
        single = text if source.is_half or source is DType.F32 else f"{text}.to(tl.float32)"
        return rounded(single, dtype)
    if dtype is DType.F32 and source.is_half:
        return text
    if source.is_floating and dtype in (DType.I8, DType.I16):
        text = f"{text}.to(tl.int32)"
    if source.is_floating and dtype is DType.U8:
        text = f"{text}.to(tl.int64)"
    return f"{text}.to({register_type(dtype)})"
