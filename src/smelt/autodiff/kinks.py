"""Gradients of zeros that autograd has, and a graph of gradients has not.

    %1 = aten.gt.Scalar(%x, 0); %2 = aten.where.self(%1, %g, 0)        the gradient of `relu`

Of `%x` that has no gradient. Autograd's own formula for the second derivative gives zeros: so `.grad` is a tensor of
zeros, not None, and an optimizer updates the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from smelt.autodiff.activity import is_differentiated, may_depend
from smelt.ir import Node, TensorType, Value


def is_zero(
    nodes: Iterable[Node], roots: Collection[object], value: Value, is_captured: Callable[[Node], bool]
) -> bool:
    """Whether roots depend on a value through comparisons that a gradient was written with.

    nodes: all from the value to the roots, in order. is_captured: whether the program has a node itself; what is lost
    in one of those is no gradient of zeros. Where a node has regions, that is not told.
    """
    if not isinstance(value.type, TensorType):
        return False
    active, behind = {value}, set[Value]()
    for node in nodes:
        if node.regions:
            return False
        reads = set(node.operands())
        if reads & active and is_differentiated(node):
            active.update(r for r in node.results if may_depend(r.type))
        if reads & active and not is_captured(node):
            behind.update(r for r in node.results if not may_depend(r.type))
        if reads & behind:
            behind.update(node.results)
    return any(root in behind for root in roots)
