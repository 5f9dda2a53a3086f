"""The operations of the loop-nest language, each written once: operands, meaning, dtypes and cost.

Everything that holds for an operation on any machine stands in its `KernelOp`; a backend (LLVM text, C, Triton) writes
it by `family`. `min` and `max` give NaN if either operand is NaN. `rem` has the divisor's sign (torch.remainder),
`fmod` the dividend's; `idiv` truncates, `floordiv` rounds down. Comparisons are ordered (false with NaN) except `ne`.
Shifts are torch's: a shift by the width or more gives 0, or the sign for `shr`. `select(bool, a, b)` chooses. `cast`
converts to its result's dtype as torch's `to`: float to integer truncates, to bool is `!= 0`. `gelu` is the erf form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from smelt.diag.records import record
from smelt.ir import DType

FLOATS: Final = (DType.F16, DType.BF16, DType.F32, DType.F64)
INTEGERS: Final = (DType.U8, DType.I8, DType.I16, DType.I32, DType.I64)
DTYPES: Final = (DType.BOOL, *INTEGERS, *FLOATS)
"""The element types of own kernels."""

Family: TypeAlias = Literal[
    "arithmetic",  # one instruction on any number
    "comparison",  # a bool of two numbers
    "bits",  # bools and integers bit by bit
    "choice",  # a result that is one of the operands, or a small number that follows from one
    "rounding",
    "modulo",  # division to an integer, and its remainder
    "conversion",
    "exponential",
    "trigonometric",
    "inverse",  # inverse and hyperbolic functions, powers
    "special",
]
"""What a backend needs to tell apart to know which part of it writes an operation."""


@record
class KernelOp:
    """All that is known of one operation.

    arity: operands. meaning: the same on tensors (of `cast`, which also needs the result's dtype, `evaluate` knows).
    operands: dtypes that kernels take it on (`select`: those chosen from; `cast`: those cast from).
    cost: time of one element in vector additions of f32, measured (`python -m smelt.bench.kernel_operations`).
    gives_bool: the result is bool whatever the operands are. exact: a result of f16 or bf16 operands needs no rounding.
    reduces: the kind of the reductions and scans that combine their elements by it (`nest.ReduceKind`); "" for none.
    """

    name: str
    arity: int
    family: Family
    meaning: Callable[..., Tensor]
    operands: frozenset[DType]
    cost: float
    gives_bool: bool = False
    exact: bool = False
    reduces: str = ""

    @property
    def is_float_function(self) -> bool:
        """Whether it is a function of one float that torch has under the same name."""
        functions = ("exponential", "trigonometric", "inverse", "special")
        is_torchs = self.arity == 1 and self.meaning is getattr(torch, self.name, None)
        return is_torchs and (self.family in functions or self.name == "sqrt")


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    if a.dtype == torch.float32:
        return (a.double() * b.double() + c.double()).float()
    return torch.addcmul(c, a, b) if a.dtype == torch.float64 else (a.float() * b.float() + c.float()).to(a.dtype)


def _shift(f: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda a, b: f(a, b.to(a.dtype))


def _divided(mode: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda a, b: torch.div(a, b, rounding_mode=mode)


_BOOL, _NUMBERS, _INTEGRAL = (DType.BOOL,), (*INTEGERS, *FLOATS), (DType.BOOL, *INTEGERS)


def _op(
    name: str, arity: int, family: Family, dtypes: Iterable[DType], cost: float, meaning: Any = None, **facts: Any
) -> KernelOp:
    return KernelOp(name, arity, family, meaning or getattr(torch, name), frozenset(dtypes), cost, **facts)


def _comparison(name: str) -> KernelOp:
    return _op(name, 2, "comparison", DTYPES, 1.0, gives_bool=True)


def _test(name: str) -> KernelOp:
    return _op(name, 1, "comparison", FLOATS, 1.0, gives_bool=True)


def _choice(name: str, arity: int, dtypes: Iterable[DType], meaning: Any = None, reduces: str = "") -> KernelOp:
    return _op(name, arity, "choice", dtypes, 1.0, meaning, exact=True, reduces=reduces)


KERNEL_OPS: Final[tuple[KernelOp, ...]] = (
    _op("add", 2, "arithmetic", DTYPES, 1.0, reduces="sum"),
    _op("sub", 2, "arithmetic", _NUMBERS, 1.0),
    _op("mul", 2, "arithmetic", DTYPES, 1.0, reduces="prod"),
    _op("div", 2, "arithmetic", FLOATS, 4.0),
    _op("fma", 3, "arithmetic", FLOATS, 1.0, _fma),
    _op("sqrt", 1, "arithmetic", FLOATS, 8.0),
    _op("recip", 1, "arithmetic", FLOATS, 4.0, torch.reciprocal),
    _choice("neg", 1, _NUMBERS),
    _choice("abs", 1, _NUMBERS),
    _choice("sign", 1, _NUMBERS),
    _choice("min", 2, DTYPES, torch.minimum, reduces="min"),
    _choice("max", 2, DTYPES, torch.maximum, reduces="max"),
    _choice("fmin", 2, FLOATS),
    _choice("fmax", 2, FLOATS),
    _choice("copysign", 2, FLOATS),
    _choice("select", 3, DTYPES, torch.where),
    _op("idiv", 2, "modulo", _NUMBERS, 4.0, _divided("trunc")),
    # eager rounds within floordiv of the narrow floats, in steps of its own
    _op("floordiv", 2, "modulo", (*INTEGERS, DType.F32, DType.F64), 37.0, _divided("floor")),
    _op("rem", 2, "modulo", _NUMBERS, 24.0, torch.remainder),
    _op("fmod", 2, "modulo", _NUMBERS, 18.0),
    *map(_comparison, ("eq", "ne", "lt", "le", "gt", "ge")),
    *map(_test, ("isnan", "isinf", "signbit")),
    _op("and", 2, "bits", _INTEGRAL, 1.0, torch.bitwise_and, reduces="all"),
    _op("or", 2, "bits", _INTEGRAL, 1.0, torch.bitwise_or, reduces="any"),
    _op("xor", 2, "bits", _INTEGRAL, 1.0, torch.bitwise_xor),
    _op("not", 1, "bits", _INTEGRAL, 1.0, torch.bitwise_not),
    _op("shl", 2, "bits", INTEGERS, 1.0, _shift(torch.bitwise_left_shift)),
    _op("shr", 2, "bits", INTEGERS, 1.0, _shift(torch.bitwise_right_shift)),
    _op("cast", 1, "conversion", DTYPES, 1.0, Tensor.to),
    *(_op(name, 1, "rounding", FLOATS, 1.0, exact=True) for name in ("floor", "ceil", "trunc", "round")),
    _op("frac", 1, "rounding", FLOATS, 2.0),
    _op("rsqrt", 1, "exponential", FLOATS, 14.0),
    _op("exp", 1, "exponential", FLOATS, 10.0),
    _op("exp2", 1, "exponential", FLOATS, 55.0),
    _op("expm1", 1, "exponential", FLOATS, 15.0),
    _op("log", 1, "exponential", FLOATS, 25.0),
    _op("log2", 1, "exponential", FLOATS, 80.0),
    _op("log10", 1, "exponential", FLOATS, 85.0),
    _op("log1p", 1, "exponential", FLOATS, 36.0),
    _op("tanh", 1, "exponential", FLOATS, 26.0),
    _op("erf", 1, "exponential", FLOATS, 38.0),
    _op("erfc", 1, "exponential", FLOATS, 225.0),
    _op("sigmoid", 1, "exponential", FLOATS, 14.0),
    _op("silu", 1, "exponential", FLOATS, 14.0, functional.silu),
    _op("gelu", 1, "exponential", FLOATS, 17.0, functional.gelu),
    _op("gelu_tanh", 1, "exponential", FLOATS, 20.0, lambda x: functional.gelu(x, approximate="tanh")),
    _op("softplus", 1, "exponential", FLOATS, 77.0, functional.softplus),
    _op("mish", 1, "exponential", FLOATS, 17.0, functional.mish),
    _op("sin", 1, "trigonometric", FLOATS, 52.0),
    _op("cos", 1, "trigonometric", FLOATS, 48.0),
    _op("tan", 1, "trigonometric", FLOATS, 92.0),
    _op("asin", 1, "inverse", FLOATS, 55.0),
    _op("acos", 1, "inverse", FLOATS, 60.0),
    _op("atan", 1, "inverse", FLOATS, 66.0),
    _op("atan2", 2, "inverse", FLOATS, 100.0),
    _op("sinh", 1, "inverse", FLOATS, 130.0),
    _op("cosh", 1, "inverse", FLOATS, 120.0),
    _op("asinh", 1, "inverse", FLOATS, 230.0),
    _op("acosh", 1, "inverse", FLOATS, 200.0),
    _op("atanh", 1, "inverse", FLOATS, 120.0),
    _op("hypot", 2, "inverse", FLOATS, 32.0),
    _op("pow", 2, "inverse", FLOATS, 190.0),
    # in the language, so that a nest may name it; no backend writes it yet
    _op("lgamma", 1, "special", (), 60.0),
)

OPS: Final[dict[str, KernelOp]] = {op.name: op for op in KERNEL_OPS}
"""Operations by name."""


def of_family(*families: Family) -> frozenset[str]:
    """The names of the operations of some families."""
    return frozenset(op.name for op in KERNEL_OPS if op.family in families)
