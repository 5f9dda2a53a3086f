"""What of a graph's mutation can be told for sure, and how to write through each view.

Invariant: memory of which anything is in doubt is left out whole: all that writes it stays in place.
"""

from __future__ import annotations

from smelt.analysis import Aliases, RegionAliases, alias_analysis, conflicts, is_external, region_aliases
from smelt.diag import InternalError
from smelt.diag.records import record
from smelt.ir import Graph, Node, Region, TensorType, TupleType, Value
from smelt.ops.effects import effects
from smelt.ops.lowering import GraphEmitter
from smelt.ops.record import Trait
from smelt.ops.sets import where
from smelt.ops.typing import infer
from smelt.passes.mutation.mutations import Mutation, holds, mutation_of
from smelt.passes.mutation.overlaps import reads_what_it_writes
from smelt.passes.mutation.parents import parent_of
from smelt.passes.mutation.placed_views import can_place_again, is_placed
from smelt.passes.mutation.view_inverses import SPLITS, Inverse, element_inverse, inverse_of, same

_PARTS = where(Trait.STRIDED_PART)


@record
class Plan:
    """The writing nodes to replace, and the roots of the memory they write."""

    mutations: dict[Node, Mutation]
    roots: frozenset[Value]
    aliases: Aliases


def plan_of(graph: Graph, entangled: frozenset[str]) -> Plan:
    """The plan for a whole graph; `entangled` names external values that lie in each other's memory."""
    joined = region_aliases(graph) if _has_junctions(graph) else None
    aliases = alias_analysis(graph) if joined is None else joined.as_aliases()
    mutations: dict[Node, Mutation] = {}
    kept = {root for roots in aliases.roots.values() for root in roots if is_external(root) and root.name in entangled}
    for node in graph.walk():
        writes = () if node.regions else effects(node).writes
        if not writes:
            continue
        mutation = mutation_of(node) if node.op != "write" else None
        if mutation is None:
            kept |= aliases.of_all(writes)
        else:
            mutations[node] = mutation
    if mutations:
        written = aliases.of_all(v for m in mutations.values() for v, _ in m.written)
        kept |= _unfit_roots(graph, aliases, written)
        for node, mutation in mutations.items():
            for value, _ in mutation.written:
                may_write = _can_write_through(value, aliases) or _can_write_unknown(mutation, value, aliases)
                if not may_write or reads_what_it_writes(node, value, aliases):
                    kept |= aliases.of(value)
        if joined is not None:
            kept |= _written_by_tests(mutations, joined)
            kept |= conflicts(graph, joined, [(n, v) for n, m in mutations.items() for v, _ in m.written])
        _drop_kept(mutations, kept, aliases, joined)
    roots = aliases.of_all(v for m in mutations.values() for v, _ in m.written)
    return Plan(mutations, roots, aliases)


def _has_junctions(graph: Graph) -> bool:
    return any(node.regions or node.op.startswith("py.") for node in graph.walk())


def _written_by_tests(mutations: dict[Node, Mutation], joined: RegionAliases) -> set[Value]:
    """Memory that the test of a `while` writes and did not make: a test hands nothing on to the body."""
    found: set[Value] = set()
    for node, mutation in mutations.items():
        for region in _regions_around(node):
            loop = region.owner
            if not isinstance(loop, Node) or loop.op != "while" or loop.regions[0] is not region:
                continue
            for value, _ in mutation.written:
                root = joined.local[value]
                if root in joined.sources or root.node is None or region not in _regions_around(root.node):
                    found.add(root)
    return found


def _regions_around(node: Node) -> list[Region]:
    found: list[Region] = []
    at: Node | None = node
    while at is not None and at.parent is not None:
        found.append(at.parent)
        owner = at.parent.owner
        at = owner if isinstance(owner, Node) else None
    return found


def _drop_kept(
    mutations: dict[Node, Mutation], kept: set[Value], aliases: Aliases, joined: RegionAliases | None
) -> None:
    """A node that writes kept memory stays, and then all the memory it writes is kept."""
    changed = True
    while changed:
        changed = False
        if joined is not None:
            kept |= joined.component(kept)
        for node, mutation in list(mutations.items()):
            touched = aliases.of_all(v for v, _ in mutation.written)
            if touched & kept:
                kept |= touched
                del mutations[node]
                changed = True


def _unfit_roots(graph: Graph, aliases: Aliases, written: frozenset[Value]) -> set[Value]:
    unfit = {root for root in written if not isinstance(root.type, TensorType)}
    for value in graph.values():
        roots = aliases.of(value)
        if roots & written and (len(roots) > 1 or (value not in roots and not _is_replayable(value))):
            unfit |= roots
    return unfit


def _is_replayable(value: Value) -> bool:
    """Whether a view can be taken again of other content: not where it names a place that only its own memory has."""
    node = value.node
    if node is None or node.regions or parent_of(value) is None:
        return False
    if is_placed(node) and not can_place_again(node):
        return False
    return node.op in ("unpack", "write") or isinstance(value.type, (TensorType, TupleType))


def _can_write_through(value: Value, aliases: Aliases) -> bool:
    roots = aliases.of(value)
    current = value
    while current not in roots:
        step = step_of(current)
        if step is None or not (holds(current.type) or _is_part(current) or step.is_whole):
            return False
        current = step.base
    if not isinstance(current.type, TensorType):
        return False
    return holds(current.type) or (current is not value and _lies_in_rows(current.type))


def _lies_in_rows(type_: TensorType) -> bool:
    """Whether a tensor of unknown sizes has its elements one after the other, so that each has a place of its own."""
    return type_.shape is not None and type_.strides is None and type_.layout == "strided"


def _is_part(value: Value) -> bool:
    """Whether a tensor of unknown sizes has its elements where its base has some of its own, each once."""
    node = value.node
    if node is not None and node.op == "unpack":
        listed = parent_of(value)
        return listed is not None and listed.node is not None and listed.node.op in SPLITS
    return node is not None and node.op in _PARTS and isinstance(value.type, TensorType)


def _can_write_unknown(mutation: Mutation, value: Value, aliases: Aliases) -> bool:
    """Whether a tensor of unknown sizes is written whole: by a copy, which refuses what eager refuses."""
    type_, whole = value.type, value
    while whole not in aliases.of(value):
        step = step_of(whole)
        if step is None or not step.is_whole or step.base.type != type_:
            return False
        whole = step.base
    if not isinstance(type_, TensorType):
        return False
    if type_.shape is None or type_.is_static or type_.strides is not None or type_.layout != "strided":
        return False
    try:
        made = infer(mutation.op, mutation.args, mutation.kwargs)
        copied = infer("aten.copy.default", (value, value))
    except InternalError:
        return False
    return copied == (type_,) and all(isinstance(t, TensorType) and t.rank == type_.rank for t in made)


@record
class Step:
    """One view back: the base, and how to write through the view."""

    base: Value
    node: Node
    inverse: Inverse

    @property
    def is_same(self) -> bool:
        """Whether it is the base itself."""
        return self.inverse is _identity

    @property
    def is_whole(self) -> bool:
        """Whether it is the very tensor, by whatever name."""
        return self.is_same or self.inverse is same


def step_of(value: Value) -> Step | None:
    parent, node = parent_of(value), value.node
    if parent is None or node is None or not isinstance(value.type, TensorType):
        return None
    if node.op == "unpack":
        source = parent.node
        base = parent_of(parent)
        if source is None or base is None or not isinstance(parent.type, TupleType):
            return None
        if not isinstance(base.type, TensorType):
            return None
        found = element_inverse(source, parent.type, node.results.index(value), base.type)
        return None if found is None else Step(base, source, found)
    if not isinstance(parent.type, TensorType):
        return None
    if effects(node).writes:
        # An in-place operator returns the operand itself.
        return Step(parent, node, _identity) if parent.type == value.type else None
    inverse = inverse_of(node, parent.type, value.type)
    return None if inverse is None else Step(parent, node, inverse)


def _identity(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
    return new
