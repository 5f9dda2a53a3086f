"""Which values of a functional graph depend on some of its inputs or state, as autograd sees it.

%0 = aten.detach.default(%x)          no: what is detached has no history
%1 = aten.mul.Tensor(%x, 2)           ["no_grad"]  no
%2 = aten.add.Tensor(%x, %1)          yes
"""

from __future__ import annotations

from collections.abc import Iterable

from smelt.ir import Arg, DType, Graph, ListType, Node, Region, TensorType, TupleType, Type, Value, values_in
from smelt.ops.record import Trait
from smelt.ops.sets import where

_CUT = where(Trait.NO_GRADIENT)


def active_values(graph: Graph, sources: Iterable[Value]) -> set[Value]:
    """All values that depend on the sources differentiably, these among them."""
    found = set(sources)
    before = -1
    while before != len(found):  # again for loops, whose iterations hand values on
        before = len(found)
        _region(graph.body, found)
    return found


def _region(region: Region, found: set[Value]) -> None:
    for node in region:
        if node.regions:
            _control(node, found)
        elif is_differentiated(node) and any(v in found for v in node.operands()):
            found.update(r for r in node.results if may_depend(r.type))


def _control(node: Node, found: set[Value]) -> None:
    count = len(node.results)
    firsts = node.args[len(node.args) - count :] if node.op != "if" else ()
    for region in node.regions:
        carried = region.params[len(region.params) - count :] if firsts else []
        _hand_on(firsts, carried, found)
        _region(region, found)
        if len(region.yields) == count:
            _hand_on(region.yields, node.results, found)
            for other in node.regions if firsts else ():
                _hand_on(region.yields, other.params[len(other.params) - count :], found)
    if firsts:
        _hand_on(firsts, node.results, found)


def _hand_on(args: Iterable[Arg], into: Iterable[Value], found: set[Value]) -> None:
    for arg, value in zip(args, into, strict=False):
        if may_depend(value.type) and any(v in found for v in values_in(arg)):
            found.add(value)


def is_differentiated(node: Node) -> bool:
    """Whether autograd records a node: not one that cuts histories, nor one where the program has switched it off."""
    words = node.mode.replace(";", " ").split()
    return node.op not in _CUT and "no_grad" not in words and "inference" not in words


def may_depend(type_: Type) -> bool:
    """Whether a value of this type can have a gradient."""
    if isinstance(type_, TensorType):
        return type_.dtype is not DType.BOOL and not type_.dtype.is_integral
    if isinstance(type_, TupleType):
        return any(map(may_depend, type_.elements))
    return isinstance(type_, ListType)
