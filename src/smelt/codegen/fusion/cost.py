"""What a nest costs, in bytes: memory moved at least once, and operations in the bytes that could move meanwhile.

An addition takes about as long as moving one byte from the caches; a launch as long as `LAUNCH_NBYTES`. A part of
a join is read where it is chosen only; where the join runs as pieces (`joins`) it is computed there only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from smelt.codegen.fusion.joins import is_worth_cutting, ranges
from smelt.codegen.kernels.nest import (
    Index,
    Load,
    Nest,
    Op,
    Reduce,
    Scan,
    Statement,
    Store,
    expressions,
    inner_names,
    is_inner,
    walk,
)
from smelt.codegen.kernels.operations import OPS
from smelt.ir.sizes import chosen

LAUNCH_NBYTES = 16_384
"""Bytes that could be moved in the time that starting a kernel and meeting at its end takes (about a microsecond)."""


@dataclass(frozen=True, slots=True)
class NestCost:
    """Bytes read and written at least once, and weighted operations."""

    nbytes: int
    operations: int

    @property
    def total(self) -> int:
        """The cost of the nest as one launch, in bytes."""
        return self.nbytes + self.operations + LAUNCH_NBYTES


@chosen
def cost(nest: Nest) -> NestCost:
    """The cost of a nest, at the sizes at hand: any grouping of nodes that it leads to is right."""
    sizes = nest.sizes
    touched: dict[tuple[int, Index], int] = {}
    operations = 0
    names = inner_names(nest)
    outer, whole = prod(nest.outer), prod(sizes)
    found = ranges(nest)
    pieces = found if found is not None and is_worth_cutting(found) else None
    for number, statement in enumerate(nest.body):
        points = whole if _is_inner(statement, len(nest.outer), names) else outer
        if isinstance(statement, Store):
            touched[statement.buffer, statement.index] = _reach(statement.index, sizes)
        for expr in expressions(statement):
            for part in walk(expr):
                if isinstance(part, Load):
                    turns = sizes if found is None else found.sizes_of(part)
                    touched[part.buffer, part.index] = _reach(part.index, turns)
                elif isinstance(part, Op) and pieces is None:
                    operations += points * _weight(part)
            if pieces is not None:
                per_turn = points // nest.sizes[pieces.loop]
                for op, bits in pieces.operations(expr, pieces.needed[number]):
                    operations += per_turn * pieces.length(bits) * _weight(op)
        operations += points if isinstance(statement, (Reduce, Scan)) else 0
    nbytes = sum(count * nest.buffers[buffer].dtype.itemsize for (buffer, _), count in touched.items())
    return NestCost(nbytes, operations)


def _weight(op: Op) -> int:
    return round(OPS[op.op].cost)


def _is_inner(statement: Statement, nouter: int, names: frozenset[str]) -> bool:
    """Whether a statement runs at each inner point; `names`: of the values that do."""
    if not isinstance(statement, Store):
        return isinstance(statement, (Reduce, Scan)) or statement.name in names
    return any(is_inner(expr, nouter, names) for expr in expressions(statement))


def _reach(index: Index, sizes: Sequence[int]) -> int:
    """Elements that an index touches: no more than its points, nor than lie between its first and last."""
    points, extent = 1, 1
    for stride, size in zip(index.strides, sizes, strict=True):
        if stride:
            points *= size
            extent += abs(stride) * (size - 1)
    return points if index.gathers else min(points, extent)
