"""Where an element of a tensor is read: for each dimension an affine function of the nest's loops.

    x[i, j] of f32[4, 6] seen as f32[2, 2, 6]:   i = 2*l0 + l1,  j = l2

Invariant: an index that is used to reach memory lies within its dimension wherever its mask holds. Loops are known by
number while a nest is made; a loop of size 1 never is. Sizes known at run time only are told by their expressions: what
does not hold of all of them is treated as if it held of none, so that one nest serves them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from smelt.codegen.kernels.nest import Expr
from smelt.codegen.kernels.sizes import at_most
from smelt.diag.records import record
from smelt.ir.sizes import blind, equals, is_one, is_whole, size_max, size_min


class Unfusible(Exception):
    """The nodes cannot be computed by one nest; the message says why."""


class NeedSplit(Exception):
    """The nest can be made if loop `loop` is two loops, the inner one of size `inner`."""

    def __init__(self, loop: int, inner: int) -> None:
        super().__init__(f"loop {loop} in steps of {inner}")
        self.loop, self.inner = loop, inner


@record
class Indirect:
    """A position read at run time (i64), times `coefficient`; see `nest.Gather` for `size` and `wraps`."""

    position: Expr
    coefficient: int
    size: int
    wraps: bool


@record
class Ix:
    """`offset + sum(coefficient * loop) + sum(indirect)`; `terms` are (loop, coefficient) by ascending loop."""

    offset: int = 0
    terms: tuple[tuple[int, int], ...] = ()
    indirect: tuple[Indirect, ...] = ()

    def scaled(self, factor: int, plus: int = 0) -> Ix:
        """`factor * self + plus`."""
        if equals(factor, 0):
            return Ix(plus)
        return Ix(
            self.offset * factor + plus,
            tuple((loop, c * factor) for loop, c in self.terms),
            tuple(Indirect(g.position, g.coefficient * factor, g.size, g.wraps) for g in self.indirect),
        )

    def plus(self, other: Ix) -> Ix:
        """The sum of two indices."""
        found = dict(self.terms)
        for loop, c in other.terms:
            found[loop] = found.get(loop, 0) + c
        terms = tuple((loop, c) for loop, c in sorted(found.items()) if not equals(c, 0))
        return Ix(self.offset + other.offset, terms, self.indirect + other.indirect)

    def is_same(self, other: Ix) -> bool:
        """Whether two indices without indirect terms are equal at all sizes."""
        return (
            not self.indirect
            and not other.indirect
            and equals(self.offset, other.offset)
            and len(self.terms) == len(other.terms)
            and all(a[0] == b[0] and equals(a[1], b[1]) for a, b in zip(self.terms, other.terms, strict=True))
        )

    @property
    def loops(self) -> frozenset[int]:
        """The loops it runs with, those of indirect positions apart."""
        return frozenset(loop for loop, _ in self.terms)


Idx: TypeAlias = tuple[Ix, ...]
"""One index for each dimension of a tensor."""

ZERO = Ix()


def bounds(ix: Ix, sizes: Mapping[int, int]) -> tuple[int, int]:
    """The least and the greatest value of an index without indirect terms."""
    low = high = ix.offset
    for loop, c in ix.terms:
        reach = c * (sizes[loop] - 1)
        low, high = low + size_min(reach, 0), high + size_max(reach, 0)
    return low, high


def divided(ix: Ix, divisor: int, sizes: Mapping[int, int]) -> tuple[Ix, Ix]:
    """(ix // divisor, ix % divisor), both affine. Raises: NeedSplit, Unfusible where they are not."""
    if is_one(divisor):
        return ix, ZERO
    if ix.indirect:
        raise Unfusible("a position read at run time would have to be split into indices")
    quotient = tuple((loop, c // divisor) for loop, c in ix.terms if is_whole(c, divisor))
    rest = tuple((loop, c) for loop, c in ix.terms if not is_whole(c, divisor))
    remainder = Ix(ix.offset % divisor, rest)
    low, high = bounds(remainder, sizes)
    if at_most(0, low) and at_most(high + 1, divisor):
        return Ix(ix.offset // divisor, quotient), remainder
    for loop, c in rest:
        if at_most(1, c) and at_most(c + 1, divisor) and is_whole(divisor, c):
            inner = divisor // c
            # A multiple that is not equal is larger.
            if is_whole(sizes[loop], inner) and not equals(sizes[loop], inner):
                raise NeedSplit(loop, inner)
    raise Unfusible("its dimensions are split where no loop ends")


def unravelled(ix: Ix, shape: Sequence[int], sizes: Mapping[int, int]) -> Idx:
    """The index in a row-major tensor of `shape` of the element whose linear index is `ix`."""
    found: list[Ix] = []
    for size in reversed(shape[1:]):
        ix, rest = divided(ix, size, sizes)
        found.append(rest)
    if shape:
        found.append(ix)
    return tuple(reversed(found))


def linear(idx: Idx, shape: Sequence[int]) -> Ix:
    """The row-major linear index."""
    total, step = ZERO, 1
    for ix, size in zip(reversed(idx), reversed(shape), strict=True):
        if not is_one(size):
            total = total.plus(ix.scaled(step))
        step *= size
    return total


def reshaped(idx: Idx, shape: Sequence[int], into: Sequence[int], sizes: Mapping[int, int]) -> Idx:
    """The index in `into` of the element at `idx` in `shape`, both row-major over the same elements.

    Groups of dimensions that agree are mapped one by one, so that an indirect index passes where it may.
    """
    found: list[Ix] = []
    a = b = 0
    while a < len(shape) or b < len(into):
        i, j = a + 1, b + 1
        left = shape[a] if a < len(shape) else 1
        right = into[b] if b < len(into) else 1
        while not equals(left, right) and (i < len(shape) or j < len(into)):
            if j >= len(into) or (i < len(shape) and _is_less(left, right)):
                left *= shape[i]
                i += 1
            else:
                right *= into[j]
                j += 1
        i, j = min(i, len(shape)), min(j, len(into))
        found.extend(_regrouped(idx[a:i], shape[a:i], into[b:j], sizes))
        a, b = i, j
    return tuple(found)


@blind
def _is_less(left: int, right: int) -> bool:
    """Which of two products a group of dimensions goes on with: each way gives groups that are right."""
    return left < right


def _regrouped(idx: Idx, shape: Sequence[int], into: Sequence[int], sizes: Mapping[int, int]) -> Idx:
    wide = [k for k, size in enumerate(into) if not is_one(size)]
    known = [ix for ix, size in zip(idx, shape, strict=True) if not is_one(size)]
    if len(wide) == len(known) and len(wide) <= 1:
        return tuple(known[0] if k in wide else ZERO for k in range(len(into)))
    return unravelled(linear(idx, shape), into, sizes)


def broadcast(idx: Idx, shape: Sequence[int]) -> Idx:
    """The index of the element that a tensor of `shape` gives at `idx` of a larger shape."""
    tail = idx[len(idx) - len(shape) :] if shape else ()
    return tuple(ZERO if is_one(size) else ix for ix, size in zip(tail, shape, strict=True))
