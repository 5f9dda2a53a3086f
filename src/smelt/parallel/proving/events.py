"""What a rank does in one step of training, as a list of events: work, collectives, messages.

    forward      work 1.2 ms, all_reduce of 524 kB along "tp", work 0.9 ms, ...
    backward     the same of the backward graph, in which the collectives of gradients stand
    update       work

Events come from the graphs that run, or would run: of a rank of a pipeline stage by stage, in its order. A loop's body
counts once. Invariant: ranks that have one program have events that fit: each collective and message finds its others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from smelt.analysis.aliases import alias_analysis, is_external
from smelt.analysis.liveness import nbytes, used_by
from smelt.diag.records import record
from smelt.ir import Arg, Graph, Node, Value, values_in
from smelt.ops.ranks import collectives as dist
from smelt.ops.ranks.placements import Shard
from smelt.parallel.pipelines.order import Action
from smelt.parallel.pipelines.pipeline import Pipelined
from smelt.parallel.proving.figures import Kernels, is_inside

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


@record
class Work:
    """Computation. phase: forward, backward or update. microbatch: of a pipeline."""

    seconds: float
    phase: str
    microbatch: int = 0


@record
class Exchange:
    """A collective along an axis. nbytes: its payload, as of `figures.hops_and_bytes`. is_begun: the rank goes on, up
    to the `Finish` of the same number.
    """

    kind: str
    axis: str
    nbytes: int
    is_begun: bool = False
    number: int = 0


@record
class Finish:
    """A collective that has begun is waited for."""

    axis: str
    number: int


@record
class Send:
    """A message to a rank of an axis, by its place there."""

    axis: str
    target: int
    key: str
    nbytes: int


@record
class Recv:
    """A message that is waited for."""

    axis: str
    source: int
    key: str
    nbytes: int


Event: TypeAlias = Work | Exchange | Finish | Send | Recv


@record
class Pieces:
    """The two graphs of a program that is trained; no backward where nothing is.

    saved: bytes kept from forward to backward. arenas: what both plans hold all the time. forward_made, backward_made:
    what a run of either makes besides.
    """

    forward: Graph
    backward: Graph | None
    saved: int
    arenas: int
    forward_made: int
    backward_made: int


# --- of a graph


def of_graph(graph: Graph, kernels: Kernels, phase: str) -> list[Event]:
    """The events of a run of a graph, work between collectives added up."""
    found: list[Event] = []
    seconds = 0.0
    for node in graph.walk():
        if node.op in dist.COLLECTIVES or node.op == dist.WAIT:
            if seconds:
                found.append(Work(seconds, phase))
            seconds = 0.0
            found.append(finish_of(node) if node.op == dist.WAIT else exchange_of(node))
        else:
            seconds += kernels.seconds(node)
    if seconds:
        found.append(Work(seconds, phase))
    return found


def exchange_of(node: Node) -> Exchange:
    """A collective that is a node of a graph."""
    axis = node.args[-1]
    assert isinstance(axis, str)
    if node.op == dist.START:
        number = node.args[2]
        assert isinstance(number, int)
        return Exchange("all_reduce", axis, _nbytes(node.args[0]), is_begun=True, number=number)
    whole = node.result if node.op == dist.ALL_GATHER else node.args[0]
    return Exchange(node.op.removeprefix("dist."), axis, _nbytes(whole))


def finish_of(node: Node) -> Finish:
    """The end of a collective that has begun."""
    number, axis = node.args[-2:]
    assert isinstance(number, int) and isinstance(axis, str)
    return Finish(axis, number)


def _nbytes(arg: Arg) -> int:
    return nbytes(arg) if isinstance(arg, Value) else 0


def memory_of(graph: Graph) -> tuple[int, int]:
    """Bytes of an arena for a graph, the most of its values that are alive at once, and bytes of its outputs.

    What stays in registers counts nothing, and neither does what others own.
    """
    aliases = alias_analysis(graph)
    outputs = {root for arg in graph.outputs for v in values_in(arg) for root in aliases.of(v)}
    nodes = list(graph.body)
    ends: dict[Value, int] = {}
    for i, node in enumerate(nodes):
        for value in (*used_by(node), *node.results):
            ends.update(dict.fromkeys(aliases.of(value), i))
    freed: dict[int, int] = {}
    now = most = 0
    for i, node in enumerate(nodes):
        for result in node.results:
            if result in aliases.of(result) and not is_external(result) and result not in outputs:
                count = 0 if is_inside(result) else _nbytes(result)
                now += count
                freed[ends[result]] = freed.get(ends[result], 0) + count
        most = max(most, now)
        now -= freed.get(i, 0)
    return most, sum(_nbytes(root) for root in outputs if not is_external(root))


# --- of a whole step


def of_step(pieces: Pieces, kernels: Kernels, parameters: int) -> list[Event]:
    """Forward, backward, and the update of so many parameters."""
    found = of_graph(pieces.forward, kernels, FORWARD)
    if pieces.backward is not None:
        found += of_graph(pieces.backward, kernels, BACKWARD)
        found.append(Work(parameters * kernels.update_ns * 1e-9, UPDATE))
    return found


@record
class Staged:
    """A rank of a pipeline: its place along the axis, what it runs of each stage, in which order.

    entered: the parameters whose gradients are added up along other axes once a step, by axis. sizes: bytes of the
    rank's parameters, by path.
    """

    plan: Pipelined
    axis: str
    rank: int
    ranks: int
    order: Sequence[Action]
    pieces: Mapping[int, Pieces]
    entered: Mapping[str, Collection[str]]
    sizes: Mapping[str, int]

    @property
    def results(self) -> Iterator[int]:
        """Bytes of each of the program's results, which all ranks get."""
        for number, at in enumerate(self.plan.outputs):
            stage = next(stage for stage in self.plan.stages if number in stage.results)
            one = _nbytes(stage.graph.outputs[stage.results[number]])
            yield one * self.plan.microbatches if isinstance(at, Shard) else one


def of_pipe(staged: Staged, kernels: Kernels, parameters: int) -> list[Event]:
    """A step of a rank of a pipeline: `parallel.pipelines.stages.Pipe` does the same."""
    found: list[Event] = []
    come: set[str] = set()
    runs = _Runs(staged.pieces, kernels)
    for action in staged.order:
        if action.is_backward:
            found += _backward(staged, action, runs)
        else:
            found += _forward(staged, action, runs, come)
    found += _ties(staged)
    if staged.ranks > 1:
        found += [Exchange("broadcast", staged.axis, count) for count in staged.results]
    if any(action.is_backward for action in staged.order):
        found.append(Work(parameters * kernels.update_ns * 1e-9, UPDATE))
    return found


class _Runs:
    """The events of a run of each stage, counted once for all microbatches."""

    def __init__(self, pieces: Mapping[int, Pieces], kernels: Kernels) -> None:
        self.pieces, self.kernels = pieces, kernels
        self._known: dict[tuple[int, bool], list[Event]] = {}

    def of(self, action: Action) -> Iterator[Event]:
        """What the action does; nothing where a stage has nothing to go back for."""
        key = action.stage, action.is_backward
        if key not in self._known:
            piece, phase = self.pieces[action.stage], BACKWARD if action.is_backward else FORWARD
            graph = piece.backward if action.is_backward else piece.forward
            self._known[key] = [] if graph is None else of_graph(graph, self.kernels, phase)
        for event in self._known[key]:
            yield replace(event, microbatch=action.microbatch) if isinstance(event, Work) else event


def _forward(staged: Staged, action: Action, runs: _Runs, come: set[str]) -> Iterator[Event]:
    stage, m = staged.plan.stages[action.stage], action.microbatch
    for kind, name in stage.inputs:
        key = f"{name}/{m}"
        source = staged.plan.crossings[name].source % staged.ranks if kind == "value" else staged.rank
        if source != staged.rank and key not in come:
            come.add(key)
            yield Recv(staged.axis, source, key, staged.plan.crossings[name].type.nbytes)
    yield from runs.of(action)
    for name in stage.outputs:
        crossing = staged.plan.crossings[name]
        for target in sorted({t % staged.ranks for t in crossing.targets} - {staged.rank}):
            yield Send(staged.axis, target, f"{name}/{m}", crossing.type.nbytes)


def _backward(staged: Staged, action: Action, runs: _Runs) -> Iterator[Event]:
    stage, m = staged.plan.stages[action.stage], action.microbatch
    for name in stage.outputs:
        crossing = staged.plan.crossings[name]
        for target in crossing.targets if crossing.is_active else ():
            if target % staged.ranks != staged.rank:
                yield Recv(staged.axis, target % staged.ranks, f"{name}/{m}/{target}", crossing.type.nbytes)
    yield from runs.of(action)
    for kind, name in stage.inputs:
        found = staged.plan.crossings.get(name) if kind == "value" else None
        if found is not None and found.is_active and found.source % staged.ranks != staged.rank:
            yield Send(staged.axis, found.source % staged.ranks, f"{name}/{m}/{stage.number}", found.type.nbytes)


def _ties(staged: Staged) -> Iterator[Event]:
    """Gradients that are added up once a step."""
    for axis in sorted(staged.entered):
        yield Exchange("all_reduce", axis, sum(staged.sizes.get(path, 0) for path in staged.entered[axis]))
    sharing = {s % staged.ranks for stages in staged.plan.ties.values() for s in stages}
    if staged.plan.may_skip and staged.rank in sharing:
        others = sorted(sharing - {staged.rank})
        yield from (Send(staged.axis, other, f"ties of {staged.rank}", len(staged.plan.ties)) for other in others)
        yield from (Recv(staged.axis, other, f"ties of {other}", len(staged.plan.ties)) for other in others)
    for path, stages in staged.plan.ties.items():
        ranks = sorted({s % staged.ranks for s in stages})
        if staged.rank not in ranks or len(ranks) == 1:
            continue
        others, count = [r for r in ranks if r != staged.rank], staged.sizes.get(path, 0)
        for other in others:
            yield Send(staged.axis, other, f"tie {path}/{staged.rank}", count)
        for other in others:
            yield Recv(staged.axis, other, f"tie {path}/{other}", count)


# --- memory


@record
class Memory:
    """Bytes on a rank. saved: the most that is kept at once from forward to backward. peak: the most of all at once."""

    parameters: int
    gradients: int
    optimizer: int
    saved: int
    peak: int


def of_memory(
    actions: Sequence[Action], pieces: Mapping[int, Pieces], parameters: int, gradients: Sequence[int], optimizer: int,
    fixed: int,
) -> Memory:  # fmt: skip
    """The most that is alive in a step. actions: of a rank, in order. gradients: of each parameter. fixed: inputs and
    buffers.

    Gradients of the step before are gone when it begins (`zero_grad`). Those of a pipeline's microbatches are added up,
    one parameter after the other; an update takes two tensors of one parameter's size besides.
    """
    kept = most_kept = most = 0
    total, largest = sum(gradients), max(gradients, default=0)
    sums = False
    for action in actions:
        piece = pieces[action.stage]
        if action.is_backward:
            most = max(most, kept + piece.backward_made + sums * (total + largest))
            kept -= piece.saved
            sums = True
        else:
            most = max(most, kept + piece.forward_made + sums * total)
            kept += piece.saved if piece.backward is not None else 0
            most_kept = max(most_kept, kept)
    most = max(most, total + 2 * largest) + sum(piece.arenas for piece in pieces.values())
    return Memory(parameters, total, optimizer, most_kept, parameters + optimizer + fixed + most)
