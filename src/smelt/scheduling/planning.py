"""What a schedule's step would take on a mesh that is not here: the model is captured without data, and nothing runs.

Invariant: neither the schedule nor its model changes, and no memory is taken for tensors of the model's size.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from smelt.diag import ScheduleError, SmeltError
from smelt.parallel.figures import TYPICAL, Figures
from smelt.parallel.forecast import OPTIMIZERS, Forecast, Question, forecast, on_cpu
from smelt.parallel.mesh import Mesh
from smelt.parallel.module import mapped, tensors_in
from smelt.scheduling import copying
from smelt.scheduling.parallel_build import program_of
from smelt.scheduling.parallel_steps import marks_of
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
    bare = without_data(state)
    try:
        graph = on_cpu(program_of(bare))
    except SmeltError:
        graph = program_of(state)  # what it does depends on data
    trained = {name for name, p in state.tree.named_parameters(remove_duplicate=False) if p.requires_grad}
    ties = {name: group[0] for group in copying.ties(state.tree) for name in group}
    asked = Question(graph, marks_of(state), ties, trained if training and trained else None, optimizer)
    return forecast(asked, Mesh.of(mesh), figures)


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


def grown(args: tuple[Any, ...], batch: int) -> tuple[Any, ...]:
    """Arguments of another batch, on the meta device: all whose first dimension is as long as the first one's.

    Raises: ScheduleError (S0641) where there is no batch.
    """
    sizes = [x.shape[0] for x in tensors_in(args) if x.dim()]
    if not sizes:
        raise ScheduleError("there is no batch to grow", why="no argument is a tensor with dimensions", code="S0641")

    def grow(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.dim() or x.shape[0] != sizes[0]:
            return _on_meta(x)
        return torch.empty((batch, *x.shape[1:]), dtype=x.dtype, device="meta")

    return tuple(mapped(arg, grow) for arg in args)
