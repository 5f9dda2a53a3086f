"""An order of a graph's nodes in which each unit (a group, a product with its epilogue) stands together.

Invariant: whatever a unit needs stands before it; nodes with effects keep their order, what may raise keeps its place
before or behind what acts outside (a `print` behind a `raise` is not heard), and nothing crosses a write, be it to a
part of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import field
from heapq import heapify, heappop, heappush

from smelt.analysis import used_values
from smelt.codegen.fusion.groups import Facts
from smelt.codegen.fusion.rules.indexed_writes import writes_parts
from smelt.diag import InternalError
from smelt.diag.records import record
from smelt.ir import Graph, Node


@record
class Delays:
    """Units that should stand behind other nodes, where that can be, but for nodes of their own.

    units: by their last nodes, with those behind which each should stand. stops: behind which all of these should.
    """

    units: Mapping[Node, Sequence[Node]] = field(default_factory=dict)
    stops: Sequence[Node] = ()


NO_DELAYS = Delays()


def schedule(
    graph: Graph,
    facts: Facts,
    units: Sequence[Sequence[Node]],
    delays: Delays = NO_DELAYS,
) -> list[Node]:
    """The graph's nodes, every unit in one piece, as near to the source's order as that allows.

    A node in several units (computed again in each) stands with the first. Raises: InternalError for units that need
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
    place = _places(pieces, facts, leader, {unit[-1]: set(unit) for unit in units}, delays)
    wanted = _wanted(place, before, followers)
    heads = {place[head]: head for head in pieces}
    ready = [(wanted[head], place[head]) for head in pieces if not missing[head]]
    heapify(ready)
    found: list[Node] = []
    while ready:
        head = heads[heappop(ready)[1]]
        found.extend(pieces[head])
        for follower in followers[head]:
            missing[follower] -= 1
            if not missing[follower]:
                heappush(ready, (wanted[follower], place[follower]))
    if len(found) != len(facts.order):
        raise InternalError("two kernels need one another's results", why="a group of nodes is not convex")
    return found


def _wanted(
    place: Mapping[Node, tuple[int, int]], before: Mapping[Node, Set[Node]], followers: Mapping[Node, Sequence[Node]]
) -> Mapping[Node, tuple[int, int]]:
    """For each unit where the first that needs it stands, directly or through others, or itself if that is sooner.

    So one that makes something for much later, too, does not wait until then, while all that needs nothing runs.
    """
    wanted = dict(place)
    left = {head: len(users) for head, users in followers.items()}
    pending = [head for head, count in left.items() if not count]
    while pending:
        head = pending.pop()
        for one in before[head]:
            wanted[one] = min(wanted[one], wanted[head])
            left[one] -= 1
            if not left[one]:
                pending.append(one)
    return wanted


def _places(
    heads: Iterable[Node], facts: Facts, leader: Mapping[Node, Node], members: Mapping[Node, Set[Node]], delays: Delays
) -> dict[Node, tuple[int, int]]:
    """Where units are to stand: each at its last node, or behind that of another."""

    def end(node: Node) -> int:
        return facts.order[leader.get(node, node)]

    stops = sorted(delays.stops, key=end, reverse=True)
    found = {}
    for head in heads:
        own = last = facts.order[head]
        others = delays.units.get(head)
        if others is not None:
            inside = members[head]
            last = max((end(node) for node in others if node not in inside), default=-1)
            last = max(last, next((end(node) for node in stops if node not in inside), -1))
        found[head] = (last, own) if last > own else (own, -1)
    return found


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
