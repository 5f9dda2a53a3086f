"""Which values may be memory of inputs or of the state, and are seen outside: a copy of these would be told apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from smelt.ir import STATE_OPS, Graph, Node, Region, Value, values_in
from smelt.ops.effects import aliases


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


def reached(values: Iterable[Value]) -> set[Value]:
    """These values and all that they may share memory with by how they were made."""
    found: set[Value] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending.extend(_sources(value))
    return found


def _sources(value: Value) -> Iterator[Value]:
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
