"""A nest that goes over rows with gaps, once to reduce and once more to write, as two: what is reduced, then the rest.

    for c < 256: m = sum over (p < 4096) of x[256*p + c]            for c < 256: m = sum ..; t[c] = m
                 y[256*p + c] = x[256*p + c] - m         ==>        for p < 4096, c < 256: y[..] = x[..] - t[c]

A row's elements lie in lines of their own, so a block of channels that is done in one go reads short pieces of memory
from all over it, twice. Apart, what is written goes over memory in its order.
Invariant: what the second nest knows of a row is what the first one computed, before anything was written.
"""

from __future__ import annotations

from math import prod

from smelt.codegen.fusion.chunks import Stage, only_used, row_major
from smelt.codegen.fusion.tidy import mapped_statement, tidy
from smelt.codegen.kernels.nest import (
    Buffer,
    Expr,
    Index,
    Let,
    Load,
    Nest,
    Position,
    Reduce,
    Ref,
    Scan,
    Statement,
    Store,
    expressions,
    inner_names,
    is_inner,
    walk,
)
from smelt.ir import DType
from smelt.ir.sizes import is_symbolic
from smelt.runtime.machine.cpu import data_cache_nbytes

_LINE_NBYTES = 64


def far_stages(nest: Nest) -> tuple[Stage, ...]:
    """The two nests; none where a nest is best run as it is."""
    nouter = len(nest.outer)
    names = inner_names(nest)
    last = [s for s in nest.body if isinstance(s, Store) and _is_along(s, nouter, names)]
    if not last or not _may_be_apart(nest, last) or not _is_far(nest):
        return ()
    needed = _needed(nest, last, names)
    along: list[Statement] = [*needed, *last]
    rows = sorted({r for s in along for r in _refs(s) if r.name not in names}, key=lambda r: r.name)
    reduced = {s.name for s in nest.body if isinstance(s, Reduce)}
    if not reduced or not rows or any(r.dtype is DType.BOOL for r in rows):
        return ()
    count = len(nest.buffers)
    buffers = (*nest.buffers, *(Buffer(f"row{k}", r.dtype) for k, r in enumerate(rows)))
    partials = tuple((prod(nest.outer), r.dtype) for r in rows)
    steps = row_major(nest.outer, 1)
    keep = [Store(count + k, Index(0, (*steps, *[0] * len(nest.inner))), r) for k, r in enumerate(rows)]
    # Before what is stored over what the second nest would read.
    first: list[Statement] = [s for s in nest.body if not isinstance(s, Store)]
    first += [*keep, *(s for s in nest.body if isinstance(s, Store) and s not in last)]
    numbers = (*range(count), *(-1 - k for k in range(len(rows))))
    swapped = _Swapped(nest, {r.name: count + k for k, r in enumerate(rows)}, steps)
    second = [mapped_statement(s, swapped.expr, swapped.at) for s in along]
    made = (
        Nest(buffers, nest.outer, nest.inner, tuple(first)),
        Nest(buffers, (*nest.inner, *nest.outer), (), tuple(second)),
    )
    return tuple(only_used(tidy(one), numbers, partials) for one in made)


class _Swapped:
    """The second nest's expressions: its loops are the rows' elements, then the rows. rows: buffers by name."""

    def __init__(self, nest: Nest, rows: dict[str, int], steps: tuple[int, ...]) -> None:
        self.nouter, self.ninner = len(nest.outer), len(nest.inner)
        self.rows, self.steps = rows, steps

    def at(self, index: Index) -> Index:
        return Index(index.offset, (*index.strides[self.nouter :], *index.strides[: self.nouter]), index.gathers)

    def expr(self, expr: Expr) -> Expr | None:
        match expr:
            case Ref(name=name, dtype=dtype) if name in self.rows:
                return Load(self.rows[name], Index(0, (*[0] * self.ninner, *self.steps)), dtype)
            case Position(loop=loop):
                return Position(loop + self.ninner if loop < self.nouter else loop - self.nouter)
        return None


def _is_along(store: Store, nouter: int, names: frozenset[str]) -> bool:
    """Whether a store writes elements of a row."""
    return any(store.index.strides[nouter:]) or any(is_inner(x, nouter, names) for x in expressions(store))


def _refs(statement: Statement) -> list[Ref]:
    return [e for x in expressions(statement) for e in walk(x) if isinstance(e, Ref)]


def _loads(statement: Statement) -> list[Load]:
    return [e for x in expressions(statement) for e in walk(x) if isinstance(e, Load)]


def _may_be_apart(nest: Nest, last: list[Store]) -> bool:
    """Whether the second nest reads nothing that the first one writes, and each element is written once."""
    if nest.ordered or is_symbolic(nest.sizes) or any(isinstance(s, Scan) for s in nest.body):
        return False
    if any(s.mode != "set" or s.index.gathers for s in nest.body if isinstance(s, Store)):
        return False
    if any(load.index.gathers for s in nest.body for load in _loads(s)):
        return False
    written = {s.buffer for s in nest.body if isinstance(s, Store) and s not in last}
    names = inner_names(nest)
    along: list[Statement] = [*_needed(nest, last, names), *last]
    read = {load.buffer for s in along for load in _loads(s)}
    return not written & read


def _needed(nest: Nest, last: list[Store], names: frozenset[str]) -> list[Let]:
    """The values along a row of which the last stores are made."""
    wanted = {r.name for s in last for r in _refs(s)}
    found: list[Let] = []
    for statement in reversed(nest.body):
        if isinstance(statement, Let) and statement.name in wanted and statement.name in names:
            found.append(statement)
            wanted.update(r.name for r in _refs(statement))
    return found[::-1]


def _is_far(nest: Nest) -> bool:
    """Whether the elements of a row lie in lines of their own, more than stay in the cache until the next pass.

    Lines that lie a power of two apart share few of its sets: of them stay no more than of memory without gaps would.
    """
    nouter, far = len(nest.outer), dict[tuple[int, Index], int]()
    for load in (found for s in nest.body for found in _loads(s)):
        steps = [abs(s) * load.dtype.itemsize for s in load.index.strides[nouter:] if s]
        if steps and min(steps) < _LINE_NBYTES:
            return False
        if steps:
            far[load.buffer, load.index] = min(steps) & -min(steps)
    count, cache = prod(nest.inner), data_cache_nbytes()[1]
    return count * _LINE_NBYTES * len(far) >= cache // 4 or count * sum(far.values()) >= cache
