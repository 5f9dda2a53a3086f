"""What a step on a mesh will take, predicted from the program's graph: memory, traffic and time of each rank.

    4,096 ranks of dp=64,tp=8,pp=8   ==>   8 that differ: ranks along "dp" and "tp" do the same, stages do not

Nothing runs, and no plan is lowered. Ranks that have equal parts form a class, of which one is partitioned; a mesh that
has a rank of each class is run by the clock, with the true number of ranks in each collective.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

from smelt.analysis import nbytes
from smelt.autodiff import halves, joint_graph, watched
from smelt.compiler.pipeline import optimized_graph
from smelt.diag import Options, SmeltError
from smelt.diag.records import record
from smelt.ir import STATE_OPS, Graph, TensorType
from smelt.ops.evaluate import no_state
from smelt.ops.ranks import collectives as dist
from smelt.ops.ranks.collectives import shard_of
from smelt.parallel.dividing.marks import Mark, Pipeline
from smelt.parallel.dividing.parted import Parted, flat, parted
from smelt.parallel.mesh import Mesh
from smelt.parallel.module import pipeline_of
from smelt.parallel.pipelines.order import Action, timeline
from smelt.parallel.pipelines.pipeline import staged, stages_of
from smelt.parallel.pipelines.stages import enter_late, localize_stage
from smelt.parallel.proving.clock import Clock, clocked
from smelt.parallel.proving.events import (
    Event,
    Exchange,
    Memory,
    Pieces,
    Send,
    Staged,
    memory_of,
    of_memory,
    of_pipe,
    of_step,
)
from smelt.parallel.proving.figures import TYPICAL, Figures, hops_and_bytes
from smelt.passes.ranks.local import localize
from smelt.passes.ranks.overlap import overlap

OPTIMIZERS: Mapping[str, int] = {"none": 0, "sgd": 0, "momentum": 1, "adamw": 2}
"""Tensors of a parameter's size that an optimizer keeps for it."""


@record
class Traffic:
    """What a rank sends along an axis in a step: messages and bytes, by kind."""

    messages: Mapping[str, int]
    nbytes: Mapping[str, float]

    @property
    def total(self) -> float:
        """All bytes."""
        return sum(self.nbytes.values())


@record
class Kin:
    """Ranks that do the same. example: one of them. count: how many there are. where: their places along the axes.

    parameters: elements that are trained. busy, talking, idle: parts of a step.
    """

    example: int
    count: int
    where: str
    parameters: int
    memory: Memory
    traffic: Mapping[str, Traffic]
    busy: float
    talking: float
    idle: float


@dataclass(slots=True)
class Forecast:
    """A step of all ranks: classes of ranks, and a rank of each class by the clock. part: rank 0's, before
    stages. stages: by a value's name, where it is made. groups: places along each axis that do the same.
    """

    mesh: Mesh
    figures: Figures
    kinds: list[Kin]
    clock: Clock
    batch: int
    part: Parted
    stages: Mapping[str, int]
    groups: Mapping[str, Sequence[Sequence[int]]]

    def kind_of(self, rank: int) -> int:
        """The number of a rank's class."""
        here = self.mesh.coordinates(rank)
        places = {axis: next(i for i, of in enumerate(self.groups[axis]) if here[axis] in of) for axis in here}
        return Mesh(tuple((axis, len(of)) for axis, of in self.groups.items())).rank_at(places)

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.clock.length

    @property
    def worst(self) -> Kin:
        """A rank that needs the most memory."""
        return max(self.kinds, key=lambda kin: kin.memory.peak)


@record
class Question:
    """A program and how it is to be shared. ties: as of `parted`.

    trained: the paths of parameters that have gradients; None: it is run for its results alone.
    """

    graph: Graph
    marks: Sequence[Mark]
    ties: Mapping[str, str]
    trained: Collection[str] | None
    optimizer: str = "adamw"


def forecast(asked: Question, mesh: Mesh, figures: Figures) -> Forecast:
    """Predict. Raises: SmeltError (S0641, S0642) where the steps do not fit the program or the mesh."""
    _check_axes(mesh, asked.marks)
    first = parted(asked.graph, mesh, 0, asked.marks, asked.ties)
    pipe_axis = next((m.axis for m in asked.marks if isinstance(m, Pipeline)), "")
    groups = {axis: _alike(first, axis, extent, axis == pipe_axis) for axis, extent in mesh.axes}
    small = Mesh(tuple((axis, len(of)) for axis, of in groups.items()))
    others = [axis for axis in mesh.names if axis != pipe_axis]
    known: dict[int, Share] = {}
    for places in product(*(range(len(groups[axis])) for axis in others)):
        here = dict(zip(others, places, strict=True))
        rank = mesh.rank_at({axis: groups[axis][here.get(axis, 0)][0] for axis in mesh.names})
        part = first if rank == 0 else parted(asked.graph, mesh, rank, asked.marks, asked.ties)
        for stage, share in _shares(asked, part, first, figures):
            known[small.rank_at({**here, **({pipe_axis: stage} if pipe_axis else {})})] = share
    shares = [known[rank] for rank in range(small.size)]
    clock = clocked([share.events for share in shares], small.group, dict(mesh.axes), figures, is_pipe=bool(pipe_axis))
    kinds = []
    for rank, share in enumerate(shares):
        here = small.coordinates(rank)
        count = prod(len(groups[axis][i]) for axis, i in here.items())
        example = mesh.rank_at({axis: groups[axis][i][0] for axis, i in here.items()})
        told = ", ".join(f"{axis} {_range(groups[axis][i])}" for axis, i in here.items())
        kinds.append(Kin(
            example, count, told, share.count, share.memory, _traffic(share.events, mesh),
            clock.part(rank, "forward", "backward", "update"), clock.talking(rank), clock.idle(rank),
        ))  # fmt: skip
    return Forecast(mesh, figures, kinds, clock, _batch_of(asked.graph), first, shares[0].stages, groups)


def graphs_of(asked: Question, mesh: Mesh, rank: int) -> dict[str, Graph]:
    """What one rank runs, by name: "forward" and "backward"; of a pipeline "stage 1 forward" and so on, of its stages.

    Raises: SmeltError (S0641, S0642) where the steps do not fit the program or the mesh.
    """
    _check_axes(mesh, asked.marks)
    part = parted(asked.graph, mesh, rank, asked.marks, asked.ties)
    first = part if rank == 0 else parted(asked.graph, mesh, 0, asked.marks, asked.ties)
    pipe_axis = next((m.axis for m in asked.marks if isinstance(m, Pipeline)), "")
    place = mesh.coordinates(rank).get(pipe_axis, 0)
    share = next(share for at, share in _shares(asked, part, first, TYPICAL) if at == place)
    found: dict[str, Graph] = {}
    for number, pieces in share.pieces.items():
        before = f"stage {number} " if pipe_axis else ""
        found[f"{before}forward"] = pieces.forward
        if pieces.backward is not None:
            found[f"{before}backward"] = pieces.backward
    return found


# --- classes


def _check_axes(mesh: Mesh, marks: Sequence[Mark]) -> None:
    used = {axis for mark in marks if (axis := getattr(mark, "axis", ""))}
    idle = [axis for axis in mesh.names if axis not in used and mesh.extent(axis) > 1]
    if idle:
        raise SmeltError(
            f"nothing is shared along {idle[0]!r}", why=f"steps name {', '.join(sorted(used)) or 'no axis'}",
            fix="name the axis of a step, or leave it out of the mesh", code="S0642",
        )  # fmt: skip


def _alike(part: Parted, axis: str, extent: int, is_pipe: bool) -> list[list[int]]:
    """Places along an axis, by what ranks there have."""
    if is_pipe:
        return [[place] for place in range(extent)]
    lies = [*part.inputs.values(), *part.state.values(), *part.outputs]
    shards = {one[axis] for one in lies if axis in one}
    moves = (dist.SHARD, dist.ALL_GATHER, dist.REDUCE_SCATTER)
    shards |= {shard_of(node.args) for node in part.graph.walk() if node.op in moves and node.args[-1] == axis}
    found: dict[tuple[int, ...], list[int]] = {}
    for place in range(extent):
        found.setdefault(tuple(sorted(shard.local(place) for shard in shards)), []).append(place)
    return list(found.values())


def _range(places: Sequence[int]) -> str:
    return str(places[0]) if len(places) == 1 else f"{places[0]}-{places[-1]}"


# --- what a rank does


@dataclass(slots=True)
class Share:
    events: list[Event]
    memory: Memory
    count: int
    pieces: Mapping[int, Pieces]
    stages: Mapping[str, int] = field(default_factory=dict)


def _shares(asked: Question, part: Parted, first: Parted, figures: Figures) -> Iterator[tuple[int, Share]]:
    """A part's program; of a pipeline each rank's, by its place along that axis. first: rank 0's part."""
    trained, is_trained = asked.trained or (), asked.trained is not None
    mark = pipeline_of(asked.marks, part.mesh)
    kept = OPTIMIZERS[asked.optimizer] if is_trained else 0
    fixed = sum(map(nbytes, part.graph.inputs))
    if mark is None:
        state = _state_of([part.graph])
        graph, places, unseen = flat(part.graph)
        wanted = [False] * len(part.graph.inputs) + [is_trained and path in trained for _, path in places]
        pieces = _pieces(graph, wanted, unseen, localize)
        own = [path for path in state if path in trained and is_trained]
        count = sum(state[path][0] for path in own)
        events = of_step(pieces, figures.kernels, count)
        actions = [Action(0, 0, False), *([Action(0, 0, True)] if pieces.backward is not None else [])]
        yield 0, Share(events, _memory(actions, {0: pieces}, state, own, kept, fixed), count, {0: pieces})
        return
    like = None if part is first else staged(first.graph, mark, asked.marks, dict.fromkeys(trained, True))
    plan = staged(part.graph, mark, asked.marks, dict.fromkeys(trained, True), like)
    ranks = part.mesh.extent(mark.axis)
    orders = timeline(
        [s.work for s in plan.stages], ranks, mark.microbatches, mark.schedule, training=is_trained
    ).orders
    entered: list[dict[str, set[str]]] = [{} for _ in range(ranks)]
    all_pieces: dict[int, Pieces] = {}
    for stage in plan.stages:
        whole = stage.graph.clone()
        for path, axis in enter_late(whole):
            entered[stage.number % ranks].setdefault(axis, set()).add(path)
        graph, places, _ = flat(whole)
        active = [kind == "value" and plan.crossings[name].is_active for kind, name in stage.inputs]
        wanted = [is_trained and one for one in (*active, *(path in trained for _, path in places))]
        all_pieces[stage.number] = _pieces(graph, wanted, (), localize_stage)
    made_in = stages_of(plan)
    for rank in range(ranks):
        own_pieces = {number: one for number, one in all_pieces.items() if number % ranks == rank}
        state = _state_of([s.graph for s in plan.stages if s.number % ranks == rank] + [*plan.before.graphs])
        sizes = {path: size for path, (_, size) in state.items()}
        waits = entered[rank] if is_trained else {}
        shown = Staged(plan, mark.axis, rank, ranks, orders[rank], own_pieces, waits, sizes)
        own = [path for path in state if path in trained and is_trained]
        count = sum(state[path][0] for path in own)
        events = of_pipe(shown, figures.kernels, count)
        yield (
            rank,
            Share(events, _memory(orders[rank], own_pieces, state, own, kept, fixed), count, own_pieces, made_in),
        )


def _state_of(graphs: Sequence[Graph]) -> dict[str, tuple[int, int]]:
    """Elements and bytes of parameters and buffers that graphs use, by path."""
    found: dict[str, tuple[int, int]] = {}
    for graph in graphs:
        for node in graph.walk():
            if node.op in STATE_OPS and isinstance(node.result.type, TensorType):
                found[str(node.args[0])] = (node.result.type.numel, node.result.type.nbytes)
    return found


def _memory(
    actions: Sequence[Action], pieces: Mapping[int, Pieces], state: Mapping[str, tuple[int, int]], own: Sequence[str],
    kept: int, fixed: int,
) -> Memory:  # fmt: skip
    gradients, all_of = [state[path][1] for path in own], sum(size for _, size in state.values())
    return of_memory(actions, pieces, all_of, gradients, kept * sum(gradients), fixed)


def _pieces(
    graph: Graph, wanted: Sequence[bool], unseen: Collection[str], finish: Callable[[Graph], None]
) -> Pieces:  # fmt: skip
    """The graphs that `Trainable` would compile."""
    names = [value.name for value, is_wanted in zip(graph.inputs, wanted, strict=True) if is_wanted]
    if not names:
        graph = graph.clone()
        finish(graph)
        forward, _ = optimized_graph(graph, Options(), no_state)
        return Pieces(forward, None, 0, *memory_of(forward), 0)
    joint = joint_graph(graph, names, tells=True)
    finish(joint.graph)
    overlap(joint.graph, joint.graph.inputs[joint.given :])
    given = {value for value, is_wanted in zip(graph.inputs, wanted, strict=True) if is_wanted}
    found = halves(joint, watched=watched(graph, given.__contains__, unseen))
    forward, _ = optimized_graph(found.forward, Options(), no_state)
    backward, _ = optimized_graph(found.backward, Options(), no_state)
    (arena, made), (back_arena, back_made) = memory_of(forward), memory_of(backward)
    return Pieces(forward, backward, found.nbytes, arena + back_arena, made, back_made)


def _traffic(events: Sequence[Event], mesh: Mesh) -> dict[str, Traffic]:
    """What a rank sends, by axis and kind."""
    messages: dict[str, dict[str, int]] = {}
    sent: dict[str, dict[str, float]] = {}
    for event in events:
        if isinstance(event, Exchange) and mesh.extent(event.axis) > 1:
            kind, (_, count) = event.kind, hops_and_bytes(event.kind, mesh.extent(event.axis), event.nbytes)
        elif isinstance(event, Send):
            kind, count = "send", float(event.nbytes)
        else:
            continue
        of = messages.setdefault(event.axis, {})
        of[kind] = of.get(kind, 0) + 1
        by = sent.setdefault(event.axis, {})
        by[kind] = by.get(kind, 0.0) + count
    return {axis: Traffic(messages[axis], sent[axis]) for axis in messages}


def _batch_of(graph: Graph) -> int:
    sizes = [v.type.sizes[0] for v in graph.inputs if isinstance(v.type, TensorType) and v.type.sizes]
    return int(sizes[0]) if sizes else 1
