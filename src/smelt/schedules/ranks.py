"""Ready schedules for many ranks: `tensor_parallel`, `pipeline`, `data_parallel`. They read the graph, and no model's
name."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from smelt.diag import ScheduleError, SmeltError
from smelt.ir import Graph
from smelt.ops.ranks.placements import Shard
from smelt.parallel.dividing.marks import Batch, Pipeline
from smelt.parallel.dividing.parted import batches
from smelt.parallel.dividing.reach import Reach
from smelt.parallel.pipelines.order import timeline
from smelt.parallel.pipelines.pipeline import Pipelined
from smelt.parallel.proving.proof import text_of_bytes
from smelt.parallel.ready import tensor_plan
from smelt.schedules.applying import Taker
from smelt.schedules.report import Ready
from smelt.scheduling import Schedule
from smelt.scheduling.ranks.parallel_build import program_of, stages_of


def tensor_parallel(
    model: Schedule | torch.nn.Module, example_inputs: Any = None, *, ranks: int = 2, mesh_dim: str = "tp"
) -> Ready:
    """Divide the weights of products among the ranks of an axis, so that nothing is sent but sums.

    before:  y = linear(gelu(linear(x, w)), v)      after:  w has a part of its rows, v of its columns; y is a sum
    Attention is divided by heads, an MLP by its inner width, a vocabulary by its words, a convolution by channels:
    whatever the graph sums over again before anything needs the whole. ranks: how many there will be at least; heads
    that are fewer stay whole. `skipped` says which weights stay whole, and the line that needs them so.
    Raises: ScheduleError (S0622) without example inputs.
    """
    taker = Taker(model, example_inputs)
    plan = tensor_plan(program_of(taker.schedule._state), ranks)
    # Layers that are alike become one step: by what of the module is divided how.
    steps: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for reach in plan.reaches:
        taker.found["divided together"] += 1
        for path, at in reach.state.items():
            owner, _, name = path.rpartition(".")
            steps[(name, at.dim, at.blocks, _unit(reach, path))].append(owner)
    refused = len(taker.skipped)
    for (name, dim, blocks, unit), owners in steps.items():
        taker.step(
            "tensors", [(owner, ()) for owner in owners],
            lambda view, *_, n=name, d=dim, p=blocks, u=unit: view.shard(n, d, mesh_dim, blocks=p, unit=u),
        )  # fmt: skip
    taker.found["tensors"] = sum(map(len, steps.values()))
    if len(taker.skipped) == refused:
        taker.applied["divided together"] = taker.found["divided together"]
    for path, why in plan.left.items():
        taker.skipped.append(f"{path} stays whole: {why}")
    return taker.report


def _unit(reach: Reach, path: str) -> int:
    at = reach.state[path]
    return max(at.total // (at.blocks * reach.count), 1)


def pipeline(
    model: Schedule | torch.nn.Module, example_inputs: Any = None, *, stages: int = 2, schedule: str = "1f1b",
    microbatches: int | None = None, ranks: int | None = None, mesh_dim: str = "pp",
) -> Ready:  # fmt: skip
    """Make stages for the ranks of an axis: as equal in time as can be, and then in memory.

    before:  y = f(g(x))      after:  one rank computes g of a microbatch, the other one f of the one before
    schedule: as of the step `pipeline`. microbatches: by default as many as divide the batch evenly, at most two a
    stage; one where the program needs the whole batch at once (batch norm in training), with a note that says where.
    ranks: how many there will be, by default as many as stages; half as many if they are interleaved.
    `notes` has both, and the bubble.
    Raises: ScheduleError (S0622) without example inputs.
    """
    taker = Taker(model, example_inputs)
    taker.found["stages"] = stages
    state, before = taker.schedule._state, len(taker.schedule.log)
    graph = program_of(state)
    plan, refused = None, list[SmeltError]()
    for count in [microbatches] if microbatches is not None else _counts(graph, stages):
        try:
            plan = stages_of(state, graph, Pipeline(mesh_dim, stages, schedule, count))
            taker.schedule.pipeline(stages, mesh_dim, schedule=schedule, microbatches=count)
            break
        except SmeltError as error:
            plan = None
            refused.append(error)
    if plan is None or len(taker.schedule.log) == before:
        taker.skipped.append(f"stages: {_why(refused[-1]) if refused else 'the step changed nothing'}")
        return taker.report
    taker.applied["stages"] = stages
    taker.notes += _told_of(plan, ranks or (stages // 2 if schedule == "interleaved" else stages), schedule)
    if refused:
        taker.notes.append(f"{plan.microbatches} microbatch{'es' * (plan.microbatches > 1)}: {_why(refused[0])}")
    return taker.report


def _why(error: SmeltError) -> str:
    at = f" at {error.where}" if error.where is not None else ""
    return f"{error.what}{at}" + (f": {error.why}" if error.why else "")


def _counts(graph: Graph, stages: int) -> list[int]:
    """Numbers of microbatches that may do, the best first."""
    types = {v.name: v.type for v in graph.inputs}
    whole = next(iter(batches(Batch("time"), types, 1).values()))
    assert isinstance(whole, Shard)
    return [n for n in range(2 * stages, 0, -1) if whole.total % n == 0]


def _told_of(plan: Pipelined, ranks: int, schedule: str) -> list[str]:
    made = timeline([stage.work for stage in plan.stages], ranks, plan.microbatches, schedule)
    rows = []
    for stage in plan.stages:
        sent = sum(c.type.nbytes for c in plan.crossings.values() if c.source == stage.number)
        rows.append(
            f"stage {stage.number}{f' from {stage.begins}' if stage.begins else ''}: {stage.work:.0%} of the work, "
            f"{text_of_bytes(stage.nbytes)} in training, sends {text_of_bytes(sent)} a microbatch"
        )
    counted = f"{plan.microbatches} microbatch{'es' * (plan.microbatches > 1)}"
    return [*rows, f"bubble: of {counted}, {made.bubble:.0%} of the ranks' time is waiting"]


def data_parallel(model: Schedule | torch.nn.Module, example_inputs: Any = None, *, mesh_dim: str = "dp") -> Ready:
    """Divide the batch among the ranks of an axis.

    before:  loss = f(batch)      after:  each rank computes its share; gradients are summed over ranks
    """
    taker = Taker(model, example_inputs)
    taker.found["batch"] += 1
    try:
        taker.schedule.data_parallel(mesh_dim)
        taker.applied["batch"] += 1
    except ScheduleError as error:
        taker.skip("batch", "", error)
    return taker.report
