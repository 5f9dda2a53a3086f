"""Tensors out of numbers and positions: full, arange, eye, triangles."""

from __future__ import annotations

from smelt.codegen.fusion.index import Idx, Unfusible
from smelt.codegen.fusion.pull import FAR, Pull, Rule
from smelt.codegen.fusion.rules.pointwise import result_dtype
from smelt.codegen.fusion.rules.promote import NUMBER_TYPES
from smelt.codegen.kernels.nest import Expr
from smelt.codegen.kernels.operations import INTEGERS
from smelt.ir import DType, Node, Value
from smelt.ops.record import Trait
from smelt.ops.sets import where


def filled(name: str) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        value = p.call(node)[name]
        if isinstance(value, Value) and value.type in NUMBER_TYPES:
            return p.scalar(value, result_dtype(node))
        if not isinstance(value, (bool, int, float)):
            raise Unfusible("its number is a tensor")
        return p.const(value, result_dtype(node))

    return rule


def constant(value: int) -> Rule:
    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        return p.const(value, result_dtype(node))

    return rule


def one_literal(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    """A constant of one element, whose number stands in the graph."""
    literal = node.args[0]
    while isinstance(literal, tuple) and len(literal) == 1:
        (literal,) = literal
    if not isinstance(literal, (bool, int, float)):
        raise Unfusible("a table")
    return p.const(literal, result_dtype(node))


def counting(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    call, out = p.call(node), result_dtype(node)
    start, step = call.get("start", 0), call.get("step", 1)
    if out not in INTEGERS or not isinstance(start, int) or not isinstance(step, int):
        raise Unfusible("a range of floats")
    return p.cast(p.position(idx[0].scaled(step, start)), out)


def identity(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
    same = p.op("eq", DType.BOOL, p.position(idx[0]), p.position(idx[1]))
    return p.cast(same, result_dtype(node))


def triangle(lower: bool) -> Rule:
    """tril keeps column <= row + diagonal, triu column >= row + diagonal."""

    def rule(p: Pull, node: Node, idx: Idx, k: int) -> Expr:
        call, out = p.call(node), result_dtype(node)
        way = idx[-1].plus(idx[-2].scaled(-1)).scaled(1, -call["diagonal"])
        keep = p.between(way, -FAR, 1) if lower else p.between(way, 0, FAR)
        return p.choose(keep, lambda: p.element(call["self"], idx), lambda: p.const(0, out))

    return rule


NUMBERS = where(Trait.CONSTANT_FILL) | {"const"}
"""Operators whose elements are one number, better written into a kernel than loaded by it."""
