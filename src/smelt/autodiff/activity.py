"""Which values of a functional graph depend on some of its inputs or state, as autograd sees it.

%0 = aten.detach.default(%x)          no: what is detached has no history
%1 = aten.mul.Tensor(%x, 2)           ["no_grad"]  no
%2 = aten.add.Tensor(%x, %1)          yes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from smelt.ir import (
    STATE_OPS,
    Arg,
    DType,
    Graph,
    ListType,
    Node,
    Region,
    TensorType,
    TupleType,
    Type,
    Value,
    map_values,
    values_in,
)  # fmt: skip
from smelt.ir.builder import Builder
from smelt.ops.effects import alias_of, effects
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


def hidden_write(raw: Graph, requires: Callable[[Value], bool]) -> Node | None:
    """A node of a raw capture that writes where autograd does not look (without gradients, or through `detach`) into
    what may have a history. Behind it the history is still that of the old numbers, which no functional graph can say.

    requires: whether an input, or the result of a `param`, `buffer` or `captured` node, requires gradients.
    """
    for node in raw.walk():
        if node.regions or node.op == "write":
            continue
        words = node.mode.replace(";", " ").split()
        for target in effects(node).writes:
            is_hidden = "no_grad" in words or "inference" in words
            value = target
            while value.node is not None and not value.node.regions and (source := alias_of(value.node)) is not None:
                is_hidden |= value.node.op in _CUT
                value = source
            is_given = value.node is None or value.node.op in STATE_OPS
            has_history = requires(value) if is_given else is_differentiated(value.node)  # type: ignore[arg-type]
            if is_hidden and has_history and may_depend(target.type):
                return node
    return None


def detach_islands(graph: Graph) -> None:
    """Detach what is computed where gradients are off, so that it keeps that meaning without the mode."""
    builder = Builder(graph)
    for node in list(graph.walk()):
        words = node.mode.replace(";", " ").split()
        if node.regions or node.parent is None or not ("no_grad" in words or "inference" in words):
            continue
        for result in node.results:
            if not isinstance(result.type, TensorType) or not may_depend(result.type):
                continue
            users = list(result.users)
            builder.region, builder.before = node.parent, node.next
            builder.span, builder.scope = node.span, node.scope
            made = builder.add("aten.detach.default", (result,), [result.type]).result
            for user in users:
                replace_in(user, result, made)


def replace_in(user: Node | Region, old: Value, new: Arg) -> None:
    """Have one user take another value."""

    def swapped(arg: Arg) -> Arg:
        return map_values(arg, lambda v: new if v is old else v)

    if isinstance(user, Node):
        user.set_arguments(tuple(map(swapped, user.args)), {k: swapped(a) for k, a in user.kwargs.items()})
    else:
        user.set_yields(tuple(map(swapped, user.yields)))


def may_depend(type_: Type) -> bool:
    """Whether a value of this type can have a gradient."""
    if isinstance(type_, TensorType):
        return type_.dtype is not DType.BOOL and not type_.dtype.is_integral
    if isinstance(type_, TupleType):
        return any(map(may_depend, type_.elements))
    return isinstance(type_, ListType)
