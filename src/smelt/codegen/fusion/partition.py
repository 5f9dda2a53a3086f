"""Which nodes become one nest: consumers take in their producers, then neighbours that share loops and memory.

    %1 = sub %x, %m; %2 = exp %1; %3 = sum %2; %4 = div %2, %3        ==>        one group {%1, %2, %3, %4}

From the last node to the first, each joins the group that needs it: as an inner value where nobody else does, else as
one more stored value, or is computed again in several groups where that moves less memory. Whether a nest can hold
them, and its cost, is told by building it. Then groups without a path between them are merged where that is cheaper.

Invariant: a group is *convex*: no path leaves it and comes back, through other groups taken whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from smelt.analysis import nbytes
from smelt.codegen.fusion.cost import LAUNCH_NBYTES, NestCost
from smelt.codegen.fusion.decisions import Decision
from smelt.codegen.fusion.group_keys import Forms
from smelt.codegen.fusion.groups import Accepts, Facts, Group, Trials, is_fusible
from smelt.codegen.fusion.rules.indexed_writes import part_of
from smelt.codegen.fusion.rules.pieces import is_needed_by_many
from smelt.codegen.fusion.whole import left_out
from smelt.diag.records import record
from smelt.ir import STATE_OPS, Graph, Node, Value
from smelt.ir.sizes import equals
from smelt.ops.sets import is_by_elements

MAX_NODES = 80
"""Nodes that one nest may hold: beyond, registers spill and builds take long."""
_NEIGHBOURS = 12
"""How many groups back a neighbour to merge with is looked for."""
_NEIGHBOURS_OF_ONE = 6
"""How many groups that need one value are tried as one."""
_FEW_NBYTES = 64
"""What large groups have in common at least that are tried as one: less is a line of the cache."""
_FAR, _MUCH_NBYTES = 100, 1 << 19
"""How many nodes stand between groups of which the second makes so much that it is not to be kept meanwhile."""
_MOST_COPIES = 16
"""Groups in which one value may be computed again; each is a nest to build, and again for what that value needs."""
_FIRST_RUN = 4
"""How many nodes are tried at once at first; as many again with each that joins."""


@record
class Partition:
    """The groups by their last nodes' place, and why they are what they are."""

    groups: tuple[Group, ...]
    facts: Facts
    decisions: tuple[Decision, ...]
    forms: Forms


def partition(
    graph: Graph,
    accepts: Accepts,
    taken: Callable[[Node], bool] = lambda node: False,
    units: Mapping[Node, Sequence[Node]] = MappingProxyType({}),
    *,
    fuse: bool = True,
) -> Partition:
    """Groups of a functional graph's nodes.

    taken: nodes that others compute (a product with its epilogue) or that need no run (static).
    units: for such nodes, those that run together with them. fuse: whether nodes may share a nest at all.
    """
    return _Partition(graph, accepts, taken, units).run(fuse)


class _Partition:
    def __init__(
        self,
        graph: Graph,
        accepts: Accepts,
        taken: Callable[[Node], bool],
        units: Mapping[Node, Sequence[Node]],
    ) -> None:
        self.units = units
        self.facts = Facts.of(graph)
        self.trials = Trials(self.facts, accepts)
        order = self.facts.order
        self.unit_spans = sorted({(order[unit[0]], order[unit[-1]]) for unit in units.values() if len(unit) > 1})
        self.taken = taken
        self.nodes = list(graph.body)
        self.users: dict[Node, tuple[Node, ...]] = {}
        self.later: dict[Node, list[Node]] = {}
        for node, earlier in self.facts.kept.items():
            for one in earlier:
                self.later.setdefault(one, []).append(node)
        self.groups_of: dict[Node, list[Group]] = {}
        self.groups: list[Group] = []
        self.decisions: list[Decision] = []
        self.alone: dict[Node, NestCost] = {}
        self.starts: dict[Group, int] = {}
        self.numel: dict[Group, int] = {}
        self._candidates: dict[Node, bool] = {}
        self._singly: set[frozenset[Group]] = set()
        self._run = _FIRST_RUN

    def run(self, fuse: bool) -> Partition:
        for node in reversed(self.nodes):
            if node in self.groups_of or not self._is_candidate(node):
                continue
            if not fuse or not (self._join_run(node) or self._join(node)):
                self._found(node)
        if fuse:
            self._merge_neighbours()
        for group in self.groups:
            group.roots = self._roots(group)
        ordered = sorted(self.groups, key=lambda g: self.facts.order[g.nodes[-1]])
        return Partition(tuple(ordered), self.facts, tuple(self.decisions), self.trials.forms)

    def _is_candidate(self, node: Node) -> bool:
        """Whether a nest can compute a node, and somebody needs it."""
        if node not in self._candidates:
            self._candidates[node] = self._has_nest(node)
        return self._candidates[node]

    def _has_nest(self, node: Node) -> bool:
        if self.taken(node) or not is_fusible(node) or not self._is_needed(node):
            return False
        trial = self.trials.of([node], self.facts.roots([node]))
        if trial.cost is None:
            self._note((node,), False, trial.why)
            return False
        self.alone[node] = trial.cost
        return True

    def _is_needed(self, node: Node) -> bool:
        return any(users or others for users, others in map(self.facts.users, node.results))

    def _found(self, node: Node) -> None:
        group = Group([node], self.facts.segment[node], self.alone[node])
        self.groups.append(group)
        self._set(group, group.nodes, group.nest_cost)

    # --- producers into consumers

    def _join_run(self, node: Node) -> bool:
        """Let a node join the groups that need it with what it needs in turn, by one trial for each group.

        Only operators by elements that nobody else needs: each of them would have joined alone, so that a long chain
        takes a few trials, not one for each of its nodes.
        """
        homes = self._homes(node)
        known = frozenset(homes)
        run = [] if not homes or known in self._singly else self._run_of(node, homes)
        if len(run) < 2:
            return False
        parts = [(group, self._needed(run, group)) for group in homes]
        costs = self._costs(run, parts)
        if costs is None:
            self._singly.add(known)
            return False
        for (group, part), cost in zip(parts, costs, strict=True):
            before = group.nest_cost.nbytes + sum(self.alone[n].nbytes for n in part)
            self._set(group, self._ordered((*part, *group.nodes)), cost)
            why = "they are used where they are made" if len(homes) == 1 else "computed again, which moves less"
            self._note((*part, group.nodes[-1]), True, why, before, cost.nbytes)
        self._run = min(2 * self._run, MAX_NODES)
        return True

    def _costs(self, run: Sequence[Node], parts: Sequence[tuple[Group, list[Node]]]) -> list[NestCost] | None:
        """What groups cost with what each needs of a run; None: not possible, or less as a nest of its own."""
        costs = []
        for group, part in parts:
            nodes = self._ordered((*part, *group.nodes))
            if self._obstacle(nodes, group.segment, self.facts.segment[run[0]], part, copied=part):
                return None
            cost = self.trials.of(nodes, self._roots_with(nodes, (group,), copied=run)).cost
            if cost is None:
                return None
            costs.append(cost)
        operations = sum(self.alone[n].operations for n in run)
        if sum(c.operations for c in costs) <= sum(g.nest_cost.operations for g, _ in parts) + operations:
            return costs  # nothing is computed again
        apart = self.trials.of(run[::-1], self.facts.roots(run[::-1])).cost
        if apart is None or apart.operations > operations:
            return None
        total = sum(c.total for c in costs)
        return costs if total <= sum(g.nest_cost.total for g, _ in parts) + apart.total else None

    def _homes(self, node: Node) -> list[Group]:
        """The groups that need a node."""
        users = {user for result in node.results for user in self.facts.users(result)[0]}
        return list(dict.fromkeys(g for user in sorted(users, key=self.facts.order.__getitem__, reverse=True)
                                  for g in self.groups_of.get(user, ())))  # fmt: skip

    def _run_of(self, node: Node, homes: Sequence[Group]) -> list[Node]:
        """The node and such that stand before it, last first, if all are by elements and inner values of the groups."""
        room = min(self._run, *(MAX_NODES - len(group.nodes) for group in homes), MAX_NODES)
        last, segment = self.facts.order[node], homes[0].segment
        members, run = {n for group in homes for n in group.nodes}, list[Node]()
        if room < 2 or not self._is_inner(node, members):
            return []
        # What another group computes again as well needs its operands there, too.
        members = {n for n in members if all(home in homes for home in self.groups_of[n])}
        for one in reversed(self.nodes[max(last - 2 * room, -1) + 1 : last + 1]):
            is_inner = one is node or all(r.users and members.issuperset(r.users) for r in one.results)
            if is_inner and self.facts.segment[one] == segment and self._is_by_elements(one):
                run.append(one)
                members.add(one)
                if len(run) == room:
                    break
            elif one is node:
                break
        return run

    def _is_inner(self, node: Node, members: set[Node]) -> bool:
        """Whether nobody else needs a node, views looked through."""
        found = [self.facts.users(result) for result in node.results]
        return all(users and users <= members and not others for users, others in found)

    def _needed(self, run: Sequence[Node], group: Group) -> list[Node]:
        """The nodes of a run, last first, that a group needs."""
        members, found = set(group.nodes), list[Node]()
        for node in run:
            if any(user in members for result in node.results for user in self.facts.users(result)[0]):
                found.append(node)
                members.add(node)
        return found

    def _is_by_elements(self, node: Node) -> bool:
        if node in self.groups_of or part_of(node) is not None or not node.op.startswith("aten."):
            return False
        return is_by_elements(node.op) and node not in self.facts.raising and self._is_candidate(node)

    def _join(self, node: Node) -> bool:
        """Let a node join the groups that need it."""
        users: set[Node] = set()
        others = False
        for result in node.results:
            found, more = self.facts.users(result)
            users |= found
            others |= more
        others |= any(user not in self.groups_of for user in users)
        wanted = self._homes(node)
        if not wanted:
            return False
        # What may raise is computed once, for all its elements.
        once = len(wanted) == 1 or others or node in self.facts.raising
        if not once and len(wanted) <= _MOST_COPIES and self._is_cheap_again(node, wanted):
            return self._copy(node, wanted)
        return any(self._enter(node, group) for group in (wanted if len(wanted) == 1 else self._clusters(wanted)))

    def _enter(self, node: Node, group: Group) -> bool:
        """Let a node join one group, stored as well where others need it."""
        nodes = self._ordered((node, *group.nodes))
        # Paths are looked for last: there may be many.
        why = self._holds_up(node, group) or self._obstacle(nodes, group.segment, self.facts.segment[node], (node,))
        if why:
            self._note((node, group.nodes[0]), False, why)
            return False
        trial = self.trials.of(nodes, self._roots_with(nodes, (group,)))
        apart = self.alone[node].total + group.nest_cost.total
        if trial.cost is None or trial.cost.total > apart:
            why = trial.why or "together they would compute more than they save in memory"
            self._note((node, group.nodes[0]), False, why, self._nbytes(node, group), _nbytes(trial.cost))
            return False
        before = self._nbytes(node, group)
        self._set(group, nodes, trial.cost)
        self._note((node, group.nodes[-1]), True, "it is used where it is made", before, trial.cost.nbytes)
        return True

    def _nbytes(self, node: Node, group: Group) -> int:
        return self.alone[node].nbytes + group.nest_cost.nbytes

    def _is_cheap_again(self, node: Node, groups: Sequence[Group]) -> bool:
        """Whether computing a node in each group moves less than storing it once."""
        total = 0
        for group in groups:
            nodes = self._ordered((node, *group.nodes))
            segment = self.facts.segment[node]
            if self._holds_up(node, group) or self._obstacle(nodes, group.segment, segment, (node,), copied=(node,)):
                return False
            trial = self.trials.of(nodes, self._roots_with(nodes, (group,), copied=(node,)))
            if trial.cost is None:
                return False
            total += trial.cost.total
        return total < self.alone[node].total + sum(group.nest_cost.total for group in groups)

    def _copy(self, node: Node, groups: Sequence[Group]) -> bool:
        for group in groups:
            nodes = self._ordered((node, *group.nodes))
            trial = self.trials.of(nodes, self._roots_with(nodes, (group,), copied=(node,)))
            assert trial.cost is not None
            before = self._nbytes(node, group)
            self._set(group, nodes, trial.cost)
            self._note((node, group.nodes[-1]), True, "computed again, which moves less", before, trial.cost.nbytes)
        return True

    def _set(self, group: Group, nodes: list[Node], nest_cost: NestCost) -> None:
        for node in nodes:
            homes = self.groups_of.setdefault(node, [])
            if group not in homes:
                homes.append(group)
        group.nodes, group.nest_cost = nodes, nest_cost
        self.starts[group], self.numel[group] = self.facts.order[nodes[0]], group.numel

    # --- neighbours

    def _clusters(self, groups: Sequence[Group]) -> list[Group]:
        """Groups that need one value, merged where they may be (unless they are many)."""
        if len(groups) > _NEIGHBOURS_OF_ONE:
            return list(groups)
        found: list[Group] = []
        for group in groups:
            for i, known in enumerate(found):
                merged = self._merge(known, group)
                if merged is not None:
                    found[i] = merged
                    break
            else:
                found.append(group)
        return found

    def _merge_neighbours(self) -> None:
        """Merge groups that run over the same loops and read the same memory, or are too small to stand alone."""
        self.groups.sort(key=lambda g: self.facts.order[g.nodes[-1]])
        i = 0
        while i < len(self.groups):
            group = self.groups[i]
            for other in self.groups[max(i - _NEIGHBOURS, 0) : i]:
                if self._is_akin(group, other):
                    merged = self._merge(other, group)
                    if merged is not None:
                        self.groups.sort(key=lambda g: self.facts.order[g.nodes[-1]])
                        i = max(self.groups.index(merged) - 1, -1)
                        break
            i += 1

    def _is_akin(self, a: Group, b: Group) -> bool:
        """Whether one reads what the other does or makes, over equal loops.

        A few numbers that both read, as a rate of learning, make one of groups that are launched sooner than run. Large
        ones gain nothing by that, and may lie in different orders, as a weight beside an image that is channels-last.
        """
        if a.segment != b.segment or not equals(self.numel[a], self.numel[b]):
            return False
        made = {r for node in a.nodes for r in node.results}
        needed = self._reads(b)
        shared = (needed & made) | (needed & self._reads(a))
        is_small = min(a.nest_cost.nbytes, b.nest_cost.nbytes) < LAUNCH_NBYTES
        return bool(shared) and (is_small or sum(map(nbytes, shared)) >= _FEW_NBYTES)

    def _reads(self, group: Group) -> set[Value]:
        made = {r for node in group.nodes for r in node.results}
        return {self.facts.source(v) for node in group.nodes for v in node.operands()} - made - self.facts.numbers

    def _merge(self, a: Group, b: Group) -> Group | None:
        """One group of two, if a nest can hold them and costs no more."""
        nodes = self._ordered((*a.nodes, *b.nodes))
        why = self._waits(a, b) or self._obstacle(nodes, a.segment, b.segment, nodes)
        if not why:
            trial = self.trials.of(nodes, self._roots_with(nodes, (a, b)))
            apart = a.nest_cost.total + b.nest_cost.total
            if trial.cost is not None and trial.cost.total < apart:
                before = a.nest_cost.nbytes + b.nest_cost.nbytes
                for node in b.nodes:
                    self.groups_of[node] = [g for g in self.groups_of[node] if g is not b]
                self.groups.remove(b)
                self._set(a, nodes, trial.cost)
                self._note((a.nodes[0], b.nodes[-1]), True, "they share loops and memory", before, trial.cost.nbytes)
                return a
            why = trial.why or "together they would move no less memory"
        self._note((a.nodes[-1], b.nodes[-1]), False, why, a.nest_cost.nbytes + b.nest_cost.nbytes)
        return None

    # --- what may be

    def _waits(self, a: Group, b: Group) -> str:
        """Why what one group makes would lie about until it is needed, if it were made with another one's."""
        first, second = sorted((a, b), key=self.starts.__getitem__)
        if self.starts[second] - self.facts.order[first.nodes[-1]] < _FAR:
            return ""
        made = sum(nbytes(root) for root in self._roots(second))
        return "what the second makes would stay in memory for long" if made >= _MUCH_NBYTES else ""

    def _holds_up(self, node: Node, group: Group) -> str:
        """Why what a node reads would be kept until a group runs, if it were computed there."""
        start = self.starts[group]
        if start - self.facts.order[node] < _FAR:
            return ""
        more = -sum(map(nbytes, node.results))
        for value in {self.facts.source(operand) for operand in node.operands()}:
            users, others = self.facts.users(value)
            is_made = value.node is not None and value.node.op not in STATE_OPS
            if is_made and not others and all(self.facts.order[user] < start for user in users):
                more += nbytes(value)
        return "what the first reads would stay in memory for long" if more >= _MUCH_NBYTES else ""

    def _ordered(self, nodes: Iterable[Node]) -> list[Node]:
        return sorted(dict.fromkeys(nodes), key=self.facts.order.__getitem__)

    def _obstacle(
        self, nodes: Sequence[Node], segment: int, other: int, new: Sequence[Node], copied: Sequence[Node] = ()
    ) -> str:
        """Why a group cannot have these nodes. new: those that it needs and has not; for two groups, all of them.
        copied: those of them that each group which needs them computes itself.
        """
        if segment != other:
            return "a write stands between them"
        if len(nodes) > MAX_NODES:
            return "the nest would be too large"
        if is_needed_by_many(nodes, self.facts):
            return "it would be computed again for many slices of one tensor"
        return "another kernel stands between them" if self._has_way_back(nodes, new, copied) else ""

    def _has_way_back(self, nodes: Sequence[Node], new: Sequence[Node], copied: Sequence[Node]) -> bool:
        """Whether something outside needs one of these nodes and is needed by another.

        No path leads out of a group and back into it, nor to what it needs: where no other group computes one of its
        nodes again, those of new nodes alone are looked at.
        """
        members, order = set(nodes), self.facts.order
        is_again = any(len(self.groups_of.get(node, ())) > 1 for node in nodes)
        pending = [u for node in (nodes if is_again else new) for u in self._waiting(node, members, copied)]
        if not pending:
            return False
        last = self._reach(order[nodes[-1]])
        pending = [u for u in pending if order[u] <= last]
        # The hottest loop of a partition: a large graph has its nodes looked at tens of thousands of times.
        seen, done = set(pending), set[Group]()
        users_of, groups_of, units = self.users, self.groups_of, self.units
        while pending:
            node = pending.pop()
            groups = groups_of.get(node)
            if groups and all(map(done.__contains__, groups)):
                continue
            for partner in self._unit(node, members, done) if groups else units.get(node, (node,)):
                for user in users_of.get(partner) or self._users(partner):
                    if user in members:
                        return True
                    if user not in seen and order[user] <= last:
                        seen.add(user)
                        pending.append(user)
        return False

    def _waiting(self, node: Node, members: set[Node], copied: Sequence[Node]) -> Iterator[Node]:
        """What has to stand behind a node, outside of the group that is to have these members, and does not compute
        the node itself."""
        later = self.later.get(node, ())
        for user in self._users(node):
            homes = self.groups_of.get(user, ())
            if user in later or len(homes) < 2:
                if user not in members and (user in later or not self._is_at_home(node, homes, copied)):
                    yield user
            elif node not in copied and any(
                node not in home.nodes and not members.issuperset(home.nodes) for home in homes
            ):
                yield user

    def _is_at_home(self, node: Node, homes: Sequence[Group], copied: Sequence[Node]) -> bool:
        return node in copied or any(node in home.nodes for home in homes)

    def _users(self, node: Node) -> tuple[Node, ...]:
        """What has to stand behind a node."""
        if node not in self.users:
            users = {user for result in node.results for user in self.facts.users(result)[0]}
            self.users[node] = (*users, *self.later.get(node, ()))
        return self.users[node]

    def _unit(self, node: Node, members: set[Node], done: set[Group]) -> Iterable[Node]:
        """The nodes of the groups that a node is in, but for groups that were asked for before."""
        fresh = [g for g in self.groups_of[node] if g not in done]
        done.update(fresh)
        return [n for g in fresh for n in g.nodes if n not in members]

    def _reach(self, last: int) -> int:
        """The place behind which nothing can be needed before `last`, units being run whole."""
        while True:
            further = max((end for start, end in self._spans() if start <= last < end), default=last)
            if further == last:
                return last
            last = further

    def _spans(self) -> Iterable[tuple[int, int]]:
        yield from self.unit_spans
        for group in self.groups:
            if len(group.nodes) > 1:
                yield self.starts[group], self.facts.order[group.nodes[-1]]

    # --- what is stored

    def _roots_with(
        self, nodes: Sequence[Node], groups: Sequence[Group], copied: Sequence[Node] = ()
    ) -> tuple[Value, ...]:
        """The values that a group must store if it has these nodes; those copied into other groups are not."""
        members = set(nodes)
        roots = tuple(
            result
            for node in nodes
            if node not in copied
            for result in node.results
            if self._is_stored(result, members, groups)
        )
        more = left_out(self.facts, nodes, roots)
        if not more:
            return roots
        return tuple(r for node in nodes for r in node.results if r in roots or node in more)

    def _is_stored(self, result: Value, members: set[Node], groups: Sequence[Group]) -> bool:
        users, others = self.facts.users(result)
        needed = others or any(self._needs_memory(user, result.node, members, groups) for user in users)
        return needed and self._stores(result.node, groups)

    def _needs_memory(self, user: Node, node: Node | None, members: set[Node], groups: Sequence[Group]) -> bool:
        """Whether a user's run outside these groups must load what a node makes, not computing it itself."""
        homes = [g for g in self.groups_of.get(user, ()) if g not in groups]
        if not homes:
            return user not in members
        return any(node not in g.nodes for g in homes)

    def _stores(self, node: Node | None, groups: Sequence[Group]) -> bool:
        """Whether it is these groups' business to store a node's results: the first of its groups does."""
        assert node is not None
        homes = self.groups_of.get(node, [])
        return not homes or homes[0] in groups

    def _roots(self, group: Group) -> tuple[Value, ...]:
        return self._roots_with(group.nodes, (group,))

    def _note(
        self, nodes: Sequence[Node], fused: bool, why: str, nbytes_before: int = 0, nbytes_after: int = 0
    ) -> None:
        names = tuple(f"%{n.results[0].name} = {n.op}" for n in nodes)
        self.decisions.append(Decision(names, fused, why, nbytes_before, nbytes_after))


def _nbytes(found: NestCost | None) -> int:
    return 0 if found is None else found.nbytes
