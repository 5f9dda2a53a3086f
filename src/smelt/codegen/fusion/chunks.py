"""A reduction to few elements as two nests, so that threads can share it: partial results of chunks, then their sum.

    s = sum over (j0 < 1000000) of x[j0]      ==>      i0 < 125: p[i0] = sum over (j0 < 8000) of x[8000*i0 + j0]
                                                       s = sum over (j0 < 125) of p[j0]

Invariant: the chunks depend on the sizes alone, so the result does not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from math import prod

from smelt.codegen.fusion.joins import pieces
from smelt.codegen.fusion.tidy import mapped, mapped_index, mapped_statement, tidy
from smelt.codegen.kernels.nest import (
    Buffer,
    Const,
    Expr,
    Index,
    Let,
    Load,
    Nest,
    Op,
    Position,
    Reduce,
    ReduceKind,
    Ref,
    Statement,
    Store,
    expressions,
    inner_names,
    is_inner,
    walk,
)
from smelt.codegen.kernels.sizes import at_most
from smelt.diag.records import record
from smelt.ir import DType
from smelt.ir.sizes import ceil_div, equals, is_symbolic, late

CHUNK = 16_384
"""Elements of a chunk: some microseconds of work."""
_FEW = 4
"""Outer points below which threads would stand idle."""


@record
class Stage:
    """One of the nests that a nest is run as.

    buffers: for each of its buffers the number of the whole nest's buffer, or -1 - k for partial results number k.
    partials: the sizes (elements) and dtypes of all partial results.
    """

    nest: Nest
    buffers: tuple[int, ...]
    partials: tuple[tuple[int, DType], ...] = ()


def stages(nest: Nest) -> tuple[Stage, ...]:
    """The nests to run: one after another, or side by side where they are the pieces of one (`joins`)."""
    numbers = tuple(range(len(nest.buffers)))
    alone = Stage(nest, numbers)
    if not _can_be_split(nest):
        joined = pieces(nest)
        if len(joined) == 1:
            return (alone,)
        # One that refuses its data leaves all to torch, which raises as it would and needs all buffers.
        return tuple(Stage(one, numbers) if may_refuse(one) else only_used(one, numbers, ()) for one in joined)
    chunk = _chunk_of_row(nest.inner[0]) if len(nest.inner) == 1 else _chunk(nest.inner)
    size = nest.inner[0]
    if is_symbolic(size) or is_symbolic(chunk):
        # Whole chunks, then what is left, 1 to all of a chunk: no element needs to ask whether it is within.
        whole = (size - 1) // chunk
        begin = whole * chunk
        parts = [
            _Chunked(nest, chunk, whole + 1, 0, whole),
            _Chunked(nest, size - begin, whole + 1, whole, 1, begin),
        ]
    else:
        count = ceil_div(size, chunk)
        if count < 2:
            return (alone,)
        parts = [_Chunked(nest, chunk, count, 0, count)]
    return _staged(nest, parts)


def may_refuse(nest: Nest) -> bool:
    """Whether there are data for which a nest's kernel fails: a position out of range, a division by zero."""
    if any(isinstance(s, Store) and s.index.gathers for s in nest.body):
        return True
    for part in (e for s in nest.body for x in expressions(s) for e in walk(x)):
        match part:
            case Load(index=Index(gathers=gathers)) if gathers:
                return True
            case Op(op="idiv" | "floordiv" | "rem" | "fmod"):
                return True
    return False


def are_pieces(found: Sequence[Stage]) -> bool:
    """Whether stages run side by side: all but those that pass partial results on."""
    return len(found) > 1 and not any(stage.partials for stage in found)


def in_ranges(nest: Nest, count: int) -> tuple[Stage, ...]:
    """A nest that reduces, as one that reduces ranges of its first inner loop, whose results lie range by range, and
    one that combines them. count: of ranges, a divisor of the loop's size.
    """
    return _staged(nest, [_Chunked(nest, nest.inner[0] // count, count, 0, count, is_apart=True)])


def _staged(nest: Nest, parts: Sequence[_Chunked]) -> tuple[Stage, ...]:
    reduces = [s for s in nest.body if isinstance(s, Reduce)]
    count, nbuffers = parts[0].count, len(nest.buffers)
    partials = tuple((prod(nest.outer) * count, r.dtype) for r in reduces)
    more = tuple(Buffer(f"partial{k}", r.dtype) for k, r in enumerate(reduces))
    buffers = (*nest.buffers, *more)
    nests = [
        Nest(buffers, (*nest.outer, one.turns), (one.chunk, *nest.inner[1:]), tuple(one.statements(nbuffers)))
        for one in parts
    ]
    nests.append(Nest(buffers, nest.outer, (count,), tuple(_combined(nest, parts[0].strides(), nbuffers))))
    numbers = (*range(nbuffers), *(-1 - k for k in range(len(reduces))))
    return tuple(only_used(tidy(n), numbers, partials) for n in nests)


def _can_be_split(nest: Nest) -> bool:
    # Where the outer points may be many, they are taken to be.
    is_for_few = at_most(prod(nest.outer), _FEW - 1) and not nest.ordered
    return is_for_few and _combines(nest) and prod(nest.inner) >= 2 * CHUNK


def _combines(nest: Nest) -> bool:
    """Whether all that a nest stores follows from reductions whose partial results can be combined."""
    names = inner_names(nest)
    derived: set[str] = set()
    for statement in nest.body:
        parts = [e for x in expressions(statement) for e in walk(x)]
        uses = {e.name for e in parts if isinstance(e, Ref)}
        if any(isinstance(e, Load) and e.index.gathers for e in parts):
            return False
        match statement:
            case Reduce(kind=kind, name=name):
                if kind.startswith("arg") or uses & derived:
                    return False
                derived.add(name)
            case Let(name=name):
                if uses & derived:
                    derived.add(name)
            case Store(index=index):
                nouter = len(nest.outer)
                if any(index.strides[nouter:]) or any(is_inner(x, nouter, names) for x in expressions(statement)):
                    return False
            case _:
                return False
    return True


@late(low=CHUNK // 2)
def _chunk_of_row(size: int) -> int:
    return _chunk_of(size, CHUNK)


@late(low=1)
def _chunk(inner: tuple[int, ...]) -> int:
    return _chunk_of(inner[0], max(1, CHUNK // prod(inner[1:])))


def _chunk_of(size: int, wanted: int) -> int:
    """The largest divisor not far below what is wanted, else what is wanted."""
    if wanted >= size:
        return size
    for chunk in range(wanted, wanted // 2, -1):
        if size % chunk == 0:
            return chunk
    return wanted


class _Chunked:
    """A nest of partial results: the outer loops, the chunks, then what is reduced within one.

    count: partial results of each outer point; this nest makes `turns` of them from number `first` on, each of `chunk`
    elements, beginning at element `begin`. is_apart: the partial results of one chunk lie side by side, not those of
    one outer point.
    """

    def __init__(
        self, nest: Nest, chunk: int, count: int, first: int, turns: int, begin: int = 0, *, is_apart: bool = False
    ) -> None:
        self.nest, self.chunk, self.count, self.is_apart = nest, chunk, count, is_apart
        self.first, self.turns, self.begin = first, turns, begin
        self.nouter = len(nest.outer)
        self.is_exact = is_symbolic(count) or chunk * count == nest.inner[0]

    def strides(self) -> tuple[int, ...]:
        """Those of partial results, over the outer loops, then the chunks."""
        if self.is_apart:
            return (*row_major(self.nest.outer, 1), prod(self.nest.outer))
        return (*row_major(self.nest.outer, self.count), 1)

    def position(self) -> Expr:
        """The counter of the loop that is split."""
        whole = Op("mul", (Position(self.nouter), Const(self.chunk, DType.I64)), DType.I64)
        at = Op("add", (whole, Position(self.nouter + 1)), DType.I64)
        return at if equals(self.begin, 0) else Op("add", (at, Const(self.begin, DType.I64)), DType.I64)

    def at(self, index: Index) -> Index:
        outer, inner = index.strides[: self.nouter], index.strides[self.nouter :]
        offset = index.offset + inner[0] * self.begin
        return Index(offset, (*outer, inner[0] * self.chunk, *inner), index.gathers)

    def swap(self, expr: Expr) -> Expr | None:
        match expr:
            case Position(loop=loop) if loop == self.nouter:
                return self.position()
            case Position(loop=loop) if loop > self.nouter:
                return Position(loop + 1)
            case Load(buffer=buffer, index=index, dtype=dtype, where=where, other=other) if self._is_cut(index):
                mask: Expr = Ref("within", DType.BOOL)
                if where is not None:
                    mask = Op("and", (mapped(where, self.swap, self.at), mask), DType.BOOL)
                none = Const(False if dtype is DType.BOOL else 0, dtype)
                return Load(buffer, mapped_index(index, self.swap, self.at), dtype, mask, other or none)
        return None

    def _is_cut(self, index: Index) -> bool:
        return not self.is_exact and not equals(index.strides[self.nouter], 0)

    def statements(self, first: int) -> Iterator[Statement]:
        if not self.is_exact:
            last = Const(self.nest.inner[0], DType.I64)
            yield Let("within", Op("lt", (self.position(), last), DType.BOOL))
        k = 0
        for statement in self.nest.body:
            match statement:
                case Let():
                    yield mapped_statement(statement, self.swap, self.at)
                case Reduce(name=name, kind=kind, expr=expr, dtype=dtype):
                    term = mapped(expr, self.swap, self.at)
                    if not self.is_exact:
                        neutral = Const(_neutral(kind, term.dtype), term.dtype)
                        term = Op("select", (Ref("within", DType.BOOL), term, neutral), term.dtype)
                    yield Reduce(name, kind, term, dtype)
                    index = Index(self.first, (*self.strides(), *[0] * len(self.nest.inner)))
                    yield Store(first + k, index, Ref(name, dtype))
                    k += 1


def _neutral(kind: ReduceKind, dtype: DType) -> float | int | bool:
    """What changes nothing when it is reduced with others."""
    match kind:
        case "sum":
            return 0
        case "prod":
            return 1
        case "any":
            return False
        case "all":
            return True
    if dtype.is_floating:
        return -math.inf if kind == "max" else math.inf
    bits = dtype.itemsize * 8
    low, high = (0, (1 << bits) - 1) if dtype.kind == "uint" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return low if kind == "max" else high


def row_major(outer: Sequence[int], unit: int) -> tuple[int, ...]:
    """Strides over these sizes, the last one `unit`."""
    strides = []
    for size in reversed(outer):
        strides.append(unit)
        unit *= size
    return tuple(reversed(strides))


def _combined(nest: Nest, strides: tuple[int, ...], first: int) -> Iterator[Statement]:
    """The second nest: partial results combined, then all that followed the reductions."""
    nouter = len(nest.outer)

    def at(index: Index) -> Index:
        return Index(index.offset, (*index.strides[:nouter], 0), index.gathers)

    names = inner_names(nest)
    k = 0
    for statement in nest.body:
        match statement:
            case Reduce(name=name, kind=kind, dtype=dtype):
                yield Reduce(name, kind, Load(first + k, Index(0, strides), dtype), dtype)
                k += 1
            case Let(name=name) if name in names:
                continue
            case _:
                yield mapped_statement(statement, lambda e: None, at)


def only_used(nest: Nest, numbers: Sequence[int], partials: tuple[tuple[int, DType], ...]) -> Stage:
    """A stage with just the buffers that its nest touches."""
    used = sorted(
        {e.buffer for s in nest.body for x in expressions(s) for e in walk(x) if isinstance(e, Load)} | set(nest.writes)
    )
    to = {old: new for new, old in enumerate(used)}

    def swap(expr: Expr) -> Expr | None:
        if not isinstance(expr, Load):
            return None
        where = None if expr.where is None else mapped(expr.where, swap)
        return Load(to[expr.buffer], mapped_index(expr.index, swap, None), expr.dtype, where, expr.other)

    body = []
    for statement in nest.body:
        made = mapped_statement(statement, swap)
        if isinstance(made, Store):
            made = Store(to[made.buffer], made.index, made.expr, made.where, made.mode)
        body.append(made)
    slim = Nest(tuple(nest.buffers[b] for b in used), nest.outer, nest.inner, tuple(body), nest.ordered)
    return Stage(slim, tuple(numbers[b] for b in used), partials)
