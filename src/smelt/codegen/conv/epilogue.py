"""What a kernel does to each element before it is stored, as an expression of the nest language.

Invariant: the expression refers to the sum by `Ref(ACC)` and to other tensors by `Load(buffer=i)`, where `i` counts the
epilogue's own operands; how an operand is addressed follows from its kind alone, so the text holds no sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from smelt.codegen.kernels.nest import ACC, Expr, Index, Load, Op, Ref
from smelt.diag.records import record
from smelt.ir import DType

OperandKind = Literal["channel", "element", "scalar"]
"""channel: one number per output channel; element: laid out as the result; scalar: one number."""

SUM = Ref(ACC, DType.F32)


@record
class Epilogue:
    """The value to store, and the kinds of the operands it loads."""

    expr: Expr = SUM
    operands: tuple[OperandKind, ...] = ()

    def then(self, make: Callable[[Expr], Expr]) -> Epilogue:
        """The same with something done to its value."""
        return Epilogue(make(self.expr), self.operands)

    def with_operand(self, kind: OperandKind, make: Callable[[Expr, Expr], Expr]) -> Epilogue:
        """The same with one more operand combined into its value."""
        load = Load(len(self.operands), Index(0, ()), DType.F32)
        return Epilogue(make(self.expr, load), (*self.operands, kind))


def plus(a: Expr, b: Expr) -> Expr:
    """a + b in f32."""
    return Op("add", (a, b), DType.F32)


BIAS = Epilogue().with_operand("channel", plus)
"""The sum plus a bias per channel."""
