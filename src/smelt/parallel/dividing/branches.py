"""Branches around more than one stage's work, as several branches on the same test: stages end between them.

    before:  %y = if %t { %1 = f(%x)  %2 = g(%1)  yield %2 } else { %3 = h(%x)  yield %3 }
    after:   %1 = if %t { yield f(%x) } else { yield ones }
             %y = if %t { yield g(%1) } else { yield h(%x) }

Only tests that depend on no parameter: all stages then know them. Numbers that arms draw come first, in a branch of
their own, in the program's order: so they can be drawn for the whole batch. What depends on no parameter is computed
again in each branch that uses it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from smelt.analysis import used_by, used_values
from smelt.ir import Arg, Graph, Node, Region, TensorType, Type, Value, clone_node, map_values, values_in
from smelt.ops.catalogue.sharding.terms import ones_in_order, without_gaps
from smelt.ops.effects import effects
from smelt.ops.lowering import GraphEmitter
from smelt.parallel.pipelines.balance import work_of
from smelt.rewrite import Rewriter

_PER_STAGE = 4
"""Branches that a branch may become, for each stage: as finely stages can be balanced."""


@dataclass(slots=True)
class _Arm:
    """One region of a branch. bound: its nodes that depend on parameters, in order. given: what earlier branches gave
    for it, by its own value."""

    region: Region
    bound: list[Node]
    given: dict[Value, Arg] = field(default_factory=dict)


def lift_draws(graph: Graph) -> None:
    """Draw what arms of branches draw in branches of their own, right before."""
    _lift_draws(graph, graph.body)


def _lift_draws(graph: Graph, region: Region) -> None:
    for node in list(region):
        if node.op == "if" and draws(node):
            for arm in node.regions:
                _lift_draws(graph, arm)
            _Split(graph, node, 1).draw_first()


def split_branches(graph: Graph, stages: int) -> None:
    """Make several branches of each one that is more than its share of `stages` stages."""
    total = sum(map(work_of, graph.body))
    for node in list(graph.body):
        count = min(round(work_of(node) * stages * _PER_STAGE / total), stages * _PER_STAGE) if total else 1
        if node.op == "if" and count > 1:
            _Split(graph, node, count).run()


class _Split:
    """One branch, made `count` ones of about equal work."""

    def __init__(self, graph: Graph, node: Node, count: int) -> None:
        self.node, self.count = node, count
        self.bound = bound_values(graph)
        self.rewriter = Rewriter(graph)
        self.emitter = GraphEmitter(self.rewriter.builder, self.rewriter.adopt)
        self.named = set[str]()
        self.arms = [_Arm(r, [n for n in r if not self.bound.isdisjoint(n.results)]) for r in node.regions]

    def draw_first(self) -> None:
        """Write the numbers that arms draw as what a branch before this one gives; nothing where they follow from
        parameters, or where something has to stay in order with them."""
        drawn = [self._drawn(arm) for arm in self.arms]
        gives = [self._used_besides(arm, nodes) for arm, nodes in zip(self.arms, drawn, strict=True)]
        if self._depends() or any(_handed_on(v.type) >= _NEVER or v in self.bound for values in gives for v in values):
            return
        with self.rewriter.builder.at(self.node):
            self._branch(list(zip(drawn, gives, strict=True)))
            self._replace(self._last([arm.bound for arm in self.arms]))

    def _drawn(self, arm: _Arm) -> list[Node]:
        """What an arm draws, and what it makes of that without parameters."""
        found: set[Value] = set()
        nodes = []
        for node in arm.region:
            if draws(node) or (node not in arm.bound and not found.isdisjoint(used_by(node))):
                found.update(node.results)
                nodes.append(node)
        return nodes

    def _used_besides(self, arm: _Arm, nodes: Sequence[Node]) -> list[Value]:
        others = {n for n in arm.region if n not in nodes}
        return self._crossing(arm, nodes, others)

    def run(self) -> None:
        """Write branches where the one was; nothing where that cannot be done."""
        parts = self._parts()
        if self._depends() or len(parts) < 2:
            return
        with self.rewriter.builder.at(self.node):
            for number, part in enumerate(parts[:-1]):
                later = [{n for p in parts[number + 1 :] for n in p[side]} for side in range(len(self.arms))]
                self._branch([
                    (nodes, self._crossing(arm, nodes, after))
                    for arm, nodes, after in zip(self.arms, part, later, strict=True)
                ])  # fmt: skip
            self._replace(self._last(parts[-1]))

    def _depends(self) -> bool:
        """Whether the test depends on parameters, or an arm acts."""
        inner = [node for arm in self.arms for node in arm.region.walk()]
        acts = any(n.op in ("write", "expect") or not (n.regions or effects(n).is_pure or draws(n)) for n in inner)
        return acts or any(v in self.bound for v in values_in(self.node.args[0]))

    def _replace(self, last: Node) -> None:
        names = [result.name for result in self.node.results]
        self.rewriter.replace_node(self.node, last.results)
        for result, name in zip(last.results, names, strict=True):
            result.name = name

    # --- where

    def _parts(self) -> list[list[list[Node]]]:
        """Of each branch to be made, the nodes of each arm."""
        ends = [self._ends(arm) for arm in self.arms]
        count = max(map(len, ends)) + 1
        found = []
        for number in range(count):
            found.append([
                arm.bound[0 if not number else (at[number - 1 : number] or [len(arm.bound)])[0] :
                          (at[number : number + 1] or [len(arm.bound)])[0]]
                for arm, at in zip(self.arms, ends, strict=True)
            ])  # fmt: skip
        return found

    def _ends(self, arm: _Arm) -> list[int]:
        """Where an arm is divided: near equal shares of its work, where least has to be handed on."""
        work, sent = [0.0], [0] * (len(arm.bound) + 2)
        place = {node: i for i, node in enumerate(arm.bound)}
        for i, node in enumerate(arm.bound):
            work.append(work[-1] + work_of(node))
            for value in node.results:
                last = max(self._uses(arm, value, place), default=i)
                sent[i + 1] += _handed_on(value.type)
                sent[last + 1] -= _handed_on(value.type)
        for i in range(1, len(sent)):
            sent[i] += sent[i - 1]
        found: list[int] = []
        for k in range(1, self.count):
            low, high = ((k + d) * work[-1] / self.count for d in (-0.5, 0.5))
            spots = [i for i in range(1, len(arm.bound)) if low <= work[i] < high and sent[i] < _NEVER]
            if spots and (best := min(spots, key=lambda i: sent[i])) not in found:
                found.append(best)
        return found

    def _uses(self, arm: _Arm, value: Value, place: dict[Node, int]) -> Iterable[int]:
        """Where a value is used last; at the end what the branch gives."""
        for user in value.users:
            if user is arm.region:
                yield len(arm.bound)
            node = user if isinstance(user, Node) else user.owner
            while isinstance(node, Node) and node.parent is not arm.region:
                node = node.parent.owner if node.parent is not None else None
            if isinstance(node, Node) and node in place:
                yield place[node]

    def _crossing(self, arm: _Arm, nodes: Sequence[Node], later: Collection[Node]) -> list[Value]:
        """What nodes make that later ones use, or the branch gives."""
        ends = {v for arg in arm.region.yields for v in values_in(arg)}
        used = {v for node in later for v in used_by(node)} | ends
        return [v for node in nodes for v in node.results if v in used]

    # --- writing

    def _branch(self, halves: Sequence[tuple[Sequence[Node], Sequence[Value]]]) -> None:
        """One branch. halves: of each arm, the nodes and what they give; others of the same type share a result."""
        slots: list[tuple[Type, list[Value | None]]] = []
        for side, (_, gives) in enumerate(halves):
            free = [slot for slot in slots if slot[1][side] is None]
            for value in gives:
                slot = next((one for one in free if one[0] == value.type), None)
                if slot is None:
                    slot = value.type, [None] * len(halves)
                    slots.append(slot)
                else:
                    free.remove(slot)
                slot[1][side] = value
        made = self.rewriter.builder.add("if", self.node.args, [type_ for type_, _ in slots])
        for side, (arm, (nodes, _)) in enumerate(zip(self.arms, halves, strict=True)):
            region = self.rewriter.builder.add_region(made)
            mapping = self._written(arm, region, nodes, [])
            with self.rewriter.builder.inside(region):
                region.set_yields(tuple(
                    mapping[v] if (v := values[side]) is not None else self._nothing(type_) for type_, values in slots
                ))  # fmt: skip
            for result, (_, values) in zip(made.results, slots, strict=True):
                if (gave := values[side]) is not None:
                    arm.given[gave] = result

    def _last(self, part: Sequence[Sequence[Node]]) -> Node:
        made = self.rewriter.builder.add("if", self.node.args, [r.type for r in self.node.results])
        for arm, nodes in zip(self.arms, part, strict=True):
            region = self.rewriter.builder.add_region(made)
            ends = [v for arg in arm.region.yields for v in values_in(arg)]
            mapping = self._written(arm, region, nodes, ends)
            region.set_yields(tuple(map_values(arg, partial(_mapped, mapping)) for arg in arm.region.yields))
        return made

    def _written(self, arm: _Arm, region: Region, nodes: Sequence[Node], ends: Sequence[Value]) -> dict[Value, Arg]:
        """Copies of nodes, and of what they need that no earlier branch gave."""
        mapping, needed = dict(arm.given), set(nodes)
        pending = [*ends, *(v for node in nodes for v in used_values(node))]
        while pending:
            node = pending.pop().node
            if (
                node is None
                or node.parent is not arm.region
                or node in needed
                or not mapping.keys().isdisjoint(node.results)
            ):
                continue
            needed.add(node)
            pending += used_values(node)
        for node in arm.region:
            if node in needed:
                region.insert(clone_node(node, mapping))
                for value in node.results:
                    made = mapping[value]
                    assert isinstance(made, Value)
                    self._rename(made)
        return mapping

    def _rename(self, made: Value) -> None:
        """Give a second copy, and what its regions make, names of its own."""
        assert made.node is not None
        values = [made]
        for region in made.node.regions if made is made.node.results[0] else ():
            values += [*region.params, *(v for node in region.walk() for v in node.results)]
            values += [p for node in region.walk() for inner in node.regions for p in inner.params]
        for value in values:
            if value.name in self.named:
                value.name = self.rewriter.builder.fresh_name()
            self.named.add(value.name)

    def _nothing(self, type_: Type) -> Value:
        assert isinstance(type_, TensorType)
        return ones_in_order(self.emitter, type_)


_NEVER = 1 << 50


def _mapped(mapping: dict[Value, Arg], value: Value) -> Arg:
    return mapping.get(value, value)


def _handed_on(type_: Type) -> int:
    """Bytes that a branch hands on; more than anything where it cannot."""
    if not isinstance(type_, TensorType) or not type_.is_static or without_gaps(type_) != type_:
        return _NEVER
    return type_.nbytes


def draws(node: Node) -> bool:
    """Whether a node draws random numbers, or one in its regions."""
    return effects(node).rng if not node.regions else any(draws(one) for region in node.regions for one in region)


def bound_values(graph: Graph) -> set[Value]:
    """The values that depend on a parameter, those in branches and loops included."""
    found: set[Value] = set()
    changed = True
    while changed:
        changed = False
        for node in graph.walk():
            if node.op == "param" or not found.isdisjoint(used_by(node)):
                new = [*node.results, *(p for region in node.regions for p in region.params)]
                if not found.issuperset(new):
                    found.update(new)
                    changed = True
    return found
