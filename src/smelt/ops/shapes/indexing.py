"""How the results of advanced indexing lie, in plain Python: `x[i, :, j]` of index tensors, masks left out.

    x: [2, 3, 4]{12, 4, 1}, i: [5, 6]{1, 5}      ==>      x[i]: [5, 6, 3, 4]{12, 60, 4, 1}

Source: torch's AdvancedIndex (aten/src/ATen/native/TensorAdvancedIndexing.cpp). The dimensions that are indexed become
those of the indices, where they stand side by side, and the first ones where they do not; then torch goes over `x`, in
which the new dimensions take no step, and over the indices as over operands element by element.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.ops.shapes.pointwise import pointwise_strides
from smelt.ops.shapes.results import broadcast
from smelt.ops.shapes.views import Layout, seen_as

INDEXING = frozenset(("aten.index.Tensor", "aten._unsafe_index.Tensor"))


def index_strides(x: Layout, indices: Sequence[Layout | None]) -> tuple[int, ...] | None:
    """The strides of `x` at these indices, None for a dimension that is taken whole; None where they do not fit."""
    places = [dim for dim, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    shape = broadcast(*(index.sizes for index in given))
    if not places or shape is None or len(indices) > x.rank:
        return None
    whole = [dim for dim in range(x.rank) if dim not in places]
    is_joined = places == list(range(places[0], places[-1] + 1))
    before, after = ([], whole) if not is_joined else (whole[: places[0]], whole[places[0] :])
    sizes = (*(x.sizes[d] for d in before), *shape, *(x.sizes[d] for d in after))
    steps = (*(x.strides[d] for d in before), *(0 for _ in shape), *(x.strides[d] for d in after))
    operands = [Layout(sizes, steps)]
    for index in given:
        spread = _expanded(index, shape)
        seen = (*(1 for _ in before), *shape, *(1 for _ in after))
        strides = seen_as(spread, seen)
        if strides is None:
            return None
        operands.append(Layout(seen, strides))
    return pointwise_strides(operands, sizes)


def _expanded(at: Layout, shape: Sequence[int]) -> Layout:
    """A layout as it is broadcast to a shape."""
    more = len(shape) - at.rank
    pairs = zip(at.sizes, at.strides, shape[more:], strict=True)
    return Layout(
        tuple(shape), (*(0,) * more, *(0 if size == 1 and whole != 1 else step for size, step, whole in pairs))
    )
