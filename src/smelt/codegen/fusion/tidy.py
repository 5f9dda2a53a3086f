"""Statements of a pull as a nest: what nobody uses dropped, loops ordered and merged, names counted.

    i0 < 128, i1 < 768;  y[768*i0 + i1] = relu(x[768*i0 + i1])     ==>     i0 < 98304;  y[i0] = relu(x[i0])

Invariant: the same loads, operations and stores; the canonical text of equal computations is equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from operator import is_

from smelt.codegen.kernels.nest import (
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
from smelt.diag.records import record
from smelt.ir.sizes import blind, equals

_CHANGING = frozenset({Ref, Position, Load})
"""The parts of an expression that may differ from one turn of a loop to another."""

_INLINE_SIZE = 12
"""Largest number of parts that a value used once may have to be written where it is used."""


def without_idle(nest: Nest) -> Nest:
    """A nest that costs what its canonical form does: without what no store needs. Where loads are masked it is
    canonical, since only that tells what masks leave out.
    """
    found = _live(nest.body)
    if any(isinstance(part, Load) and part.where is not None for seen in found for part in seen.parts):
        return tidy(nest)
    return replace(nest, body=tuple(seen.statement for seen in found))


def tidy(nest: Nest) -> Nest:
    """The canonical form of a nest."""
    body = _inlined(_live(nest.body), len(nest.outer))
    nest = replace(nest, body=tuple(body))
    nest = _merged(_sorted(nest))
    return replace(nest, body=tuple(_renamed(nest.body)))


# --- rebuilding ------------------------------------------------------------------------------------------------------


def mapped(expr: Expr, f: Callable[[Expr], Expr | None], at: Callable[[Index], Index] | None = None) -> Expr:
    """An expression with parts replaced: `f` gives the new one (None: keep), `at` a new index (of gathers too).

    What nothing is replaced in is the same object, as in what is made of expressions below.
    """
    found = f(expr)
    if found is not None:
        return found
    if isinstance(expr, Op):
        args = [mapped(a, f, at) for a in expr.args]
        return expr if all(map(is_, args, expr.args)) else Op(expr.op, tuple(args), expr.dtype)
    if isinstance(expr, Load):
        index = mapped_index(expr.index, f, at)
        where = None if expr.where is None else mapped(expr.where, f, at)
        if index is expr.index and where is expr.where:
            return expr
        return Load(expr.buffer, index, expr.dtype, where, expr.other)
    return expr


def mapped_index(index: Index, f: Callable[[Expr], Expr | None], at: Callable[[Index], Index] | None) -> Index:
    """An index with the expressions in it replaced."""
    changed = index
    if index.gathers:
        gathers = tuple(Gather(mapped(g.position, f, at), g.stride, g.size, g.wraps) for g in index.gathers)
        changed = Index(index.offset, index.strides, gathers)
    return changed if at is None else at(changed)


def mapped_statement(
    statement: Statement, f: Callable[[Expr], Expr | None], at: Callable[[Index], Index] | None = None
) -> Statement:
    """A statement with parts replaced."""
    expr = mapped(statement.expr, f, at)
    if isinstance(statement, Store):
        index = mapped_index(statement.index, f, at)
        mask = None if statement.where is None else mapped(statement.where, f, at)
        if expr is statement.expr and index is statement.index and mask is statement.where:
            return statement
        return Store(statement.buffer, index, expr, mask, statement.mode)
    if expr is statement.expr:
        return statement
    match statement:
        case Let(name=name):
            return Let(name, expr)
        case Reduce(name=name, kind=kind, dtype=dtype):
            return Reduce(name, kind, expr, dtype)
        case Scan(name=name, kind=scan, dtype=dtype):
            return Scan(name, scan, expr, dtype)


@record
class _Seen:
    """A statement with the references, counters and loads in it, in their order: its text is walked once."""

    statement: Statement
    parts: list[Expr]
    names: list[str]


def _seen(statement: Statement) -> _Seen:
    parts = [part for expr in expressions(statement) for part in walk(expr) if part.__class__ in _CHANGING]
    return _Seen(statement, parts, [part.name for part in parts if isinstance(part, Ref)])


# --- steps -----------------------------------------------------------------------------------------------------------


def _live(body: Sequence[Statement]) -> list[_Seen]:
    """The statements that a store needs."""
    needed: set[str] = set()
    kept: list[_Seen] = []
    for statement in reversed(body):
        if isinstance(statement, Store) or statement.name in needed:
            kept.append(_seen(statement))
            needed.update(kept[-1].names)
    return kept[::-1]


def _inlined(body: Sequence[_Seen], nouter: int) -> list[Statement]:
    """Small values that are used once, by a statement of their own level, written where they are used."""
    uses = Counter(name for seen in body for name in seen.names)
    inner = _inner(body, nouter)
    held: dict[str, Expr] = {}
    user_level = _user_levels(body, nouter, inner)
    found: list[Statement] = []
    for seen in body:
        made = seen.statement
        if held and not held.keys().isdisjoint(seen.names):
            made = mapped_statement(made, lambda e: held.pop(e.name, None) if isinstance(e, Ref) else None)
        is_once = isinstance(made, Let) and uses[made.name] == 1 and user_level[made.name] == (made.name in inner)
        if is_once and isinstance(made, Let) and _is_small(made.expr):
            held[made.name] = made.expr
            continue
        found.append(made)
    return found


def _is_small(expr: Expr) -> bool:
    return next(islice(walk(expr), _INLINE_SIZE, None), None) is None


def _inner(body: Sequence[_Seen], nouter: int) -> set[str]:
    names: set[str] = set()
    for seen in body:
        statement = seen.statement
        if isinstance(statement, Scan) or (
            isinstance(statement, Let) and any(_varies(part, nouter, names) for part in seen.parts)
        ):
            names.add(statement.name)
    return names


def _varies(expr: Expr, nouter: int, names: set[str]) -> bool:
    match expr:
        case Position(loop=loop):
            return loop >= nouter
        case Ref(name=name):
            return name in names
        case Load(index=index):
            return any(index.strides[nouter:])
    return False


def _user_levels(body: Sequence[_Seen], nouter: int, inner: set[str]) -> dict[str, bool]:
    """For each name whether its last user is an inner statement."""
    levels: dict[str, bool] = {}
    for seen in body:
        match seen.statement:
            case Let(name=name):
                level = name in inner
            case Store(index=index):
                level = any(index.strides[nouter:]) or any(_varies(part, nouter, inner) for part in seen.parts)
            case _:
                level = True
        for name in seen.names:
            levels[name] = level
    return levels


def _sorted(nest: Nest) -> Nest:
    """Outer loops in the order of the first stored buffer's memory, and so the inner ones of a store along them."""
    stores = [s for s in nest.body if isinstance(s, Store)]
    if not stores or nest.ordered:
        return nest
    nouter = len(nest.outer)
    along = next((s for s in stores if any(s.index.strides[nouter:])), None)
    with blind():
        strides = stores[0].index.strides
        order = sorted(range(nouter), key=lambda k: -abs(strides[k]))
        inner = list(range(nouter, len(nest.sizes)))
        if along is not None and not any(map(_has_order, nest.body)):
            strides = along.index.strides
            inner.sort(key=lambda k: -abs(strides[k]))
    return _permuted(nest, order, inner)


def _has_order(statement: Statement) -> bool:
    """Whether a statement tells in which order the inner loops are: one before another, or the first of several."""
    return isinstance(statement, Scan) or (isinstance(statement, Reduce) and statement.kind.startswith("arg"))


def _permuted(nest: Nest, order: Sequence[int], inner: Sequence[int]) -> Nest:
    whole = [*order, *inner]
    if whole == list(range(len(whole))):
        return nest
    to = {old: new for new, old in enumerate(whole)}

    def at(index: Index) -> Index:
        return Index(index.offset, tuple(index.strides[k] for k in whole), index.gathers)

    def swap(expr: Expr) -> Expr | None:
        return Position(to[expr.loop]) if isinstance(expr, Position) else None

    body = tuple(mapped_statement(s, swap, at) for s in nest.body)
    sizes = nest.sizes
    return replace(nest, outer=tuple(sizes[k] for k in order), inner=tuple(sizes[k] for k in inner), body=body)


def _merged(nest: Nest) -> Nest:
    """Neighbouring loops that every index runs through as through one are one."""
    nouter, sizes = len(nest.outer), list(nest.sizes)
    if len(sizes) < 2:
        return nest
    fixed, indices = _counters_and_indices(nest.body)
    k = 0
    groups = [[loop] for loop in range(len(sizes))]
    while k + 1 < len(groups):
        a, b = groups[k][-1], groups[k + 1][0]
        joined = (a < nouter) == (b < nouter) and a not in fixed and b not in fixed
        if joined and all(equals(i.strides[a], i.strides[b] * sizes[b]) for i in indices):
            groups[k] = groups[k] + groups.pop(k + 1)
        else:
            k += 1
    if len(groups) == len(sizes):
        return nest
    to = {group[-1]: new for new, group in enumerate(groups)}

    def at(index: Index) -> Index:
        return Index(index.offset, tuple(index.strides[g[-1]] for g in groups), index.gathers)

    def swap(expr: Expr) -> Expr | None:
        return Position(to[expr.loop]) if isinstance(expr, Position) else None

    body = tuple(mapped_statement(s, swap, at) for s in nest.body)
    outer = tuple(prod(sizes[loop] for loop in g) for g in groups if g[0] < nouter)
    inner = tuple(prod(sizes[loop] for loop in g) for g in groups if g[0] >= nouter)
    return replace(nest, outer=outer, inner=inner, body=body)


def _counters_and_indices(body: Sequence[Statement]) -> tuple[set[int], list[Index]]:
    """The loops whose counters are values, and the indices of all loads and stores."""
    fixed: set[int] = set()
    indices = [s.index for s in body if isinstance(s, Store)]
    for statement in body:
        for expr in expressions(statement):
            for part in walk(expr):
                if isinstance(part, Load):
                    indices.append(part.index)
                elif isinstance(part, Position):
                    fixed.add(part.loop)
    return fixed, indices


def _renamed(body: Sequence[Statement]) -> list[Statement]:
    """Names counted in order: v for values, r for what is reduced, s for scans."""
    names: dict[str, str] = {}

    def swap(expr: Expr) -> Expr | None:
        new = names.get(expr.name) if isinstance(expr, Ref) else None
        return Ref(new, expr.dtype) if isinstance(expr, Ref) and new is not None and new != expr.name else None

    found: list[Statement] = []
    for statement in body:
        made = mapped_statement(statement, swap)
        if not isinstance(made, Store):
            old = made.name
            letter = "v" if isinstance(made, Let) else "r" if isinstance(made, Reduce) else "s"
            names[old] = f"{letter}{len(names)}"
            made = made if old == names[old] else replace(made, name=names[old])
        found.append(made)
    return found
