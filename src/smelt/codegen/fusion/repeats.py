"""Elements that are stored several times in a row, as upsampling does, without a loop of their own.

    for i0 < 32, i1 < 2: %1[2*i0 + i1] = neg(%x[i0])   ==>   for i0 < 32: w0 = neg(%x[i0])
                                                                   %1[2*i0] = %1[1 + 2*i0] = w0

A loop of two or three turns is no vector. Along the loop around it lanes are, and what they give is woven together.
Invariant: each element is stored once, so the order of stores does not matter.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.fusion.tidy import mapped_statement
from smelt.codegen.kernels.nest import (
    Expr,
    Index,
    Let,
    Load,
    Nest,
    Position,
    Ref,
    Statement,
    Store,
    expressions,
    walk,
)
from smelt.ir.sizes import equals, is_one

_MOST = 4


def without_repeats(nest: Nest) -> Nest:
    """The nest with its last loop, if that only repeats elements side by side, as stores; else the nest itself."""
    last = len(nest.outer) - 1
    if nest.inner or nest.ordered or last < 1 or type(nest.outer[last]) is not int:
        return nest
    count = nest.outer[last]
    stores = [s for s in nest.body if isinstance(s, Store)]
    if not 2 <= count <= _MOST or not all(isinstance(s, Let | Store) for s in nest.body):
        return nest
    if not all(_repeats(s, last, count) for s in stores) or any(_moves(s, last) for s in nest.body):
        return nest

    def at(index: Index) -> Index:
        return Index(index.offset, index.strides[:last], index.gathers)

    made: list[Statement] = []
    for number, statement in enumerate(nest.body):
        mapped = mapped_statement(statement, _same, at)
        if not isinstance(mapped, Store):
            made.append(mapped)
            continue
        value = mapped.expr
        if not isinstance(value, Ref):
            made.append(Let(f"w{number}", value))
            value = Ref(f"w{number}", value.dtype)
        made += [
            replace(mapped, expr=value, index=replace(mapped.index, offset=mapped.index.offset + k))
            for k in range(count)
        ]
    return replace(nest, outer=nest.outer[:last], body=tuple(made))


def _same(expr: Expr) -> Expr | None:
    return None


def _repeats(store: Store, last: int, count: int) -> bool:
    """Whether elements of the last loop are neighbours, and another loop goes on behind them."""
    strides = store.index.strides
    plain = store.mode == "set" and store.where is None and not store.index.gathers
    return plain and is_one(strides[last]) and any(equals(s, count) for s in strides[:last])


def _moves(statement: Statement, last: int) -> bool:
    """Whether what is computed differs along the last loop."""
    for expr in (e for x in expressions(statement) for e in walk(x)):
        if isinstance(expr, Position) and expr.loop == last:
            return True
        if isinstance(expr, Load) and not equals(expr.index.strides[last], 0):
            return True
    return False
