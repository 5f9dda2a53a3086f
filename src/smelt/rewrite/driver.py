"""The one driver: applies rules to a graph until none fits, within a fuel limit.

Invariant: it ends. When the fuel runs out, the error names the rules that kept firing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from smelt.diag import InternalError
from smelt.diag.records import record
from smelt.ir import Arg, Node, Region, Value
from smelt.rewrite.pattern import Match, Op, match
from smelt.rewrite.rewriter import Event, Rewriter

Build = Callable[[Rewriter, Match], "Sequence[Arg] | Arg | None"]

# Rewrites per node of the graph before a fixpoint is given up.
_FUEL_PER_NODE = 32
_RECENT = 64


@record
class Rule:
    """A pattern and what to put in its root's place.

    build: given the rewriter (whose builder stands right before the root, with the root's origin) and the match,
    returns the root's new result, one per result where there are several, or None to leave it.
    """

    name: str
    pattern: Op
    build: Build


def apply_rules(
    rewriter: Rewriter,
    rules: Sequence[Rule],
    *,
    can_erase: Callable[[Node], bool] | None = None,
    fuel: int | None = None,
) -> Counter[str]:
    """How often each rule fired until none fits.

    can_erase: whether an unused node has no effect of its own; such are erased as rules leave them behind.
    Raises: InternalError (S0901) when the fuel (by default 32 rewrites a node) runs out.
    """
    by_op: dict[str, list[Rule]] = {}
    for rule in rules:
        for name in rule.pattern.names:
            by_op.setdefault(name, []).append(rule)
    nodes = list(rewriter.graph.walk())
    limit = fuel if fuel is not None else _FUEL_PER_NODE * (len(nodes) + 8)
    work = _Worklist(nodes)
    fired: Counter[str] = Counter()
    recent: deque[str] = deque(maxlen=_RECENT)
    while (node := work.take()) is not None:
        for rule in by_op.get(node.op, ()):
            if not _fire(rewriter, rule, node, work, can_erase):
                continue
            fired[rule.name] += 1
            recent.append(rule.name)
            if fired.total() > limit:
                raise _out_of_fuel(rewriter, limit, recent)
            break
    return fired


class _Worklist:
    """Nodes to look at, each at most once in the queue."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.queue = deque(nodes)
        self.queued = set(self.queue)

    def take(self) -> Node | None:
        while self.queue:
            node = self.queue.popleft()
            self.queued.discard(node)
            if node.parent is not None:
                return node
        return None

    def add(self, node: Node | None) -> None:
        if node is not None and node not in self.queued:
            self.queue.append(node)
            self.queued.add(node)


def _fire(
    rewriter: Rewriter, rule: Rule, node: Node, work: _Worklist, can_erase: Callable[[Node], bool] | None
) -> bool:
    found = match(rule.pattern, node)
    if found is None or any(n.mode != node.mode for n in found.nodes):
        # A rule joins nodes only where the same modes were on.
        return False
    made: list[Node] = []

    def remember(event: Event) -> None:
        if event.kind == "insert" and event.node is not None:
            made.append(event.node)

    listeners = rewriter.listeners
    rewriter.listeners = (*listeners, remember)
    before = node.prev
    try:
        with rewriter.builder.at(node):
            built = rule.build(rewriter, found)
        if built is None:
            _undo(rewriter, made, node, before)
            return False
        values: Sequence[Arg] = built if isinstance(built, (tuple, list)) else (built,)
        operands = [v.node for n in found.nodes for v in n.operands()]
        users = [u for r in node.results for u in r.users]
        rewriter.replace_node(node, values, absorbed=found.nodes[1:])
    finally:
        rewriter.listeners = listeners
    for one in (*_between(before, values), *made):
        work.add(one)
    for user in users:
        work.add(_node_of(user))
    if can_erase is not None:
        _sweep(rewriter, [*found.nodes[1:], *(o for o in operands if o is not None)], can_erase, work)
    return True


def _between(before: Node | None, values: Sequence[Arg]) -> list[Node]:
    """The nodes that a rule put behind `before`, found from its results."""
    found: list[Node] = []
    pending = [v.node for v in values if isinstance(v, Value)]
    while pending:
        node = pending.pop()
        if node is not None and node is not before and node not in found and len(found) < _RECENT:
            found.append(node)
            if len(found) == 1:
                pending.extend(v.node for v in node.operands())
    return found


def _undo(rewriter: Rewriter, made: list[Node], root: Node, before: Node | None) -> None:
    """Take back what a rule added before it found that it does not fit."""
    node = root.prev
    while node is not None and node is not before:
        previous = node.prev
        rewriter.erase(node)
        node = previous


def _node_of(user: Node | Region) -> Node | None:
    if isinstance(user, Node):
        return user
    return user.owner if isinstance(user.owner, Node) else None


def _sweep(rewriter: Rewriter, nodes: Iterable[Node], can_erase: Callable[[Node], bool], work: _Worklist) -> None:
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node.parent is None:
            continue
        if any(r.users for r in node.results) or not can_erase(node):
            # One use fewer may make a rule fit that asks for a single use.
            for result in node.results:
                for user in result.users:
                    work.add(_node_of(user))
            continue
        pending.extend(v.node for v in node.operands() if v.node is not None)
        rewriter.erase(node)


def _out_of_fuel(rewriter: Rewriter, limit: int, recent: deque[str]) -> InternalError:
    cycle = ", ".join(sorted(set(recent)))
    return InternalError(
        f"rewriting graph {rewriter.graph.name} does not end: rules {cycle} keep firing",
        why=f"after {limit} rewrites a rule still fits",
        fix=f"skip the pass that holds these rules, and report this graph: {rewriter.graph.name}",
        code="S0901",
    )
