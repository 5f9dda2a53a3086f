"""Fewer and longer loops for the same nest.

    outer (8, 16, 32), strides (512, 32, 1) everywhere    ==>    outer (4096,), stride 1

Loops of one turn go, independent loops are put in the order of memory, neighbours that walk memory as one become one,
and inner loops that nothing is reduced over become outer ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from smelt.codegen.kernels.nest import (
    Const,
    Expr,
    Gather,
    Index,
    Let,
    Load,
    Nest,
    Op,
    Position,
    Reduce,
    Ref,
    Scan,
    Statement,
    Store,
    expressions,
    walk,
)
from smelt.ir import DType
from smelt.ir.sizes import blind, equals, is_one


def simplify_nest(nest: Nest) -> Nest:
    """An equal nest with as few loops as possible."""
    nest = _without_single_turns(nest)
    nest = _inner_to_outer(nest)
    nest = _reordered(nest)
    return _merged(nest)


def indices(nest: Nest) -> list[Index]:
    """Every index of a load or store."""
    found = [s.index for s in nest.body if isinstance(s, Store)]
    for statement in nest.body:
        for expr in expressions(statement):
            found += [item.index for item in walk(expr) if isinstance(item, Load)]
    return found


def positions(nest: Nest) -> set[int]:
    """Loops whose counters are used as values."""
    found = set()
    for statement in nest.body:
        for expr in expressions(statement):
            found |= {item.loop for item in walk(expr) if isinstance(item, Position)}
    return found


# --- rewriting -------------------------------------------------------------------------------------------------------


class _Rebuilt:
    """Rebuilds expressions with changed indices and counters; shared parts stay shared."""

    def __init__(self, strides: Callable[[tuple[int, ...]], tuple[int, ...]], position: Callable[[int], Expr]) -> None:
        self._strides, self._position = strides, position
        self._made: dict[int, tuple[Expr, Expr]] = {}

    def index(self, index: Index) -> Index:
        gathers = tuple(Gather(self.expr(g.position), g.stride, g.size, g.wraps) for g in index.gathers)
        return Index(index.offset, self._strides(index.strides), gathers)

    def expr(self, expr: Expr) -> Expr:
        known = self._made.get(id(expr))
        if known is not None:
            return known[1]
        made = self._expr(expr)
        self._made[id(expr)] = (expr, made)  # the original is held, so its id stays its own
        return made

    def _expr(self, expr: Expr) -> Expr:
        match expr:
            case Const() | Ref():
                return expr
            case Position(loop=loop):
                return self._position(loop)
            case Load(buffer=buffer, index=index, dtype=dtype, where=where, other=other):
                return Load(buffer, self.index(index), dtype, None if where is None else self.expr(where), other)
            case Op(op=op, args=args, dtype=dtype):
                return Op(op, tuple(self.expr(a) for a in args), dtype)

    def statement(self, statement: Statement) -> Statement:
        expr = self.expr(statement.expr)
        if isinstance(statement, Store):
            where = None if statement.where is None else self.expr(statement.where)
            return replace(statement, expr=expr, where=where, index=self.index(statement.index))
        if isinstance(statement, Let):
            return Let(statement.name, expr)
        return replace(statement, expr=expr)


def _rebuilt(
    nest: Nest,
    outer: Sequence[int],
    inner: Sequence[int],
    strides: Callable[[tuple[int, ...]], tuple[int, ...]],
    position: Callable[[int], Expr],
) -> Nest:
    made = _Rebuilt(strides, position)
    body = tuple(made.statement(s) for s in nest.body)
    return Nest(nest.buffers, tuple(outer), tuple(inner), body, nest.ordered)


def _permuted(nest: Nest, outer: Sequence[int], inner: Sequence[int]) -> Nest:
    """The nest with its loops taken in a new order (old numbers); loops left out have one turn."""
    order = [*outer, *inner]
    place = {old: new for new, old in enumerate(order)}
    sizes = nest.sizes
    if order == list(range(len(sizes))) and len(outer) == len(nest.outer):
        return nest
    return _rebuilt(
        nest,
        [sizes[k] for k in outer],
        [sizes[k] for k in inner],
        lambda strides: tuple(strides[k] for k in order),
        lambda loop: Position(place[loop]) if loop in place else Const(0, DType.I64),
    )


def _gathers_all(nest: Nest) -> bool:
    return any(isinstance(s, Reduce | Scan) for s in nest.body)


def _without_single_turns(nest: Nest) -> Nest:
    n = len(nest.outer)
    outer = [k for k, size in enumerate(nest.outer) if not is_one(size)]
    inner = [n + k for k, size in enumerate(nest.inner) if not is_one(size)]
    if not inner and nest.inner and _gathers_all(nest):
        inner = [n + len(nest.inner) - 1]
    return _permuted(nest, outer, inner)


def _inner_to_outer(nest: Nest) -> Nest:
    """Inner loops that nothing is reduced over are outer ones, if each of their points writes places of its own."""
    if not nest.inner or _gathers_all(nest):
        return nest
    n = len(nest.outer)
    for statement in nest.body:
        if isinstance(statement, Store) and not all(statement.index.strides[n:]):
            return nest
    return _permuted(nest, range(len(nest.sizes)), ())


def _reordered(nest: Nest) -> Nest:
    """Loops sorted by how far apart their turns lie in memory, stores first; only where their order is free."""
    found = sorted(indices(nest), key=lambda i: -len(i.strides))
    stores = [s.index for s in nest.body if isinstance(s, Store)]
    n = len(nest.outer)

    def far(loop: int) -> tuple[int, int]:
        written = max((abs(i.strides[loop]) for i in stores), default=0)
        touched = max((abs(i.strides[loop]) for i in found), default=0)
        return (-written if written else -touched, -touched)

    outer, inner = list(range(n)), list(range(n, len(nest.sizes)))
    fixed = any(isinstance(s, Scan) or (isinstance(s, Reduce) and s.kind.startswith("arg")) for s in nest.body)
    with blind():
        if not nest.ordered:
            outer.sort(key=far)
        if not fixed and not any(isinstance(s, Store) and s.mode == "add" for s in nest.body):
            inner.sort(key=far)
    return _permuted(nest, outer, inner)


def _merged(nest: Nest) -> Nest:
    used = positions(nest)
    found = indices(nest)
    sizes = nest.sizes
    n = len(nest.outer)
    kept: list[int] = []  # the last loop of each group that became one
    merged: dict[int, int] = {}
    for loop, size in enumerate(sizes):
        before = kept[-1] if kept and (loop < n) == (kept[-1] < n) else None
        if (
            before is not None
            and not {before, loop} & used
            and all(equals(i.strides[before], i.strides[loop] * size) for i in found)
        ):
            merged[loop] = merged.pop(before) * size
            kept[-1] = loop
        else:
            kept.append(loop)
            merged[loop] = size
    if len(kept) == len(sizes):
        return nest
    place = {old: new for new, old in enumerate(kept)}
    return _rebuilt(
        nest,
        [merged[k] for k in kept if k < n],
        [merged[k] for k in kept if k >= n],
        lambda strides: tuple(strides[k] for k in kept),
        lambda loop: Position(place[loop]),
    )
