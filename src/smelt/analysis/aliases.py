"""Which values may live in the same memory, which memory is written, and what that means for the outputs.

Invariant: sharing is never missed; where it cannot be told, every possible root is listed.
"""

from __future__ import annotations

from collections.abc import Iterable

from smelt.diag.records import record
from smelt.ir import STATE_OPS, Arg, Graph, Node, Region, Value, values_in
from smelt.ops.effects import aliases as node_aliases
from smelt.ops.effects import effects

_CONTROL = ("if", "for", "while")


@record
class Aliases:
    """roots: for each value, the values whose memory it may lie in (itself, where it has memory of its own).

    written: roots whose memory some node changes, `write` nodes counted. outputs: roots of what the graph returns.
    """

    roots: dict[Value, frozenset[Value]]
    written: frozenset[Value]
    outputs: frozenset[Value]

    def of(self, value: Value) -> frozenset[Value]:
        """The roots of a value."""
        return self.roots.get(value, frozenset((value,)))

    def of_all(self, values: Iterable[Value]) -> frozenset[Value]:
        """The roots of any of several values."""
        return frozenset().union(*(self.of(v) for v in values))

    def may_share(self, a: Value, b: Value) -> bool:
        """Whether two values may lie in the same memory."""
        return bool(self.of(a) & self.of(b))

    def is_written(self, value: Value) -> bool:
        """Whether anything in the graph changes the memory a value lies in."""
        return bool(self.of(value) & self.written)

    def reaches_output(self, value: Value) -> bool:
        """Whether the graph returns something that lies in the value's memory."""
        return bool(self.of(value) & self.outputs)


def alias_analysis(graph: Graph) -> Aliases:
    """The aliases of a whole graph, regions included."""
    roots: dict[Value, frozenset[Value]] = {}
    _region_roots(graph.body, roots)
    written: set[Value] = set()
    for node in graph.walk():
        if node.op not in _CONTROL:
            for value in effects(node).writes:
                written |= roots.get(value, frozenset((value,)))
    outputs = frozenset().union(*(roots[v] for arg in graph.outputs for v in values_in(arg)), frozenset())
    return Aliases(roots, frozenset(written), outputs)


def _of(arg: Arg, roots: dict[Value, frozenset[Value]]) -> frozenset[Value]:
    return frozenset().union(*(roots.get(v, frozenset((v,))) for v in values_in(arg)), frozenset())


def _region_roots(region: Region, roots: dict[Value, frozenset[Value]]) -> None:
    for param in region.params:
        roots.setdefault(param, frozenset((param,)))
    for node in region:
        if node.op in _CONTROL:
            _control_roots(node, roots)
            continue
        for result, shared in zip(node.results, node_aliases(node), strict=True):
            if not shared:
                roots[result] = frozenset((result,))
            elif len(shared) == 1:
                (one,) = shared
                roots[result] = roots.get(one) or frozenset((one,))
            else:
                roots[result] = _of(shared, roots)


def _control_roots(node: Node, roots: dict[Value, frozenset[Value]]) -> None:
    """Results are what any arm yields; what a loop carries is a first value or what the body yields, to a fixpoint."""
    if node.op == "if":
        for region in node.regions:
            _region_roots(region, roots)
        for i, result in enumerate(node.results):
            roots[result] = frozenset().union(*(_of(r.yields[i], roots) for r in node.regions)) or frozenset((result,))
        return
    skip = 1 if node.op == "for" else 0
    inits = node.args[3:] if node.op == "for" else node.args
    body = node.regions[-1]
    carried = [_of(init, roots) for init in inits]
    while True:
        for region in node.regions:
            for param, shared in zip(region.params[skip if region is body else 0 :], carried, strict=True):
                roots[param] = shared or frozenset((param,))
            _region_roots(region, roots)
        grown = [old | _of(arg, roots) for old, arg in zip(carried, body.yields, strict=True)]
        if grown == carried:
            break
        carried = grown
    for result, shared in zip(node.results, carried, strict=True):
        roots[result] = shared or frozenset((result,))


@record
class OutputAlias:
    """What one output shares memory with: inputs and state by name, and other outputs by number."""

    output: int
    inputs: tuple[str, ...]
    outputs: tuple[int, ...]


def output_aliases(graph: Graph) -> tuple[OutputAlias, ...]:
    """For each output that shares memory with an input, a parameter, a buffer or another output: with which."""
    found = alias_analysis(graph)
    each = [found.of_all(values_in(arg)) for arg in graph.outputs]
    result = []
    for i, roots in enumerate(each):
        names = tuple(sorted(_external_name(r) for r in roots if is_external(r)))
        others = tuple(j for j, other in enumerate(each) if j != i and roots & other)
        if names or others:
            result.append(OutputAlias(i, names, others))
    return tuple(result)


def is_external(root: Value) -> bool:
    """Whether memory belongs to the caller: a graph's input, a parameter, a buffer, a captured tensor."""
    if isinstance(root.owner, Region):
        return isinstance(root.owner.owner, Graph)
    return root.owner.op in STATE_OPS


def _external_name(root: Value) -> str:
    node = root.node
    return root.name if node is None else str(node.args[0])
