"""Ready schedules for many ranks: `tensor_parallel`, `data_parallel`. They read the graph, and no model's name."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from smelt.diag import ScheduleError
from smelt.parallel.reach import Reach
from smelt.parallel.ready import tensor_plan
from smelt.schedules.applying import Taker
from smelt.schedules.report import Ready
from smelt.scheduling import Schedule
from smelt.scheduling.parallel_build import program_of


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
