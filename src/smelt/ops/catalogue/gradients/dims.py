"""Dimensions that an operator reduces: which they are, how many elements they have, and the way back to the operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.ops.catalogue.gradients.terms import Term


def dims_of(dim: Any, rank: int) -> tuple[int, ...]:
    """The dimensions that an argument names, in order: all for None and for an empty list."""
    named = (dim,) if isinstance(dim, int) else tuple(dim or range(rank))
    return tuple(sorted(d % rank for d in named)) if rank else ()


def kept(reduced: Term, dims: Sequence[int], keepdim: bool) -> Term:
    """What a reduction gives, so that it broadcasts to the operand."""
    if keepdim or tuple(dims) == tuple(range(len(dims))):
        return reduced
    for dim in dims:
        reduced = reduced.op("unsqueeze.default", dim)
    return reduced


def spread(reduced: Term, x: Term) -> Term:
    """The same numbers in the operand's sizes. x: the operand, of which a known type is enough."""
    kind = x.type
    if kind.shape == reduced.type.shape:
        return reduced
    return reduced.op("expand.default", kind.sizes) if kind.is_static else reduced.op("expand_as.default", x)


def divided(g: Term, x: Term, dims: Sequence[int]) -> Term:
    """A tensor by the number of elements that dimensions of another have; as it is where they have none: it is spread
    over nothing then, and its own gradient is 0."""
    shape = x.type.shape
    assert shape is not None
    count = 1
    for dim in dims:
        size = shape[dim]
        if isinstance(size, int):
            count *= size
        else:
            g = g.op("div.Tensor", x.op("sym_size.int", dim).value)
    return g if count in (0, 1) else g / count


def mean(x: Term, dims: Sequence[int]) -> Term:
    """The mean, with the dimensions kept; over none it is the tensor itself."""
    return x.op("mean.dim", tuple(dims), True) if dims else x
