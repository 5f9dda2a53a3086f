"""Weights of few bits, as an element of a bf16 matrix: what a product on a GPU reads in the place of floats.

Of bytes, w[i, j] = q[i, j] * scale[i]; of nibbles, w[i, j] = (4 bits of p[i, j / 2] - 8) * step[i, j / 32].
"""

from __future__ import annotations

from smelt.codegen.fusion.index import ZERO, Idx, divided
from smelt.codegen.fusion.pull import Pull
from smelt.codegen.kernels.nest import Const, Expr
from smelt.ir import DType, Node, Value
from smelt.ops.own.narrow_linear import STEPS_OF_FEW

_BITS = 4


def of_bytes(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    """An element of `narrow.bytes`."""
    steps, scale = node.args
    assert isinstance(steps, Value) and isinstance(scale, Value)
    wide = p.cast(p.element(steps, idx), DType.F32)
    return p.cast(p.op("mul", DType.F32, wide, p.element(scale, (idx[0], ZERO))), DType.BF16)


def of_nibbles(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    """An element of `narrow.nibbles`."""
    packed, step, group = node.args
    assert isinstance(packed, Value) and isinstance(step, Value) and isinstance(group, int)
    pair, which = divided(idx[1], 2, p.sizes)
    at, _ = divided(idx[1], group, p.sizes)
    i32 = DType.I32
    byte = p.cast(p.element(packed, (idx[0], pair)), i32)
    shift = p.cast(p.op("mul", DType.I64, p.position(which), Const(_BITS, DType.I64)), i32)
    bits = p.op("and", i32, p.op("shr", i32, byte, shift), Const((1 << _BITS) - 1, i32))
    signed = p.op("sub", i32, bits, Const(STEPS_OF_FEW, i32))
    wide = p.cast(p.element(step, (idx[0], at)), DType.F32)
    return p.cast(p.op("mul", DType.F32, p.cast(signed, DType.F32), wide), DType.BF16)
