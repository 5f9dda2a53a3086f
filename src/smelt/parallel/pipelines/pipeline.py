"""A program as stages, cut by its dataflow: what a later stage uses of an earlier one is sent to it, whatever it is.

    batch ── microbatches ──▶ stage 0 ──▶ stage 1 ──▶ stage 2
                                 └───────── a skip ──────▲

A batch in microbatches is one more axis that the program is partitioned along, in time instead of space: so means over
the batch, dropout's numbers and ignored targets come out as for the whole batch. What depends on no parameter (masks,
rotary tables, counts of targets) is computed where it is used, once a step, and never sent.

Invariant: the sum of what microbatches give is what the batch gives. A program in which parameters' results of
different microbatches meet before they are summed (batch norm in training) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from smelt.analysis import used_by
from smelt.autodiff.activity import active_values, certain_values
from smelt.diag import SmeltError, Span
from smelt.ir import (
    STATE_OPS,
    Arg,
    Graph,
    Node,
    Region,
    TensorType,
    Value,
    clone_node,
    clone_region,
    is_under,
    map_values,
    values_in,
)
from smelt.ops.catalogue.sharding.terms import without_gaps
from smelt.ops.effects import alias_of, effects
from smelt.ops.lowering import GraphEmitter
from smelt.ops.ranks import collectives as dist
from smelt.ops.ranks.collectives import shard_of
from smelt.ops.ranks.placements import Placement, Shard
from smelt.parallel.dividing.branches import draws, lift_draws, split_branches
from smelt.parallel.dividing.draws import spell_dropout
from smelt.parallel.dividing.marks import Batch, Cut, Mark, Pipeline
from smelt.parallel.dividing.parted import batches
from smelt.parallel.dividing.partition import partition
from smelt.parallel.dividing.retyping import clone_with_types
from smelt.parallel.pipelines.balance import Loads, balanced, loads_of, users_of
from smelt.rewrite import Rewriter

TIME = "microbatch"
"""The axis of time."""


@dataclass(slots=True)
class Given:
    """A value that is computed before the stages, once a step: of which microbatch which part is used.

    source: "sum" over microbatches of a value of each, "program" where it is the whole program's value, or "whole".
    shard: how a whole one falls into microbatches; None where each uses all of it.
    """

    name: str
    source: str
    shard: Shard | None


@dataclass(slots=True)
class Before:
    """What computes the values that are given, one after the other: each may take those of the ones before it.

    program: of the whole batch's inputs. sums: of each microbatch's, to be added up. wholes: once a step.
    """

    program: Graph
    sums: Graph
    wholes: Graph

    @property
    def graphs(self) -> tuple[Graph, Graph, Graph]:
        """All three."""
        return self.program, self.sums, self.wholes


@dataclass(slots=True)
class Stage:
    """inputs: where each of the graph's comes from: "input", "given" or "value" with its name. outputs: the names of
    the values that it gives, the program's outputs among them by number. work: in operations, as a part of all. nbytes:
    of its parameters in training, and of what it keeps for backward. begins: the module that its first node is of.
    """

    number: int
    graph: Graph
    inputs: list[tuple[str, str]]
    outputs: list[str]
    results: dict[int, int] = field(default_factory=dict)
    work: float = 0.0
    nbytes: int = 0
    begins: str = ""


@dataclass(slots=True)
class Crossing:
    """A value that stages use of an earlier one. is_active: gradients come back for it."""

    name: str
    type: TensorType
    source: int
    targets: tuple[int, ...]
    is_active: bool


@dataclass(slots=True)
class Pipelined:
    """before: computes what is given. inputs: how they fall into
    microbatches; outputs: how what microbatches give becomes one. uncertain: outputs that have gradients on some of the
    program's paths only. ends: of the stages, in nodes. placements,
    names: of values in time, as of `Partition`.
    """

    stages: list[Stage]
    microbatches: int
    crossings: dict[str, Crossing]
    given: list[Given]
    before: Before
    inputs: dict[str, Placement]
    outputs: list[Placement]
    ties: dict[str, tuple[int, ...]]
    uncertain: frozenset[int]
    ends: list[int]
    placements: dict[str, Placement]
    names: dict[str, str]

    @property
    def may_skip(self) -> bool:
        """Whether a stage may compute nothing with one of its parameters: in a branch, or a loop that ends at once."""
        return any(node.regions for stage in self.stages for node in stage.graph.body)

    @property
    def state(self) -> set[str]:
        """The paths of what some stage uses."""
        graphs = (*self.before.graphs, *(stage.graph for stage in self.stages))
        return {str(node.args[0]) for graph in graphs for node in graph.walk() if node.op in STATE_OPS}


def staged(
    graph: Graph, mark: Pipeline, marks: Sequence[Mark], trained: Mapping[str, bool], like: Pipelined | None = None
) -> Pipelined:  # fmt: skip
    """The stages that steps ask for. trained: of the parameters, by path. like: as of `pipelined`, which says what it
    raises."""
    types = {v.name: v.type for v in graph.inputs}
    named = next((one.inputs for one in marks if isinstance(one, Batch)), ())
    split = batches(Batch(TIME, named, mark.where), types, mark.microbatches)
    uneven = next((n for n, at in split.items() if isinstance(at, Shard) and not at.is_even), None)
    if uneven is not None:
        raise SmeltError(
            f"the batch of {uneven} does not fall into {mark.microbatches} equal microbatches", mark.where,
            why=f"it has {types[uneven]}", fix="give a batch that they divide", code="S0641",
        )  # fmt: skip
    paths = {path for path, wanted in trained.items() if wanted}
    cuts = [(one.path, one.where) for one in marks if isinstance(one, Cut)]
    return pipelined(graph, mark.stages, mark.microbatches, split, paths, cuts, mark.where, like)


def pipelined(
    graph: Graph, count: int, microbatches: int, batch: Mapping[str, Placement], trained: Collection[str],
    cuts: Sequence[tuple[str, Span | None]] = (), where: Span | None = None, like: Pipelined | None = None,
) -> Pipelined:  # fmt: skip
    """Cut a functional graph into `count` stages.

    batch: the inputs that fall into microbatches, and how. trained: the paths of parameters that have gradients. cuts:
    modules behind which stages end, with the lines that say so; by default stages of equal work. like: the stages of
    another rank, whose share has other sizes: all have to end theirs in the same places, and go through them in one
    order. Raises: SmeltError (S0641) where the program has no such stages or microbatches.
    """
    graph = graph.clone()
    spell_dropout(graph)
    lift_draws(graph)
    wanted: list[Placement | None] = [None] * len(graph.outputs)
    split = batch if microbatches > 1 else {}  # one is the whole batch
    program = graph
    made = partition(graph, TIME, microbatches, 0, split, outputs=wanted, in_time=True)
    graph = made.graph
    if microbatches > 1:
        _check_writes(graph, where)
    free = param_free(graph)
    given, before = _lift(graph, free, program, where)
    uncertain = _uncertain(graph, trained)
    split_branches(graph, count)
    free = param_free(graph) | _views_of_state(graph)
    nodes = [n for n in graph.body if n.op not in (*STATE_OPS, "write") and not set(n.results) <= free]
    loads = loads_of(nodes, microbatches)
    flying = [min(microbatches, count - k) for k in range(count)]
    if like is not None:
        ends = like.ends
    else:
        ends = _ends_of_cuts(nodes, cuts, count) if cuts else balanced(nodes, loads, free, flying, where)
    number: dict[Node, int] = {}
    stage = 0
    for i, node in enumerate(nodes):
        while stage < len(ends) and i >= ends[stage]:
            stage += 1
        number[node] = stage
    _check_draws(nodes, number, before, microbatches)
    for node in graph.body:
        if node.op == "write":
            number[node] = _stage_of_write(node, number)
            nodes.append(node)
    sources = [n.result for n in graph.walk() if n.op in STATE_OPS and str(n.args[0]) in trained]
    active = active_values(graph, sources)
    crossings = _crossings(graph, nodes, number, active)
    stages = [_stage(graph, k, nodes, number, crossings) for k in range(count)]
    _weigh(stages, loads, [0, *ends, len(loads.work)], flying)
    if like is not None:
        for mine, other in zip(stages, like.stages, strict=True):
            mine.work = other.work
    users: dict[str, set[int]] = {}
    for one in stages:
        for node in one.graph.walk():
            if node.op in STATE_OPS:
                users.setdefault(str(node.args[0]), set()).add(one.number)
    _check_writers(graph, users, where)
    ties = {path: tuple(sorted(at)) for path, at in users.items() if len(at) > 1 and path in trained}
    inputs = {name: at for name, at in made.inputs.items() if name in {v.name for v in graph.inputs}}
    return Pipelined(
        stages, microbatches, crossings, given, before, inputs, made.outputs, ties, uncertain, ends, made.placements,
        made.names,
    )  # fmt: skip


def _uncertain(graph: Graph, trained: Collection[str]) -> frozenset[int]:
    sources = [n.result for n in graph.walk() if n.op in STATE_OPS and str(n.args[0]) in trained]
    active, certain = active_values(graph, sources), certain_values(graph, sources)
    return frozenset(
        i for i, out in enumerate(graph.outputs) if isinstance(out, Value) and out in active and out not in certain
    )  # fmt: skip


def stages_of(plan: Pipelined) -> dict[str, int]:
    """In which stage values are made, by name."""
    return {value.name: s.number for s in plan.stages for node in s.graph.walk() for value in node.results}


def param_free(graph: Graph) -> set[Value]:
    """The values that depend on no parameter."""
    bound = {n.result for n in graph.walk() if n.op == "param"}
    for node in graph.body:
        if any(v in bound for v in used_by(node)):
            bound.update(node.results)
    return {v for v in graph.values() if v not in bound}


def _views_of_state(graph: Graph) -> set[Value]:
    """Views of parameters and buffers: each stage has its own."""
    found = {n.result for n in graph.walk() if n.op in STATE_OPS}
    for node in graph.body:
        source: Arg = None if node.regions or len(node.results) != 1 else alias_of(node)
        source = node.args[0] if node.op == dist.ENTER else source
        if isinstance(source, Value) and source in found:
            found.add(node.result)
    return found


def _check_writes(graph: Graph, where: Span | None) -> None:
    found = next((node for node in graph.walk() if node.op == "write"), None)
    if found is not None:
        raise SmeltError(
            f"{_written(found)} is written to, and a pipeline would do so once a microbatch", found.span or where,
            why="the whole batch writes once", code="S0641",
            fix="leave the buffer unchanged (eval mode of its module), or use one microbatch",
        )  # fmt: skip


def _check_writers(graph: Graph, users: Mapping[str, set[int]], where: Span | None) -> None:
    """Raises: SmeltError (S0641) where a buffer is written to that several stages have."""
    for node in graph.walk():
        at = users.get(_written(node), set()) if node.op == "write" else set()
        if len(at) > 1:
            raise SmeltError(
                f"{_written(node)} is written to, and stages {', '.join(map(str, sorted(at)))} use it",
                node.span or where, why="each of them would have a buffer of its own", code="S0641",
                fix="end the stages behind other modules, so that one of them has all that uses it",
            )  # fmt: skip


def _stage_of_write(write: Node, number: Mapping[Node, int]) -> int:
    """The stage that makes what is written, or else uses the buffer, or has the rest of the module's work."""
    target, value = write.args
    pending, seen = [v for v in (value, target) if isinstance(v, Value)], set[Node]()
    while pending:
        found = pending.pop(0)
        if found.node is not None and found.node in number:
            return number[found.node]
        for user in users_of(found) if found is not value else []:
            if user in number:
                return number[user]
            if user not in seen:
                seen.add(user)
                pending += user.results
    owner = _written(write).rpartition(".")[0]
    return next((at for node, at in reversed(list(number.items())) if is_under(node.scope, owner)), 0)


def _written(node: Node) -> str:
    """The path of the buffer that a node writes to."""
    target = node.args[0]
    while isinstance(target, Value) and target.node is not None and target.node.op == "write":
        target = target.node.args[0]
    made = target.node if isinstance(target, Value) else None
    return str(made.args[0]) if made is not None and made.op in STATE_OPS else "an input"


# --- what is computed before the stages


def _lift(graph: Graph, free: set[Value], program: Graph, where: Span | None) -> tuple[list[Given], Before]:
    """Make inputs of what microbatches have in common, or draw; the graphs that compute it.

    program: the graph before it was partitioned: its values are those of the whole batch.
    """
    rewriter, found = Rewriter(graph), list[tuple[Given, Value, Value]]()
    whole = {value.name: value for value in program.values()}
    for node in list(graph.body):
        _check_inside(node, where)
        over_time = node.op in _SOURCES and node.args[-1] == TIME
        if not over_time and not draws(node):
            if node.op in dist.COLLECTIVES and node.args[-1] == TIME:
                raise _coupled(node, where)
            continue
        if node.regions and free.isdisjoint(node.results):
            continue  # its stage draws, see `_check_draws`
        sources = [node.args[0]] if over_time else node.results
        for source, result in zip(sources, node.results, strict=True):
            assert isinstance(source, Value)
            if source not in free or (node.op == dist.ALL_REDUCE and node.args[1] != "sum"):
                raise _coupled(node, where)
            shard = shard_of(node.args) if node.op == dist.SHARD else None
            kind = _SOURCES.get(node.op, "whole")
            if kind == "program":
                if source.name not in whole or any(map(draws, _needed([whole[source.name]], lambda value: False))):
                    raise _coupled(node, where)
                source = whole[source.name]
            found.append((Given(f"given_{len(found)}", kind, shard), source, result))
    before = _before(graph, program, found, where)
    for one, _, result in found:
        made = rewriter.builder.add_param(graph.body, one.name, result.type)
        rewriter.replace_all_uses(result, made)
    for lifted in dict.fromkeys(result.node for _, _, result in found):
        assert lifted is not None
        rewriter.erase(lifted)
    _drop_dead(rewriter, graph)
    return [one for one, _, _ in found], before


_SOURCES = {dist.SHARD: "whole", dist.ALL_REDUCE: "sum", dist.ALL_GATHER: "program"}
"""Over microbatches: where the results of these come from, if they depend on no parameter."""


def _before(
    graph: Graph, program: Graph, found: Sequence[tuple[Given, Value, Value]], where: Span | None
) -> Before:  # fmt: skip
    copied, mapping = Graph(graph.name), dict[Value, Arg]()
    copied.constants = dict(graph.constants)
    clone_region(graph.body, copied.body, mapping)
    rewriter = Rewriter(copied)
    for one, _, result in found:
        if one.source != "whole":
            old = mapping[result]
            assert isinstance(old, Value)
            rewriter.replace_all_uses(old, rewriter.builder.add_param(copied.body, one.name, old.type))

    def wanted(kind: str) -> list[Value]:
        values = [mapping[source] for one, source, _ in found if one.source == kind]
        return [value for value in values if isinstance(value, Value)]

    sums = _only(copied, "sums", wanted("sum"))
    of_sums = {one.name for one, _, _ in found if one.source == "sum"}
    for value in sums.inputs:
        if value.name in of_sums and value.users:
            node = next(result.node for one, _, result in found if one.name == value.name)
            assert node is not None
            raise _coupled(node, where)
    whole = [source for one, source, _ in found if one.source == "program"]
    return Before(_only(program, "program", whole), sums, _only(copied, "wholes", wanted("whole")))


def _check_inside(node: Node, where: Span | None) -> None:
    """Raises: SmeltError (S0641) where a branch or loop needs several microbatches."""
    for inner in (one for region in node.regions for one in region.walk()):
        if inner.op.startswith("dist.") and inner.op != dist.ENTER and inner.args[-1] == TIME:
            raise _coupled(inner, where)


def _check_draws(nodes: Sequence[Node], number: Mapping[Node, int], before: Before, microbatches: int) -> None:
    """Raises: SmeltError (S0641) where a branch or loop that depends on parameters draws, and is not all that draws."""
    drawing = [node for node in nodes if node.regions and draws(node)]
    alone = microbatches == 1 and len({number[node] for node in drawing}) == 1
    if drawing and (not alone or any(draws(node) for node in before.wholes.body)):
        raise SmeltError(
            "random numbers are drawn in a branch or loop that depends on parameters", drawing[0].span, code="S0641",
            why="all others are drawn for the whole batch before the first stage, and would come before these",
            fix="draw outside of it, or use no stages",
        )  # fmt: skip


def _coupled(node: Node, where: Span | None) -> SmeltError:
    return SmeltError(
        "microbatches cannot be computed apart", node.span or where,
        why=f"{node.op} needs what parameters make of all of them at once",
        fix="use one microbatch, or a layer that looks at each sample alone (group norm for batch norm)", code="S0641",
    )  # fmt: skip


def _drop_dead(rewriter: Rewriter, graph: Graph) -> None:
    for node in reversed(list(graph.body)):
        acts = effects(node)
        if not any(r.users for r in node.results) and acts.is_pure:
            rewriter.erase(node)


def _only(graph: Graph, name: str, outputs: Sequence[Value]) -> Graph:
    """The part of a graph that computes some values, with all of its inputs; draws in their order."""
    needed = _needed(outputs, lambda value: False)
    made = Graph(name)
    made.constants = dict(graph.constants)
    mapping: dict[Value, Arg] = {}
    for value in graph.inputs:
        copied = Value(value.name, value.type, made.body)
        made.body.params.append(copied)
        mapping[value] = copied
    for node in graph.body:
        if node in needed:
            made.body.insert(clone_node(node, mapping))
    made.body.set_yields(tuple(mapping[v] for v in outputs))
    return made


def _needed(values: Iterable[Value], stops: Callable[[Value], bool]) -> set[Node]:
    found: set[Node] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        node = value.node
        if node is None or node in found or stops(value):
            continue
        found.add(node)
        pending += used_by(node)
    return found


# --- where stages end


def _ends_of_cuts(nodes: Sequence[Node], cuts: Sequence[tuple[str, Span | None]], count: int) -> list[int]:
    ends = []
    for path, where in cuts:
        inside = [i for i, node in enumerate(nodes) if is_under(node.scope, path)]
        if not inside:
            raise SmeltError(
                f"no stage can end behind {path}", where, why="the program computes nothing of parameters there",
                fix="name a module that the program calls", code="S0641",
            )  # fmt: skip
        ends.append(inside[-1] + 1)
    if len(ends) != count - 1:
        raise SmeltError(
            f"{len(ends) + 1} stages end behind modules that steps name, and {count} are to be made", cuts[0][1],
            fix=f"name {count - 1} modules, or none: then stages are of equal work", code="S0641",
        )  # fmt: skip
    return sorted(ends)


# --- stages


def _crossings(
    graph: Graph, nodes: Sequence[Node], number: Mapping[Node, int], active: Collection[Value]
) -> dict[str, Crossing]:
    found: dict[str, Crossing] = {}
    for node in nodes:
        for value in node.results:
            targets = sorted({number[u] for u in users_of(value) if u in number and number[u] > number[node]})
            if targets:
                assert isinstance(value.type, TensorType)
                type_ = without_gaps(value.type)
                found[value.name] = Crossing(value.name, type_, number[node], tuple(targets), value in active)
    return found


def _stage(
    graph: Graph, k: int, nodes: Sequence[Node], number: Mapping[Node, int],
    crossings: Mapping[str, Crossing],
) -> Stage:  # fmt: skip
    own = [node for node in nodes if number[node] == k]
    gives = [c.name for c in crossings.values() if c.source == k]
    last = max(number.values(), default=0)
    results: dict[int, int] = {}
    yields: list[Arg] = []
    by_name = {value.name: value for value in graph.values()}
    yields += [by_name[name] for name in gives]
    for i, out in enumerate(graph.outputs):
        of = [number[v.node] for v in values_in(out) if v.node is not None and v.node in number]
        if (max(of) if of else last) == k:
            results[i] = len(yields)
            yields.append(out)

    def stops(value: Value) -> bool:
        return value.node is not None and value.node in number and number[value.node] != k

    outputs = [v for arg in yields for v in values_in(arg)]
    needed = _needed(outputs, stops) | {node for node in own if not effects(node).is_pure}
    needed |= _needed([v for node in needed for v in used_by(node)], stops)
    made = Graph(f"{graph.name}_stage_{k}")
    made.constants = dict(graph.constants)
    mapping: dict[Value, Arg] = {}
    inputs: list[tuple[str, str]] = []
    wanted = dict.fromkeys(v for node in graph.body if node in needed for v in used_by(node))
    wanted.update(dict.fromkeys(outputs))
    for value in wanted:
        if value.node is not None and (value.node in needed):
            continue
        if isinstance(value.owner, Region) and value.owner is not graph.body:
            continue
        of_other = crossings.get(value.name) if value.node is not None else None
        copied = Value(value.name, of_other.type if of_other is not None else value.type, made.body)
        made.body.params.append(copied)
        mapping[value] = copied
        kind = "value" if value.node is not None else "given" if value.name.startswith("given_") else "input"
        inputs.append((kind, value.name))
    for node in graph.body:
        if node in needed:
            made.body.insert(clone_with_types(node, mapping))
    made.body.set_yields(tuple(map_values(arg, lambda v: mapping[v]) for arg in yields))
    _own_memory(made)
    return Stage(k, made, inputs, gives, results, begins=own[0].scope if own else "")


def _own_memory(graph: Graph) -> None:
    """Give each output memory of its own: what another stage has must not change with what this one keeps."""
    rewriter = Rewriter(graph)
    emitter = GraphEmitter(rewriter.builder, rewriter.adopt)
    seen: set[Value] = set()
    outputs: list[Arg] = []
    for out in graph.outputs:
        node = out.node if isinstance(out, Value) else None
        is_one = node is not None and not node.regions and len(node.results) == 1
        is_view = is_one and node is not None and (node.op == dist.ENTER or alias_of(node) is not None)
        may_alias = node is None or node.regions or is_view or out in seen  # an arm may hand on what came in
        if isinstance(out, Value) and isinstance(out.type, TensorType) and may_alias:
            out = emitter.call("aten.clone.default", out)
        outputs.append(out)
        seen.update(values_in(out))
    rewriter.set_yields(graph.body, tuple(outputs))


def _weigh(stages: Sequence[Stage], loads: Loads, ends: Sequence[int], flying: Sequence[int]) -> None:
    """Note the work and the memory of stages."""
    total = sum(loads.work) or 1.0
    for stage, (begin, end), count in zip(stages, pairwise(ends), flying, strict=True):
        stage.work, stage.nbytes = sum(loads.work[begin:end]) / total, loads.memory(begin, end, count)
