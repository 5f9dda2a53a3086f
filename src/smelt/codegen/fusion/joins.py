"""A join of several tensors as one nest for each: a loop that is cut where the masks of what it loads change.

    i0 < 8: y[i0] = select(lt(i0, 4), (a[i0] if lt(i0, 4)), (b[i0 - 4] if not(lt(i0, 4))))
        ==>     i0 < 4: y[i0] = a[i0]           i0 < 4: y[4 + i0] = b[i0]

As one nest each element passes through all arms of the selects, so a join of n parts takes n times as long as its
memory does; cut, each part is a copy, or the expression that makes it. Which conditions hold in which ranges of the
loop is told by bits, one for each range, so n parts take work in proportion to n here too.

Invariant: together the pieces compute and store what the nest does, each element once, and none reads what another
writes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cmp_to_key
from itertools import pairwise
from math import prod

from smelt.codegen.fusion.tidy import mapped, mapped_index, tidy
from smelt.codegen.kernels.nest import (
    Const,
    Expr,
    Index,
    Let,
    Load,
    Nest,
    Op,
    Position,
    Ref,
    Statement,
    Store,
    expressions,
    walk,
)
from smelt.codegen.kernels.sizes import at_most
from smelt.ir import DType
from smelt.ir.sizes import ceil_div, chosen, equals, is_one, is_symbolic

PIECE_NS = 8.0
"""What one more launch of a group takes: its record, its kernel's words."""
ARM_NS = 1.2
"""What a vector takes that is loaded under a mask and not chosen."""
ROW_NS = 1.4
"""What one more vector takes that is begun because a part ends."""
APART_NS = 0.4
"""What storing an element apart from its neighbours takes, beyond its part of a vector."""
_VECTOR_NBYTES = 64


class _Unordered(Exception):
    """Sizes known at run time only do not tell where a loop is cut first."""


@dataclass(slots=True)
class Ranges:
    """Ranges of an outer loop, and in which of them each value is needed: a bit each, the first the lowest.

    starts: where they begin, the end of the last behind them. needed: of each statement. loads: of what is loaded.
    """

    nest: Nest
    loop: int
    starts: tuple[int, ...]
    lets: dict[str, Expr]
    needed: list[int] = field(default_factory=list)
    loads: dict[tuple[int, Index], int] = field(default_factory=dict)
    _by_name: dict[str, int] = field(default_factory=dict)
    _truths: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found: list[int] = []
        for statement in reversed(self.nest.body):
            at = self.every if isinstance(statement, Store) else self._by_name.get(statement.name, 0)
            found.append(at)
            for expr in expressions(statement):
                self._need(expr, at)
        self.needed = found[::-1]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.starts) - 1

    @property
    def every(self) -> int:
        """All of them."""
        return (1 << self.count) - 1

    def length(self, bits: int) -> int:
        """Turns of the loop in these ranges."""
        if bits == self.every:
            return self.nest.sizes[self.loop]
        return sum(self.starts[k + 1] - self.starts[k] for k in members(bits))

    def truth(self, condition: Expr) -> tuple[int, int]:
        """The ranges in which a condition may hold somewhere, and in which it may not."""
        match condition:
            case Const(value=value):
                return (self.every, 0) if value else (0, self.every)
            case Ref(name=name) if name in self.lets:
                if name not in self._truths:
                    self._truths[name] = self.truth(self.lets[name])
                return self._truths[name]
            case Op(op="not", args=(inside,), dtype=DType.BOOL):
                holds, fails = self.truth(inside)
                return fails, holds
            case Op(op="and", args=(a, b), dtype=DType.BOOL):
                first, second = self.truth(a), self.truth(b)
                return first[0] & second[0], first[1] | second[1]
            case Op(op="lt" | "ge"):
                place = cut_at(condition, self.loop, self.lets)
                if place is None:
                    return self.every, self.every
                below = (1 << self._before(place)) - 1
                above = self.every & ~below
                return (below, above) if condition.op == "lt" else (above, below)
        return self.every, self.every

    def _before(self, place: int) -> int:
        """How many ranges end there or before: a place is where one begins, or beyond the loop."""
        if is_symbolic(place) or is_symbolic(self.starts):
            return sum(1 for end in self.starts[1:] if at_most(end, place))
        return bisect_right(self.starts, place, 1) - 1

    def sizes_of(self, load: Load) -> tuple[int, ...]:
        """Sizes of the loops where a load is needed."""
        sizes, turns = self.nest.sizes, self.length(self.loads[load.buffer, load.index])
        return (*sizes[: self.loop], turns, *sizes[self.loop + 1 :])

    def operations(self, expr: Expr, needed: int) -> Iterator[tuple[Op, int]]:
        """The operations of an expression that pieces compute, and in which ranges."""
        if not needed or self.is_decided(expr):
            return
        match expr:
            case Op(op="select", args=(condition, a, b)) if self.is_decided(condition):
                holds, fails = self.truth(condition)
                yield from self.operations(a, needed & holds)
                yield from self.operations(b, needed & fails)
            case Load(where=where, index=index):
                for inside in (*([where] if where else ()), *(g.position for g in index.gathers)):
                    yield from self.operations(inside, needed & (self.truth(where)[0] if where else needed))
            case Op(args=args):
                yield expr, needed
                for arg in args:
                    yield from self.operations(arg, needed)

    def is_decided(self, expr: Expr) -> bool:
        """Whether a condition either holds or does not in each range."""
        if expr.dtype is not DType.BOOL:
            return False
        holds, fails = self.truth(expr)
        return not holds & fails

    def _need(self, expr: Expr, at: int) -> None:
        match expr:
            case Ref(name=name):
                self._by_name[name] = self._by_name.get(name, 0) | at
            case Op(op="select", args=(condition, a, b)):
                holds, fails = self.truth(condition)
                self._need(condition, at)
                self._need(a, at & holds)
                self._need(b, at & fails)
            case Op(args=args):
                for arg in args:
                    self._need(arg, at)
            case Load(buffer=buffer, index=index, where=where):
                if where is not None:
                    self._need(where, at)
                    at &= self.truth(where)[0]
                self.loads[buffer, index] = self.loads.get((buffer, index), 0) | at
                for gather in index.gathers:
                    self._need(gather.position, at)


def members(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def cut_at(condition: Op, loop: int, lets: dict[str, Expr]) -> int | None:
    """The turn of a loop from which on `place < c` fails and `place >= c` holds; None where other loops decide too."""
    place, limit = condition.args
    found = _affine(place, loop, lets)
    if found is None or not isinstance(limit, Const) or isinstance(limit.value, float):
        return None
    step, begin = found
    if is_one(step):
        return limit.value - begin
    if is_symbolic((step, begin, limit.value)) or step < 1:
        return None
    return -((begin - limit.value) // step)


def _affine(expr: Expr, loop: int, lets: dict[str, Expr]) -> tuple[int, int] | None:
    """(a, b) of a place that is `a * loop + b`."""
    match expr:
        case Position(loop=other):
            return (1, 0) if other == loop else None
        case Const(value=value, dtype=DType.I64) if not isinstance(value, float):
            return 0, value
        case Ref(name=name) if name in lets:
            return _affine(lets[name], loop, lets)
        case Op(op="add", args=(a, b), dtype=DType.I64):
            first, second = _affine(a, loop, lets), _affine(b, loop, lets)
            if first is None or second is None:
                return None
            return first[0] + second[0], first[1] + second[1]
        case Op(op="mul", args=(a, Const(value=by)), dtype=DType.I64) if not isinstance(by, float):
            inside = _affine(a, loop, lets)
            return None if inside is None else (inside[0] * by, inside[1] * by)
    return None


# --- where a nest is cut ----------------------------------------------------------------------------------------------


def ranges(nest: Nest) -> Ranges | None:
    """The loop that masks cut into most ranges, with these; None where there is none, or its ranges are not told."""
    if nest.ordered:
        return None
    lets = {s.name: s.expr for s in nest.body if isinstance(s, Let)}
    parts = [part for statement in nest.body for expr in expressions(statement) for part in walk(expr)]
    if not any(isinstance(part, Load) and part.where is not None for part in parts):
        return None
    cuts: dict[int, list[int]] = {}
    for part in parts:
        if isinstance(part, Op) and part.op in ("lt", "ge"):
            for loop in range(len(nest.outer)):
                place = cut_at(part, loop, lets)
                if place is not None:
                    cuts.setdefault(loop, []).append(place)
    for loop, places in sorted(cuts.items(), key=lambda pair: -len(pair[1])):
        try:
            starts = _starts(places, nest.outer[loop])
        except _Unordered:
            continue
        if len(starts) > 2:
            return Ranges(nest, loop, starts, lets)
    return None


def _starts(places: Sequence[int], size: int) -> tuple[int, ...]:
    """Where ranges begin, ascending, and the loop's size. Raises: _Unordered."""
    kept: list[int] = []
    for place in sorted(places, key=cmp_to_key(_order)):
        if at_most(place, 0) or at_most(size, place) or (kept and equals(kept[-1], place)):
            continue
        if not at_most(1, place) or not at_most(place + 1, size):
            raise _Unordered
        kept.append(place)
    return (0, *kept, size)


def _order(a: int, b: int) -> int:
    if equals(a, b):
        return 0
    if at_most(a + 1, b):
        return -1
    if at_most(b + 1, a):
        return 1
    raise _Unordered


def is_worth_cutting(found: Ranges) -> bool:
    """Whether the pieces take less time than the one nest.

    That takes ARM_NS for each vector loaded in vain: where it joins parts these are at least half as many as it stores,
    where it is padded few. The pieces take PIECE_NS for each launch and, where parts end along the lanes, ROW_NS for
    each vector more, or APART_NS for each element where all are single elements there.
    """
    nest = found.nest
    stores = [s for s in nest.body if isinstance(s, Store)]
    ends_in_vectors = any(is_one(s.index.strides[found.loop]) for s in stores)
    lanes = _VECTOR_NBYTES // min(nest.buffers[s.buffer].dtype.itemsize for s in stores)
    return _is_less(prod(nest.sizes), found.starts, tuple(found.loads.values()), lanes, ends_in_vectors)


@chosen
def _is_less(points: int, starts: Sequence[int], loads: Sequence[int], lanes: int, ends_in_vectors: bool) -> bool:
    size, lengths = starts[-1], [end - start for start, end in pairwise(starts)]
    rows = points // size
    in_vain = sum(1 - sum(lengths[k] for k in members(bits)) / size for bits in loads)
    if in_vain < 0.5:
        return False
    more = len(lengths) * PIECE_NS
    if not ends_in_vectors:
        return points / lanes * in_vain * ARM_NS > more
    vectors = rows * ceil_div(size, lanes)
    if len(lengths) == size:
        more += points * APART_NS
    else:
        more += (rows * sum(ceil_div(length, lanes) for length in lengths) - vectors) * ROW_NS
    return vectors * in_vain * ARM_NS > more


# --- pieces -----------------------------------------------------------------------------------------------------------


def pieces(nest: Nest) -> tuple[Nest, ...]:
    """The nests that a nest is run as, side by side: itself alone where cutting it does not pay."""
    found = ranges(nest)
    if found is None or not is_worth_cutting(found):
        return (nest,)
    bodies: list[list[Statement]] = [[] for _ in range(found.count)]
    for statement, needed in zip(nest.body, found.needed, strict=True):
        decided = isinstance(statement, Let) and found.is_decided(statement.expr)
        for k in members(0 if decided else needed):
            bodies[k].append(statement)
    return tuple(_Piece(found, k).nest(body) for k, body in enumerate(bodies))


class _Piece:
    """One range of a nest as a nest of its own, in which its conditions are decided."""

    def __init__(self, found: Ranges, number: int) -> None:
        self.found, self.number, self.loop = found, number, found.loop
        self.start = found.starts[number]
        self.size = found.starts[number + 1] - self.start

    def nest(self, body: Sequence[Statement]) -> Nest:
        nest = self.found.nest
        outer = (*nest.outer[: self.loop], self.size, *nest.outer[self.loop + 1 :])
        made = (self._statement(statement) for statement in body)
        return tidy(replace(nest, outer=outer, body=tuple(s for s in made if s is not None)))

    def _statement(self, statement: Statement) -> Statement | None:
        if not isinstance(statement, Store):
            return replace(statement, expr=self._made(statement.expr))
        where = None if statement.where is None else self._made(statement.where)
        if isinstance(where, Const):
            if not where.value:
                return None
            where = None
        index = mapped_index(statement.index, self._swap, self._at)
        return replace(statement, index=index, expr=self._made(statement.expr), where=where)

    def _made(self, expr: Expr) -> Expr:
        return mapped(expr, self._swap, self._at)

    def _holds(self, condition: Expr) -> bool | None:
        """What a condition is in this range; None where it is not the same all over."""
        holds, fails = self.found.truth(condition) if condition.dtype is DType.BOOL else (0, 0)
        yes, no = holds >> self.number & 1, fails >> self.number & 1
        return bool(yes) if yes != no else None

    def _swap(self, expr: Expr) -> Expr | None:
        match expr:
            case Position(loop=loop) if loop == self.loop:
                if equals(self.start, 0):
                    return None
                return Op("add", (expr, Const(self.start, DType.I64)), DType.I64)
            case Op(op="select", args=(condition, a, b)):
                held = self._holds(condition)
                return None if held is None else self._made(a if held else b)
            case Op(op="and", args=(a, b), dtype=DType.BOOL):
                held = self._holds(expr)
                if held is not None:
                    return Const(held, DType.BOOL)
                if self._holds(a) or self._holds(b):
                    return self._made(b if self._holds(a) else a)
            case Op(dtype=DType.BOOL) | Ref(dtype=DType.BOOL):
                held = self._holds(expr)
                return None if held is None else Const(held, DType.BOOL)
            case Load(where=where, other=other) if where is not None:
                held = self._holds(where)
                if held is False and other is not None:
                    return other
                if held:
                    return Load(expr.buffer, mapped_index(expr.index, self._swap, self._at), expr.dtype)
        return None

    def _at(self, index: Index) -> Index:
        return replace(index, offset=index.offset + index.strides[self.loop] * self.start)
