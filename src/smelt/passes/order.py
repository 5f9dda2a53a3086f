"""Reorder pure nodes so that less memory is alive at once.

    %1 = a %x; %2 = b %x; %3 = sum %1; %4 = sum %2    ==>    %1 = a %x; %3 = sum %1; %2 = b %x; %4 = sum %2

Of the nodes that may come next, always the one that frees most and makes least; the earlier in the source where equal.
The new order is kept only where its peak is lower. Nodes with effects, and messages between ranks, keep their order
among themselves, and whatever touches memory that is written keeps its place relative to the write.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from smelt.analysis import Aliases, alias_analysis, dependence, is_static, nbytes, used_by
from smelt.analysis.dependence import Dependence
from smelt.ir import STATE_OPS, Graph, Node, Region, Value, values_in
from smelt.ops.effects import effects
from smelt.ops.ranks.collectives import COLLECTIVES, START, WAIT
from smelt.passes.base import Pass, PassContext, Peak
from smelt.rewrite import Rewriter


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    context.peaks[:] = [_reordered(rewriter, context.aliases(graph), context.dependence(graph))]
    return rewriter.edits > 0


def reorder(rewriter: Rewriter) -> Peak:
    """Reorder the graph's body and every inner region; the peak of the body."""
    graph = rewriter.graph
    return _reordered(rewriter, alias_analysis(graph), dependence(graph))


def peak(graph: Graph, aliases: Aliases, found: dict[Value, Dependence]) -> int:
    """Most bytes alive at once in a graph's body, in the order of its nodes."""
    schedule = _Schedule(graph.body, aliases, found)
    return schedule.peak(schedule.source)


def _reordered(rewriter: Rewriter, aliases: Aliases, found: dict[Value, Dependence]) -> Peak:
    graph = rewriter.graph
    inner = [region for node in graph.walk() for region in node.regions]
    peak = _reorder_region(rewriter, graph.body, aliases, found)
    for region in inner:
        _reorder_region(rewriter, region, aliases, found)
    return peak


def _reorder_region(rewriter: Rewriter, region: Region, aliases: Aliases, found: dict[Value, Dependence]) -> Peak:
    schedule = _Schedule(region, aliases, found)
    before = schedule.peak(schedule.source)
    wanted = schedule.nodes()
    after = schedule.peak(wanted)
    if after >= before:
        return Peak(before, before)
    _arrange(rewriter, wanted)
    return Peak(before, after)


def _arrange(rewriter: Rewriter, wanted: list[Node]) -> None:
    """Move nodes into an order, from the last to the first, so that each stands before its users all the time."""
    following: Node | None = None
    for node in reversed(wanted):
        if node.next is not following:
            rewriter.move(node, following)
        following = node


class _Schedule:
    """Greedy list scheduling of one region."""

    def __init__(self, region: Region, aliases: Aliases, found: dict[Value, Dependence]) -> None:
        self.region = region
        self.aliases = aliases
        self.found = found
        self.source = list(region)
        # It goes where it is written to: neither that nor what was there is made or freed here.
        self.written = aliases.of_all(v for n in self.source if n.op == "write" for v in values_in(n.args[1]))
        self.needs = {node: used_by(node) for node in self.source}
        self.waiting_for = _predecessors(self.source, self.needs, aliases)
        self.roots = {node: self._touched(node) for node in self.source}
        # How many nodes still need each piece of memory; what is yielded is needed for ever.
        self.uses: dict[Value, int] = {}
        self.users: dict[Value, list[Node]] = {}
        for node, touched in self.roots.items():
            for root in touched:
                self.uses[root] = self.uses.get(root, 0) + 1
                self.users.setdefault(root, []).append(node)
        for arg in region.yields:
            for root in aliases.of_all(values_in(arg)):
                self.uses[root] = self.uses.get(root, 0) + 1
        self.left = dict(self.uses)
        self.nbytes = {root: nbytes(root) for root in self.users}
        # Of what each node makes.
        self.made = {n: sum(self.nbytes[r] for r in n.results if r in touched) for n, touched in self.roots.items()}

    def _touched(self, node: Node) -> frozenset[Value]:
        """Memory made in this region that a node reads, writes or makes."""
        return frozenset(r for r in self.aliases.of_all((*self.needs[node], *node.results)) if self._is_ours(r))

    def _is_ours(self, root: Value) -> bool:
        node = root.node
        if node is None or node.op in STATE_OPS or root in self.written:
            return False
        return node.parent is self.region and not is_static(root, self.found)

    def peak(self, nodes: list[Node]) -> int:
        """Most bytes alive at once in an order."""
        left = dict(self.uses)
        alive = most = 0
        for node in nodes:
            alive += self.made[node]
            most = max(most, alive)
            for root in self.roots[node]:
                left[root] -= 1
                if left[root] == 0:
                    alive -= self.nbytes[root]
        return most

    def nodes(self) -> list[Node]:
        """The region's nodes in the new order; to be asked once."""
        place = {node: i for i, node in enumerate(self.source)}
        followers: dict[Node, list[Node]] = {node: [] for node in self.source}
        missing = {node: len(before) for node, before in self.waiting_for.items()}
        for node, before in self.waiting_for.items():
            for one in before:
                followers[one].append(node)
        # Growth only ever falls, so an outdated entry is a later one: it is met when its node is done.
        ready = [(self._growth(n), place[n]) for n in self.source if missing[n] == 0]
        heapify(ready)
        done: dict[Node, None] = {}
        while ready:
            node = self.source[heappop(ready)[1]]
            if node in done:
                continue
            done[node] = None
            touched = [n for root in self._use(node) for n in self.users[root]]
            for follower in followers[node]:
                missing[follower] -= 1
            for one in dict.fromkeys((*followers[node], *touched)):
                if missing[one] == 0 and one not in done:
                    heappush(ready, (self._growth(one), place[one]))
        return self._sunk(list(done), followers)

    def _sunk(self, nodes: list[Node], followers: dict[Node, list[Node]]) -> list[Node]:
        """The same order, with what makes memory and frees none right before the first node that has to come after it.

        Whatever else there is to do grows more at some place, so that the greedy choice falls on it long before.
        """
        at = {node: i for i, node in enumerate(nodes)}
        before: dict[int, list[Node]] = {}
        for node in reversed(nodes):
            if followers[node] and self._only_makes(node):
                at[node] = min(at[one] for one in followers[node])
                before.setdefault(at[node], []).append(node)
        moved = {node for found in before.values() for node in found}
        found: list[Node] = []
        for i, node in enumerate(nodes):
            found += reversed(before.get(i, ()))
            if node not in moved:
                found.append(node)
        return found

    def _only_makes(self, node: Node) -> bool:
        effect = effects(node)
        made = self.roots[node].intersection(node.results)
        return bool(made) and self.roots[node] == made and effect.is_pure and not effect.may_throw

    def _use(self, node: Node) -> list[Value]:
        """Count a node as done; the memory that only one more node needs now."""
        for root in self.roots[node]:
            self.left[root] -= 1
        return [root for root in self.roots[node] if self.left[root] == 1]

    def _growth(self, node: Node) -> int:
        """Bytes alive after a node more than before it."""
        return self.made[node] - sum(self.nbytes[root] for root in self.roots[node] if self.left[root] == 1)


def _predecessors(source: list[Node], needs: dict[Node, set[Value]], aliases: Aliases) -> dict[Node, set[Node]]:
    """For each node those that must come before it: makers of its operands, and for the sake of effects."""
    here = set(source)
    found: dict[Node, set[Node]] = {}
    last_effect: Node | None = None
    last_write: dict[Value, Node] = {}
    touched_since: dict[Value, list[Node]] = {}
    # What is computed beside a message stays there: `passes.ranks.overlap` has decided it.
    fence: Node | None = None
    behind: list[Node] = []
    for node in source:
        before = {v.node for v in needs[node] if v.node is not None and v.node in here}
        if fence is not None:
            before.add(fence)
        if node.op in (START, WAIT):
            before.update(behind)
            fence, behind = node, []
        behind.append(node)
        effect = effects(node)
        touched = aliases.of_all((*needs[node], *node.results)) & aliases.written
        written = aliases.of_all(effect.writes)
        before.update(last_write[root] for root in touched if root in last_write)
        for root in written:
            before.update(touched_since.pop(root, ()))
            last_write[root] = node
        for root in touched - written:
            touched_since.setdefault(root, []).append(node)
        if not effect.is_pure or effect.may_throw or _sends(node):
            if last_effect is not None:
                before.add(last_effect)
            last_effect = node
        before.discard(node)
        found[node] = before
    return found


def _sends(node: Node) -> bool:
    """Whether ranks meet in a node. What they compute may have other sizes on each, and so another best order: they
    come to each other in the same one."""
    return node.op in COLLECTIVES or any(_sends(inner) for region in node.regions for inner in region)


order = Pass(
    "order",
    "%1 = a %x; %2 = b %x; %3 = sum %1; %4 = sum %2   ==>   %1 = a %x; %3 = sum %1; %2 = b %x; %4 = sum %2",
    _run,
)
