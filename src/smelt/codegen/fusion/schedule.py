"""An order of a graph's nodes in which each unit (a group, a product with its epilogue) stands together.

Invariant: whatever a unit needs stands before it; nodes with effects keep their order, what may raise keeps its place
before or behind what acts outside (a `print` behind a `raise` is not heard), and nothing crosses a write, be it to a
part of a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from types import MappingProxyType

from smelt.analysis import used_values
from smelt.codegen.fusion.groups import Facts
from smelt.codegen.fusion.parts import writes_parts
from smelt.diag import InternalError
from smelt.ir import Graph, Node


def schedule(
    graph: Graph,
    facts: Facts,
    units: Sequence[Sequence[Node]],
    behind: Mapping[Node, Sequence[Node]] = MappingProxyType({}),
) -> list[Node]:
    """The graph's nodes, every unit in one piece, as near to the source's order as that allows.

    A node in several units (computed again in each) stands with the first. behind: units by their last nodes, with
    nodes that are to stand before them where that can be. Raises: InternalError for units that need
    one another.
    """
    leader: dict[Node, Node] = {}
    for unit in units:
        for node in unit:
            leader.setdefault(node, unit[-1])
    pieces: dict[Node, list[Node]] = {}
    for node in graph.body:
        pieces.setdefault(leader.get(node, node), []).append(node)
    before = _needs(pieces, leader, units, facts)
    followers: dict[Node, list[Node]] = {head: [] for head in pieces}
    for head, needed in before.items():
        for one in needed:
            followers[one].append(head)
    missing = {head: len(needed) for head, needed in before.items()}
    place = {head: _place(head, facts, leader, behind) for head in pieces}
    heads = {place[head]: head for head in pieces}
    ready = [place[head] for head in pieces if not missing[head]]
    heapify(ready)
    found: list[Node] = []
    while ready:
        head = heads[heappop(ready)]
        found.extend(pieces[head])
        for follower in followers[head]:
            missing[follower] -= 1
            if not missing[follower]:
                heappush(ready, place[follower])
    if len(found) != len(facts.order):
        raise InternalError("two kernels need one another's results", why="a group of nodes is not convex")
    return found


def _place(
    head: Node, facts: Facts, leader: Mapping[Node, Node], behind: Mapping[Node, Sequence[Node]]
) -> tuple[int, int]:
    """Where a unit is to stand: at its last node, or behind that of another."""
    own = facts.order[head]
    last = max((facts.order[leader.get(node, node)] for node in behind.get(head, ())), default=-1)
    return (own, -1) if last < own else (last, own)


def _needs(
    pieces: Mapping[Node, Sequence[Node]], leader: Mapping[Node, Node], units: Sequence[Sequence[Node]], facts: Facts
) -> dict[Node, set[Node]]:
    """For each unit the units that must stand before it."""
    again: dict[Node, list[Node]] = {}
    for unit in units:
        again.setdefault(unit[-1], []).extend(n for n in unit if leader[n] is not unit[-1])
    members = {unit[-1]: set(unit) for unit in units}
    before: dict[Node, set[Node]] = {}
    kept = {node: [leader.get(n, n) for n in earlier] for node, earlier in facts.kept.items()}
    in_segment: list[Node] = []
    last_write: Node | None = None
    for node in facts.order:
        head = leader.get(node, node)
        needed = before.setdefault(head, set())
        for one in (node, *(again.pop(head, ()) if node is head else ())):
            for v in used_values(one):
                # A view of what the unit makes itself is looked through there.
                maker = v.node
                if maker is None or maker not in facts.order:
                    continue
                if facts.source(v).node not in members.get(head, ()):
                    needed.add(leader.get(maker, maker))
        if node.op == "write" or writes_parts(node):
            needed.update(in_segment)
            in_segment = []
            last_write = head
        else:
            # A view does nothing; who looks through it stands before the write.
            if not node.results or any(result not in facts.through for result in node.results):
                in_segment.append(head)
            if last_write is not None:
                needed.add(last_write)
        needed.update(kept.get(node, ()))
        needed.discard(head)
    return before
