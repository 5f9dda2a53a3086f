"""How results of operators lie that go over their operands element by element, in plain Python.

Source: torch's TensorIterator (aten/src/ATen/TensorIterator.cpp). Where all operands have one shape and lie alike and
densely, the result lies as they do; else it is dense, in the order of the operands' strides, the first operand first.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.ir.sizes import equals, is_less
from smelt.ops.shapes.views import Layout, is_row_major, row_major

_CHANNELS_LAST = (1, 3, 2, 0)


def pointwise_strides(operands: Sequence[Layout], shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a result of this shape; numbers stand among the operands as tensors without dimensions."""
    if all(is_less(0, size) for size in shape) and all(map(_is_known_row_major, operands)):
        return row_major(shape)
    if all(_is_same(at.sizes, shape) for at in operands):
        if all(map(is_row_major, operands)):
            return row_major(shape)
        if len(shape) == 4 and all(_is_dense_in(at, _CHANNELS_LAST) for at in operands):
            return _dense(shape, _CHANNELS_LAST)
        if all(map(is_dense, operands)) and all(at.strides == operands[0].strides for at in operands):
            return operands[0].strides
    order = _order([_spread(at, shape) for at in operands], shape)
    return row_major(shape) if order == list(range(len(shape) - 1, -1, -1)) else _dense(shape, order)


def is_dense(at: Layout) -> bool:
    """Whether elements lie side by side, in whatever order of dimensions."""
    if 0 in at.sizes:
        return True
    left = [d for d in range(at.rank) if at.sizes[d] != 1]
    step = 1
    while left:
        nearest = next((d for d in left if at.strides[d] == step), None)
        if nearest is None:
            return False
        left.remove(nearest)
        step *= at.sizes[nearest]
    return True


def _is_known_row_major(at: Layout) -> bool:
    """Whether each stride is the row-major one, at all sizes; leaves no guard."""
    expected = 1
    for size, step in zip(reversed(at.sizes), reversed(at.strides), strict=True):
        if not equals(step, expected):
            return False
        expected *= size
    return True


def _is_same(sizes: Sequence[int], shape: Sequence[int]) -> bool:
    return len(sizes) == len(shape) and all(a == b for a, b in zip(sizes, shape, strict=True))


def _is_dense_in(at: Layout, order: Sequence[int]) -> bool:
    """Whether elements lie side by side in an order of dimensions, the nearest first; sizes of 1 do not tell."""
    step = 1
    for d in order:
        size, own = at.sizes[d], at.strides[d]
        if not equals(own, step) and size != 1 and own != step and 0 not in at.sizes:
            return False
        step *= size
    return True


def _dense(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    steps = [1] * len(shape)
    step = 1
    for d in order:
        steps[d] = step
        step *= shape[d]
    return tuple(steps)


def _spread(at: Layout, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in the result's dimensions, 0 where the operand is broadcast."""
    more = len(shape) - at.rank
    pairs = zip(at.sizes, at.strides, shape[more:], strict=True)
    return (*(0,) * more, *(0 if size == 1 and whole != 1 else step for size, step, whole in pairs))


def _order(strides: Sequence[Sequence[int]], shape: Sequence[int]) -> list[int]:
    """The dimensions from the nearest to the farthest: an insertion sort in which many comparisons tell nothing."""
    order = list(range(len(shape) - 1, -1, -1))
    for i in range(1, len(order)):
        at = i
        for before in range(i - 1, -1, -1):
            swaps = _swaps(order[before], order[at], strides, shape)
            if swaps is False:
                break
            if swaps:
                order[before], order[at] = order[at], order[before]
                at = before
    return order


def _swaps(a: int, b: int, strides: Sequence[Sequence[int]], shape: Sequence[int]) -> bool | None:
    """Whether dimension `a` lies farther than `b`; None where no operand tells."""
    for steps in strides:
        if steps[a] == 0 or steps[b] == 0:
            continue
        if steps[a] == steps[b]:
            if shape[a] > shape[b]:
                return True
            continue
        return steps[a] > steps[b]
    return None
