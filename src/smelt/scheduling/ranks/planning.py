"""What a schedule's step would take on a mesh that is not here: the model is captured without data, and nothing runs.

Invariant: neither the schedule nor its model changes, and no memory is taken for tensors of the model's size.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from smelt.analysis.devices import on_cpu
from smelt.diag import ScheduleError
from smelt.ir import Graph
from smelt.parallel.mesh import Mesh
from smelt.parallel.module import mapped, tensors_in
from smelt.parallel.proving.figures import TYPICAL, Figures
from smelt.parallel.proving.forecast import OPTIMIZERS, Forecast, Question, forecast, graphs_of
from smelt.scheduling.modules import copying
from smelt.scheduling.ranks.parallel_build import check_rank, program_of
from smelt.scheduling.ranks.parallel_steps import marks_of
from smelt.scheduling.state import State


def plan_on(
    state: State, mesh: Mapping[str, int] | Mesh | str, figures: Figures = TYPICAL, *, optimizer: str = "adamw",
    training: bool = True,
) -> Forecast:  # fmt: skip
    """Predict a step of all ranks. optimizer: "adamw", "momentum", "sgd" or "none".

    Raises: ScheduleError (S0622) without example inputs, SmeltError (S0641, S0642) where steps do not fit.
    """
    if optimizer not in OPTIMIZERS:
        raise ScheduleError(f"{optimizer!r} is no optimizer", why=f"there are {', '.join(OPTIMIZERS)}", code="S0646")
    return forecast(_question(state, optimizer, training=training), Mesh.of(mesh), figures)


def graphs_on(state: State, mesh: Mapping[str, int] | Mesh | str, rank: int) -> dict[str, Graph]:
    """What one rank of a mesh runs in training, by name. Raises: as `plan_on`."""
    axes = Mesh.of(mesh)
    check_rank(axes, rank)
    return graphs_of(_question(state, "sgd", training=True), axes, rank)


def _question(state: State, optimizer: str, *, training: bool) -> Question:
    graph = _program(state)
    trained = {name for name, p in state.tree.named_parameters(remove_duplicate=False) if p.requires_grad}
    ties = {name: group[0] for group in copying.ties(state.tree) for name in group}
    return Question(graph, marks_of(state), ties, trained if training and trained else None, optimizer)


def _program(state: State) -> Graph:
    """The model's graph, captured without data where torch can."""
    try:
        return on_cpu(program_of(without_data(state)))
    except Exception:
        if any(tensor.device.type == "meta" for tensor in (*copying.tensors(state.tree), *tensors_in(state.examples))):
            raise
        # What it does depends on data, or an operator of torch refuses what has none.
        return program_of(state)


def runs_without_data(model: torch.nn.Module, args: tuple[Any, ...]) -> bool:
    """Whether a model can be captured on the meta device."""
    try:
        program_of(without_data(State(model, args)))
    except Exception:
        return False
    return True


def without_data(state: State) -> State:
    """The same steps on a model and inputs of torch's meta device."""
    examples = None if state.examples is None else mapped(tuple(state.examples), _on_meta)
    return State(meta_copy(state.tree), examples, steps=state.steps)


def meta_copy(module: torch.nn.Module) -> torch.nn.Module:
    """A copy whose tensors have sizes and types alone, ties kept."""
    memo: dict[int, Any] = {}
    for tensor in copying.tensors(module):
        memo[id(tensor)] = _on_meta(tensor)
    return copy.deepcopy(module, memo)


def _on_meta(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    made = value.detach().to("meta")
    return torch.nn.Parameter(made, value.requires_grad) if isinstance(value, torch.nn.Parameter) else made


def grown(args: tuple[Any, ...], batch: int, *, has_data: bool = False) -> tuple[Any, ...]:
    """Arguments of another batch: all whose first dimension is as long as the first one's; on the meta device, or
    repeated. Raises: ScheduleError (S0641) where there is no batch.
    """
    sizes = [x.shape[0] for x in tensors_in(args) if x.dim()]
    if not sizes:
        raise ScheduleError("there is no batch to grow", why="no argument is a tensor with dimensions", code="S0641")

    def grow(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.dim() or x.shape[0] != sizes[0]:
            return x if has_data else _on_meta(x)
        if has_data:
            return torch.cat([x] * -(-batch // sizes[0]))[:batch]
        return torch.empty((batch, *x.shape[1:]), dtype=x.dtype, device="meta")

    return tuple(mapped(arg, grow) for arg in args)
