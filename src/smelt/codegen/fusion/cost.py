"""What a nest costs, in bytes: memory moved at least once, and operations in the bytes that could move meanwhile.

An addition takes about as long as moving one byte from the caches; a launch as long as `LAUNCH_NBYTES`. A part of
a join is read where it is chosen only; where the join runs as pieces (`joins`) it is computed there only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from smelt.codegen.fusion.joins import is_worth_cutting, ranges
from smelt.codegen.kernels.nest import (
    Expr,
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
from smelt.codegen.kernels.operations import OPS
from smelt.diag.records import record
from smelt.ir.sizes import chosen

LAUNCH_NBYTES = 16_384
"""Bytes that could be moved in the time that starting a kernel and meeting at its end takes (about a microsecond)."""


@record
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
    names: set[str] = set()
    nouter, outer, whole = len(nest.outer), prod(nest.outer), prod(sizes)
    walked = [[part for expr in expressions(s) for part in walk(expr)] for s in nest.body]
    is_masked = any(part.__class__ is Load and part.where is not None for parts in walked for part in parts)
    found = ranges(nest) if is_masked else None
    pieces = found if found is not None and is_worth_cutting(found) else None
    for number, (statement, parts) in enumerate(zip(nest.body, walked, strict=True)):
        points = whole if _is_inner(statement, parts, nouter, names) else outer
        if isinstance(statement, Store):
            touched[statement.buffer, statement.index] = _reach(statement.index, sizes)
        for part in parts:
            if isinstance(part, Load):
                turns = sizes if found is None else found.sizes_of(part)
                touched[part.buffer, part.index] = _reach(part.index, turns)
            elif isinstance(part, Op) and pieces is None:
                operations += points * _WEIGHTS[part.op]
        for expr in expressions(statement) if pieces is not None else ():
            assert pieces is not None
            per_turn = points // sizes[pieces.loop]
            for op, bits in pieces.operations(expr, pieces.needed[number]):
                operations += per_turn * pieces.length(bits) * _WEIGHTS[op.op]
        operations += points if isinstance(statement, (Reduce, Scan)) else 0
    nbytes = sum(count * nest.buffers[buffer].dtype.itemsize for (buffer, _), count in touched.items())
    return NestCost(nbytes, operations)


_WEIGHTS = {name: round(op.cost) for name, op in OPS.items()}


def _is_inner(statement: Statement, parts: Sequence[Expr], nouter: int, names: set[str]) -> bool:
    """Whether a statement runs at each inner point. parts: of its expressions. names: of earlier values that do, to
    which this one's is added.
    """
    is_inner = isinstance(statement, (Reduce, Scan)) or any(_changes(part, nouter, names) for part in parts)
    if isinstance(statement, Scan) or (isinstance(statement, Let) and is_inner):
        names.add(statement.name)
    return is_inner


def _changes(part: Expr, nouter: int, names: set[str]) -> bool:
    """Whether a part of an expression changes along an inner loop."""
    match part:
        case Ref(name=name):
            return name in names
        case Load(index=index):
            return any(index.strides[nouter:])
        case Position(loop=loop):
            return loop >= nouter
    return False


def _reach(index: Index, sizes: Sequence[int]) -> int:
    """Elements that an index touches: no more than its points, nor than lie between its first and last."""
    points, extent = 1, 1
    for stride, size in zip(index.strides, sizes, strict=True):
        if stride:
            points *= size
            extent += abs(stride) * (size - 1)
    return points if index.gathers else min(points, extent)
