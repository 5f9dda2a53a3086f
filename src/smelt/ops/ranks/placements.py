"""Where the elements of one tensor lie when several ranks share the work along one axis of a mesh.

R            each rank has all of it                       S(1)    each has a part of dimension 1
P(sum)       the tensor is the sum of what the ranks have  S(0; 3, 1)    uneven blocks: 3 elements, then 1
S(0) by %3   each has rows of its own, sorted by itself

A `Correspondence` tells how an operator's operands and results lie if the work is divided along one of its labels: the
dimensions that are gone through together (`b`, `n`, `k` of a product). It says nothing of communication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import accumulate
from typing import TypeAlias

from smelt.diag.records import record
from smelt.ir import Arg, Node


@record
class Replicate:
    """Each rank has the whole tensor, and the same one."""

    def __str__(self) -> str:
        return "R"


@record
class Partial:
    """The tensor is what comes of all ranks' tensors of its size. op: "sum" or "max"."""

    op: str = "sum"

    def __str__(self) -> str:
        return f"P({self.op})"


@record
class Shard:
    """Each rank has some elements of a dimension.

    sizes: how many each rank has, of each block. blocks: into how many equal ones the dimension falls, each of which is
    divided so: a weight that holds those of queries, keys and values one behind the other has 3.
    """

    dim: int
    sizes: tuple[int, ...]
    blocks: int = 1

    @property
    def total(self) -> int:
        """The whole dimension's size."""
        return self.blocks * sum(self.sizes)

    def local(self, rank: int) -> int:
        """How many elements of the dimension a rank has."""
        return self.blocks * self.sizes[rank]

    def ranges(self, rank: int) -> tuple[tuple[int, int], ...]:
        """Start and end of what a rank has of each part, counted in the whole dimension."""
        start, whole = sum(self.sizes[:rank]), sum(self.sizes)
        return tuple((k * whole + start, k * whole + start + self.sizes[rank]) for k in range(self.blocks))

    @property
    def is_even(self) -> bool:
        """Whether all ranks have equally many."""
        return len(set(self.sizes)) == 1

    def __str__(self) -> str:
        sizes = "" if self.is_even else f"; {', '.join(map(str, self.sizes))}"
        return f"S({self.dim}{sizes})" + (f"*{self.blocks}" if self.blocks > 1 else "")


@record
class Rows:
    """Each rank has its own rows of a dimension, in an order of its own.

    order: the name of the value that tells it, the numbers by which a sort moves rows: each rank has sorted its own.
    spare: more rows than the rank uses; what is in the others means nothing.
    """

    dim: int
    sizes: tuple[int, ...]
    order: str
    spare: bool = False

    def local(self, rank: int) -> int:
        """How many rows a rank has."""
        return self.sizes[rank]

    def __str__(self) -> str:
        return f"S({self.dim}) by %{self.order}"


@record
class Order:
    """The numbers of rows by which a sort moves them: each rank has those of its own rows, counted among its own.

    order: the sort's name of them. per: how many of the sorted rows there are for each that is meant. undoes: whether
    they move rows back.
    """

    sizes: tuple[int, ...]
    order: str
    per: int = 1
    undoes: bool = False

    def local(self, rank: int) -> int:
        """How many numbers a rank has."""
        return self.sizes[rank]

    def __str__(self) -> str:
        return f"numbers of rows by %{self.order}"


Placement: TypeAlias = Replicate | Shard | Partial | Rows | Order
WHOLE = Replicate()


def evenly(count: int, ranks: int) -> tuple[int, ...]:
    """How many of `count` each rank has, as `torch.chunk` and DTensor divide: the first ones as many as any."""
    each = -(-count // ranks)
    ends = [min(each * (i + 1), count) for i in range(ranks)]
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def offsets(sizes: Sequence[int]) -> tuple[int, ...]:
    """Where each rank's elements start."""
    return tuple(accumulate((0, *sizes[:-1])))


@record
class Dim:
    """A dimension that a label goes along: `count` of the label, each `factor` elements, in `blocks` equal blocks."""

    label: str
    factor: int = 1
    blocks: int = 1


Dims: TypeAlias = tuple[Dim | None, ...]
"""Of a tensor, dimension by dimension; None for one that stays whole."""

LocalArguments: TypeAlias = Callable[[Sequence[tuple[int, ...]], Sequence[tuple[int, ...]]], Mapping[str, Arg]]
"""From the sizes that operands and results have on the rank: the arguments that say them."""


@record
class Correspondence:
    """operands, results: of each tensor, in order; elements of a tuple count as results.

    reduces: labels that the results do not have, by what combines the ranks' results. linear: sets of operands, by
    number, in which the operator is linear together: sums pass through. local: the arguments that are different on a
    rank.
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    reduces: Mapping[str, str] = field(default_factory=dict)
    linear: tuple[frozenset[int], ...] = ()
    local: LocalArguments | None = None


Rule: TypeAlias = Callable[[Node, Mapping[str, Arg]], "Correspondence | tuple[Correspondence, ...] | None"]
"""From a node and its arguments by name: how it can be divided; several where dimensions have several labels."""


@record
class Division:
    """A label divided among the ranks: how many each has, of each of `blocks`; in which order, and whether there are
    spare ones, as of `Rows`."""

    label: str
    sizes: tuple[int, ...]
    blocks: int = 1
    order: str = ""
    spare: bool = False

    def placement(self, dims: Dims) -> Shard | Rows | None:
        """How a tensor of these dimensions lies; None where the label goes along none of them."""
        for i, dim in enumerate(dims):
            if dim is not None and dim.label == self.label:
                if self.order:
                    return Rows(i, self.sizes, self.order, self.spare)
                return Shard(i, tuple(size * dim.factor for size in self.sizes), self.blocks * dim.blocks)
        return None

    def fits(self, dims: Dims) -> bool:
        """Whether a tensor of these dimensions can lie so: rows in an order of their own stay rows."""
        return not self.order or all(d.factor == d.blocks == 1 for d in dims if d is not None and d.label == self.label)


def division_of(placement: Placement, dims: Dims) -> Division | None:
    """The division of a label that makes a tensor lie so; None where no label's does."""
    if not isinstance(placement, Shard | Rows):
        return None
    dim = dims[placement.dim] if placement.dim < len(dims) else None
    if dim is None:
        return None
    if isinstance(placement, Rows):
        own = Division(dim.label, placement.sizes, 1, placement.order, placement.spare)
        return own if own.fits(dims) else None
    if placement.blocks % dim.blocks or any(size % dim.factor for size in placement.sizes):
        return None
    if dim.blocks > 1 and placement.blocks != dim.blocks:
        return None
    return Division(dim.label, tuple(s // dim.factor for s in placement.sizes), placement.blocks // dim.blocks)
