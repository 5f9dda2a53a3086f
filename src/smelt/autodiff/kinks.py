"""Gradients of zeros that autograd has, and a graph of gradients has not.

    %1 = aten.gt.Scalar(%x, 0); %2 = aten.where.self(%1, %g, 0)        the gradient of `relu`

Of `%x` that has no gradient. Autograd's own formula for the second derivative gives zeros: so `.grad` is a tensor of
zeros, not None, and an optimizer updates the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from smelt.autodiff.activity import ACTIVE, Marks, certain_marks, is_differentiated, may_depend
from smelt.ir import Node, TensorType, Value

_BEHIND = 2  # a comparison that a gradient was written with


def behind_kinks(nodes: Iterable[Node], value: Value, is_captured: Callable[[Node], bool]) -> set[Value]:
    """What depends on a value through comparisons that a gradient was written with, whatever path data choose.

    nodes: all that follow the value, in order. is_captured: whether the program has a node itself; what is lost in one
    of those is no gradient of zeros.
    """
    if not isinstance(value.type, TensorType):
        return set()
    marks: Marks = {value: ACTIVE}

    def step(node: Node, read: int, result: Value) -> int:
        is_active = bool(read & ACTIVE)
        found = ACTIVE if is_active and is_differentiated(node) else 0
        is_behind = read & _BEHIND or (is_active and not is_captured(node) and not may_depend(result.type))
        return found | _BEHIND if is_behind else found

    certain_marks(nodes, marks, step)
    return {one for one, mark in marks.items() if mark & _BEHIND}
