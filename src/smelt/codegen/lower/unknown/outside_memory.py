"""Which values may be memory of inputs or of the state, and are seen outside: a copy of these would be told apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from smelt.ir import STATE_OPS, Graph, Node, Region, TensorType, Value, values_in
from smelt.ops.effects import aliases, effects


class Sharing:
    """What the outputs of a graph may be memory of."""

    def __init__(self, graph: Graph) -> None:
        self._leaving = reached(v for arg in graph.outputs for v in values_in(arg))

    def may_leave(self, value: Value) -> bool:
        """Whether what leaves the graph may be memory of the value."""
        return value in self._leaving

    def is_told_apart(self, value: Value) -> bool:
        """Whether the value may be, and be seen to be, memory from outside."""
        return value in self._leaving and any(map(_is_external, reached([value])))


def _is_external(value: Value) -> bool:
    if value.node is not None:
        return value.node.op in STATE_OPS
    return not isinstance(value.owner, Region) or not isinstance(value.owner.owner, Node)


def lies_unseen(value: Value) -> bool:
    """Whether nothing that is computed of a tensor of known sizes, in memory of its own, follows from its strides."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    if shape is None or not all(type(size) is int for size in shape):
        return False
    for user in value.users:
        if isinstance(user, Region):
            # What a branch gives is as the branch is; what the program or a loop gives is seen.
            branch = user.owner
            if not isinstance(branch, Node) or branch.op != "if":
                return False
            places = [k for k, arg in enumerate(user.yields) if value in values_in(arg)]
            if not all(lies_unseen(branch.results[k]) for k in places):
                return False
        elif user.op.startswith(("py.", "aten.sym_")) or not _is_apart(user):
            return False
    return True


def _is_apart(node: Node) -> bool:
    """Whether a node makes tensors of its own that lie as their types say, whatever its operands lie like."""
    found = effects(node)
    types = [result.type for result in node.results]
    return (
        not node.regions
        and found.is_pure
        and not any(aliases(node))
        and bool(types)
        and all(isinstance(type_, TensorType) and type_.is_static for type_ in types)
    )


def reached(values: Iterable[Value]) -> set[Value]:
    """These values and all that they may share memory with by how they were made."""
    found: set[Value] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending.extend(handed_on(value))
    return found


def handed_on(value: Value) -> Iterator[Value]:
    """What a value may share memory with by the node, or the region, that gives it."""
    node, region = value.node, value.owner
    if isinstance(region, Region):
        holder = region.owner
        if not isinstance(holder, Node):
            return
        number = region.params.index(value) - (holder.op == "for")
        if number >= 0:
            yield from _of_loop(holder, number)
    elif node is None:
        return
    elif node.op == "if":
        for region in node.regions:
            yield from values_in(region.yields[node.results.index(value)])
    elif node.regions:
        yield from _of_loop(node, node.results.index(value))
    elif node.op not in STATE_OPS:
        yield from aliases(node)[node.results.index(value)]


def _of_loop(node: Node, number: int) -> Iterator[Value]:
    """What a loop may hand on in a place: what it began with, and what a turn gives."""
    first = node.args[number + (3 if node.op == "for" else 0)]
    yield from values_in(first)
    yield from values_in(node.regions[-1].yields[number])
