"""When values are last used, and how much memory is alive at each node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from smelt.analysis.aliases import Aliases, is_external
from smelt.ir import Node, Region, TensorType, Value, values_in
from smelt.ir.sizes import value as at_hand


def last_uses(region: Region) -> dict[Value, Node | Region]:
    """For each value used in a region, the last node of that region that needs it (the region, if it is yielded).

    What an inner region uses counts as used by the node that holds it.
    """
    last: dict[Value, Node | Region] = {}
    for node in region:
        for value in used_by(node):
            last[value] = node
    for arg in region.yields:
        for value in values_in(arg):
            last[value] = region
    return last


def used_by(node: Node) -> set[Value]:
    """All values that a node needs, those that its regions take from outside included."""
    return set(used_values(node))


def used_values(node: Node) -> Iterator[Value]:
    """The same in order, repeats included."""
    yield from node.operands()
    yield from taken_by_regions(node)


def taken_by_regions(node: Node) -> Iterator[Value]:
    """What a node's regions use from outside, in order, repeats included."""
    yield from taken_by(node.regions)


def taken_by(regions: Sequence[Region]) -> Iterator[Value]:
    """The same of some regions."""
    inside: set[Value] = set()
    found: list[Value] = []
    for region in regions:
        inside.update(region.params)
        for inner in region.walk():
            found.extend(inner.operands())
            inside.update(inner.results)
            for nested in inner.regions:
                inside.update(nested.params)
                found.extend(v for arg in nested.yields for v in values_in(arg))
        found.extend(v for arg in region.yields for v in values_in(arg))
    yield from (value for value in found if value not in inside)


def live_bytes(region: Region, aliases: Aliases) -> list[int]:
    """Bytes of memory made in the region that are alive while each node runs, its results included."""
    ends: dict[Value, int] = {}
    nodes = list(region)
    for i, node in enumerate(nodes):
        for value in (*used_by(node), *node.results):
            for root in aliases.of(value):
                ends[root] = i
    for arg in region.yields:
        for value in values_in(arg):
            for root in aliases.of(value):
                ends[root] = len(nodes)
    alive: dict[Value, int] = {}
    found = []
    for i, node in enumerate(nodes):
        for result in node.results:
            if result in aliases.of(result) and not is_external(result):
                alive[result] = nbytes(result)
        found.append(sum(alive.values()))
        for root in [r for r in alive if ends.get(r, i) <= i]:
            del alive[root]
    return found


def nbytes(value: Value) -> int:
    """Bytes of a tensor of static type, 0 for anything else; of one with sizes of a trace at the sizes at hand."""
    type_ = value.type
    return at_hand(type_.nbytes) if isinstance(type_, TensorType) and type_.is_static else 0
