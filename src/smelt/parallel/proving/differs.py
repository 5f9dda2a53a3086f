"""Where ranks first compute something else than the model: the value, its line, and the step that is about it.

    whole graph    %0  %1  %2  ...        each rank's values of one name are put together by their placements,
    ranks          %0  %1  %2 <-- here    and compared in the order of the graph

Forward values first, operator by operator on the evaluator. Where they agree, gradients of parameters, from the loss
backward. Invariant: this runs after a difference has been found, on copies, with the numbers that `prove` began with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from smelt.diag import Span
from smelt.diag.records import record
from smelt.ir import STATE_OPS, Graph, Node, Value, is_under
from smelt.ops.evaluate import evaluate
from smelt.ops.ranks.collectives import whole_of
from smelt.ops.ranks.placements import Order, Partial, Placement, Rows, Shard
from smelt.parallel.dividing.marks import Batch, Divide, Mark, Pipeline, Stored, Sync
from smelt.parallel.dividing.parted import Parted
from smelt.parallel.dividing.syncs import values_of
from smelt.parallel.mesh import Mesh
from smelt.parallel.module import Whole
from smelt.parallel.pipelines.pipeline import stages_of
from smelt.parallel.pipelines.stages import Pipe, localize_stage
from smelt.parallel.proving.simulate import World

_ROUNDING = 10.0
"""Times the tolerance: what cancels out may have a larger relative error on its way than results may."""


@record
class First:
    """The first value that differs. what: in words, with an element. line: of the model. step: what is about it."""

    what: str
    line: Span | None
    step: Mark | None
    notes: tuple[str, ...] = ()


# --- forward


def first_value(
    whole: Whole, parts: Sequence[Parted], pipes: Sequence[Pipe | None], args: tuple[Any, ...],
    kwargs: Mapping[str, Any], marks: Sequence[Mark], ties: Mapping[str, str], seed: int, tolerance: float,
) -> First | None:  # fmt: skip
    """The first value of the whole graph that ranks have otherwise; None where all agree.

    pipes: of ranks that have stages. They are compared stage by stage where the parts that they are made of agree.
    """
    inputs = whole.signature.flatten(args, kwargs)
    torch.manual_seed(seed)
    wanted = _values(whole.graph, inputs, whole.lookup)

    def local_inputs(part: Parted) -> list[Any]:
        names = [value.name for value in part.graph.inputs]
        return [part.local(n, x) if isinstance(x, torch.Tensor) else x for n, x in zip(names, inputs, strict=True)]

    def part_program(rank: int) -> dict[str, torch.Tensor]:
        part = parts[rank]
        return _values(part.graph, local_inputs(part), lambda kind, path: part.local(path, whole.lookup(kind, path)))

    def staged_program(rank: int) -> dict[str, torch.Tensor]:
        part, pipe = parts[rank], pipes[rank]
        assert pipe is not None
        return _staged_values(pipe, part, local_inputs(part), whole)

    for program in (part_program, *((staged_program,) if all(pipes) else ())):
        torch.manual_seed(seed)
        found = _first(whole.graph, wanted, World(parts[0].mesh).run(program), parts[0], tolerance)
        if found is not None:
            value, node, told = found
            stage = _stage_of(pipes, parts[0], value.name) if program is staged_program else ""
            what = f"%{value.name}, which {node.op} gives{_of(node.scope)}{stage}: {told}"
            step = step_about(whole.graph, node, marks, ties)
            if stage:
                step = next((mark for mark in marks if isinstance(mark, Pipeline)), step)
            return First(what, node.span, step, _operands(node, parts[0]))
    return None


def _first(
    graph: Graph, wanted: Mapping[str, torch.Tensor], found: Sequence[Mapping[str, torch.Tensor]], first: Parted,
    tolerance: float,
) -> tuple[Value, Node, str] | None:  # fmt: skip
    """The first value that differs, its node, and how. first: rank 0's part."""
    mesh = first.mesh
    for node in graph.walk():
        for value in node.results:
            name = first.names_now.get(value.name, value.name)
            pieces = {rank: one[name] for rank, one in enumerate(found) if name in one}
            lies = first.placements.get(value.name, {})
            # Rows in an order of each rank's own cannot be compared; what they become can.
            if value.name not in wanted or len(pieces) < mesh.size or any(map(_is_sorted, lies.values())):
                continue
            told = _difference(wanted[value.name], pieces, lies, mesh, tolerance)
            if told is not None:
                return value, node, told
    return None


def _stage_of(pipes: Sequence[Pipe | None], first: Parted, name: str) -> str:
    """In which stage a value of the whole graph is made, in words."""
    if pipes[0] is None:
        return ""
    stages, name = stages_of(pipes[0].plan), first.names_now.get(name, name)
    name = pipes[0].plan.names.get(name, name)
    return f", in stage {stages[name]}" if name in stages else ""


def _staged_values(pipe: Pipe, part: Parted, inputs: Sequence[Any], whole: Whole) -> dict[str, torch.Tensor]:
    """The tensors of a run of all stages one after the other, those of microbatches put together."""
    plan = pipe.plan
    state = {
        str(node.args[0]): part.local(str(node.args[0]), whole.lookup(node.op, str(node.args[0])))
        for graph in (*plan.before.graphs, *(stage.graph for stage in plan.stages))
        for node in graph.walk()
        if node.op in STATE_OPS
    }
    graphs = [stage.graph.clone() for stage in plan.stages]
    for graph in graphs:
        localize_stage(graph)
    call = pipe.begin(inputs, state)
    seen: dict[str, list[torch.Tensor]] = {}
    for m in range(plan.microbatches):
        made: dict[str, torch.Tensor] = {}
        for stage, graph in zip(plan.stages, graphs, strict=True):
            own = [made[n] if kind == "value" else pipe.of_microbatch(call, kind, n, m) for kind, n in stage.inputs]
            made |= _values(graph, own, lambda kind, path: state[path])
        for name, tensor in made.items():
            seen.setdefault(name, []).append(tensor)
    now = {name: plan.names.get(name, name) for name in plan.placements}
    return {name: _in_time(seen[other], plan.placements[name]) for name, other in now.items() if other in seen}


def _in_time(tensors: Sequence[torch.Tensor], at: Placement | None) -> torch.Tensor:
    """A value of the whole batch."""
    if isinstance(at, Shard):
        return whole_of(tensors, at)
    return _total(tensors, at) if isinstance(at, Partial) else tensors[0]


def _is_sorted(at: Placement) -> bool:
    return isinstance(at, Rows | Order)


def _values(graph: Graph, inputs: Sequence[Any], lookup: Any) -> dict[str, torch.Tensor]:
    """The tensors of a run by name; of loops those of the last iteration."""
    found: dict[str, torch.Tensor] = {}

    def note(node: Node, results: Sequence[Any]) -> None:
        if node.op not in STATE_OPS:
            pairs = zip(node.results, results, strict=True)
            found.update((value.name, x.detach().clone()) for value, x in pairs if isinstance(x, torch.Tensor))

    def copied(kind: str, path: str) -> Any:
        found_there = lookup(kind, path)
        return found_there.detach().clone() if isinstance(found_there, torch.Tensor) else found_there

    with torch.no_grad():
        given = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in inputs]
        evaluate(graph, given, copied, observe=note, silent=True)
    return found


def _difference(
    want: torch.Tensor, pieces: Mapping[int, torch.Tensor], lies: Mapping[str, Placement], mesh: Mesh, tolerance: float
) -> str | None:  # fmt: skip
    """What differs, in words; None where nothing does."""
    try:
        whole = together(pieces, lies, mesh)
    except (RuntimeError, KeyError, IndexError) as error:
        return f"the shares do not fit together: {str(error).splitlines()[0]}"
    for rank, got in whole.items():
        if got.shape != want.shape:
            return f"of size {list(got.shape)} and not {list(want.shape)}"
        index = _where_other(got, want, tolerance)
        if index is not None:
            return f"element {list(index)} is {_number(got[index])} and not {_number(want[index])}" + _seen(
                rank, whole, want, tolerance, mesh
            )
    return None


def _seen(rank: int, whole: Mapping[int, torch.Tensor], want: torch.Tensor, tolerance: float, mesh: Mesh) -> str:
    """On which ranks, where some have it right."""
    wrong = [r for r, got in whole.items() if got.shape != want.shape or _where_other(got, want, tolerance) is not None]
    return f" on rank {rank} ({mesh.where(rank)})" if len(wrong) < len(whole) else ""


def together(
    pieces: Mapping[int, torch.Tensor], lies: Mapping[str, Placement], mesh: Mesh
) -> dict[int, torch.Tensor]:  # fmt: skip
    """What ranks have of a value, as wholes: by the first rank of those that have one between them.

    lies: in the order in which it was divided; the last one is undone first.
    """
    found = dict(pieces)
    for axis, at in reversed(list(lies.items())):
        if not isinstance(at, Shard | Partial):
            continue
        joined: dict[int, torch.Tensor] = {}
        for rank in found:
            group = mesh.group(rank, axis)
            if rank != group[0]:
                continue
            own = [found[other] for other in group]
            joined[rank] = whole_of(own, at) if isinstance(at, Shard) else _total(own, at)
        found = joined
    return found


def _total(pieces: Sequence[torch.Tensor], at: Partial) -> torch.Tensor:
    stacked = torch.stack(list(pieces))
    return stacked.amax(0) if at.op == "max" else stacked.sum(0)


def _where_other(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> tuple[int, ...] | None:
    """The element that differs most, if one does."""
    if not want.numel():
        return None
    if not want.is_floating_point():
        wrong = (got != want).to(torch.float32)
    else:
        finite = want[want.isfinite()]
        scale = max(finite.abs().max().item() if finite.numel() else 0.0, 1e-30)
        same = (got == want) | (got.isnan() & want.isnan())
        wrong = torch.where(same, 0.0, (got - want).abs().nan_to_num(nan=float("inf"))) / (
            scale * tolerance * _ROUNDING
        )
    if wrong.max().item() <= (0 if not want.is_floating_point() else 1):
        return None
    return tuple(int(i) for i in torch.unravel_index(wrong.argmax(), want.shape))


def _number(x: torch.Tensor) -> str:
    return f"{x.item():.9g}" if x.is_floating_point() else str(x.item())


def _of(scope: str) -> str:
    return f" in {scope}" if scope else ""


def _operands(node: Node, part: Parted) -> tuple[str, ...]:
    """How the operands of a node lie, which agree."""
    told = []
    for value in dict.fromkeys(node.operands()):
        lies = part.placements.get(value.name, {})
        name = str(value.node.args[0]) if value.node is not None and value.node.op in STATE_OPS else f"%{value.name}"
        told.append(f"{name} is {', '.join(f'{axis} {at}' for axis, at in lies.items()) or 'whole'}")
    return (f"what it is made of agrees: {'; '.join(told)}",) if told else ()


# --- backward


def first_gradient(
    whole: Graph, wrong: Sequence[str], marks: Sequence[Mark], ties: Mapping[str, str]
) -> tuple[str, First] | None:  # fmt: skip
    """Of the parameters whose gradients differ, the one that backward comes to first: its name, and what is known."""
    order: dict[str, Node] = {}
    for node in whole.walk():
        for value in node.operands():
            if value.node is not None and value.node.op == "param":
                path = str(value.node.args[0])
                order.pop(path, None)
                order[path] = node  # the last use comes last
    by_first = {ties.get(path, path): path for path in order}
    for path in reversed(order):
        name = next((n for n in wrong if by_first.get(ties.get(n, n)) == path), None)
        if name is not None:
            node = order[path]
            what = f"backward comes to it first: {node.op}{_of(node.scope)} uses it last"
            return name, First(what, node.span, step_about(whole, node, marks, ties))
    return None


# --- steps


def step_about(graph: Graph, node: Node, marks: Sequence[Mark], ties: Mapping[str, str]) -> Mark | None:
    """The step that is nearest to a node: one that brings its value together, that divides a tensor which it uses or
    what leads to it, the batch, or the stages."""
    for mark in marks:
        if isinstance(mark, Sync) and any(value in node.results for value in values_of(graph, mark.path, mark.which)):
            return mark
    seen: set[Value] = set()
    near = list(node.operands())
    while near:
        for mark in _about_state(near, marks, ties):
            return mark
        seen.update(near)
        near = [v for value in near if value.node is not None for v in value.node.operands() if v not in seen]
    return next((m for m in marks if isinstance(m, Batch)), next((m for m in marks if isinstance(m, Pipeline)), None))


def _about_state(values: Sequence[Value], marks: Sequence[Mark], ties: Mapping[str, str]) -> Iterator[Mark]:
    paths = {str(v.node.args[0]) for v in values if v.node is not None and v.node.op in STATE_OPS}
    firsts = {ties.get(path, path) for path in paths}
    for mark in marks:
        if isinstance(mark, Divide) and ties.get(mark.name, mark.name) in firsts:
            yield mark
    for mark in marks:
        if isinstance(mark, Stored) and any(is_under(path, mark.path) for path in paths):
            yield mark


def told(mark: Mark) -> str:
    """A step in words, with its line."""
    match mark:
        case Divide():
            text = f"the step that divides {mark.name} along dimension {mark.dim} and {mark.axis!r}"
        case Sync():
            text = f"the step that names {mark.op} behind {mark.path or 'the whole'} along {mark.axis!r}"
        case Batch():
            text = f"the step that divides the batch along {mark.axis!r}"
        case Stored():
            text = f"the step that stores {mark.path or 'all'} divided along {mark.axis!r}"
        case _:
            text = "the step that makes stages"
    return text + (f", at {mark.where}" if mark.where is not None else "")
