"""`build(mesh=...)`: a schedule's model on one rank; `verify(mesh=...)`: on all of them, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch.distributed.device_mesh import DeviceMesh

from smelt.diag import Options, ScheduleError
from smelt.ir import Graph
from smelt.ops.ranks.collectives import Communicator
from smelt.parallel.dividing.marks import Fork, Pipeline
from smelt.parallel.dividing.parted import Parted
from smelt.parallel.groups import Groups
from smelt.parallel.mesh import Mesh
from smelt.parallel.module import PartedForward, Wholes, divide_state, whole_program
from smelt.parallel.pipelines.pipeline import Pipelined, staged
from smelt.parallel.proving.proof import Optimizer, Proof, prove, sgd
from smelt.parallel.state import Layout, lay_out, stand_in
from smelt.scheduling.modules import copying
from smelt.scheduling.ranks.parallel_steps import marks_of
from smelt.scheduling.state import State

AnyMesh: TypeAlias = DeviceMesh | Mesh | Mapping[str, int] | str


def build_on(state: State, mesh: AnyMesh, rank: int | None = None) -> torch.nn.Module:
    """The module of one rank.

    mesh: torch's DeviceMesh with named axes, of which this process is a rank; or the axes' sizes, with the rank's
    number, for a module that runs in `World.run` only. Raises: ScheduleError (S0622) without example inputs, SmeltError
    (S0641, S0642) where the steps do not fit the program or the mesh.
    """
    with_: Communicator | None = None
    if isinstance(mesh, DeviceMesh):
        groups = Groups(mesh)
        with_, axes, rank = groups, groups.mesh, groups.rank
    else:
        axes = Mesh.of(mesh)
    return _on_rank(state, axes, rank or 0, with_)[0]


def verify_on(
    state: State, mesh: AnyMesh, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, steps: int = 3,
    optimizer: Optimizer | None = None,
) -> Proof:  # fmt: skip
    """All ranks against the model that the schedule builds on one. Raises: VerifyError (S0621), and as `build_on`."""
    axes = Mesh.of(mesh)
    if not args and not kwargs:
        args = _examples(state)
    wholes: Wholes = {}
    return prove(
        state.build, lambda rank: _on_rank(state, axes, rank, None, args, kwargs, wholes, proves=True), axes, args,
        kwargs, steps=steps, optimizer=optimizer or sgd,
    )  # fmt: skip


def check_rank(mesh: Mesh, rank: int) -> None:
    """Raises: ScheduleError (S0642) where a mesh has no such rank."""
    if not 0 <= rank < mesh.size:
        raise ScheduleError(
            f"there is no rank {rank}", why=f"the mesh {mesh} has {mesh.size}", fix="give a rank below that",
            code="S0642",
        )  # fmt: skip


def _on_rank(
    state: State, mesh: Mesh, rank: int, with_: Communicator | None, args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None, wholes: Wholes | None = None, *, proves: bool = False,
) -> tuple[torch.nn.Module, Parted]:  # fmt: skip
    check_rank(mesh, rank)
    # Ranks can be compared with one process on its random numbers only.
    marks = [mark for mark in marks_of(state) if not (proves and isinstance(mark, Fork))]
    module, _ = copying.shadow(state.tree)
    ties = {name: group[0] for group in copying.ties(module) for name in group}
    forward = PartedForward(module, state.build, mesh, rank, marks, ties, with_, Options.make(), wholes)
    part = forward.prepare(_examples(state) if args is None else args, kwargs or {})
    stages = next((mark.axis for mark in marks if isinstance(mark, Pipeline)), None)
    layout = Layout.of(module, part, with_, stages) if isinstance(with_, Groups) else None
    divide_state(module, part, forward.owned(part))
    if layout is not None:
        lay_out(module, layout)
    module.__dict__["forward"] = forward
    if any(forward.trained.values()):
        stand_in(module)
    return module, part


def program_of(state: State) -> Graph:
    """The functional graph of the whole model on the schedule's examples. Raises: ScheduleError (S0622)."""
    training = [module.training for module in state.tree.modules()]
    return whole_program(state.build, _examples(state), {}, training).graph


def stages_of(state: State, graph: Graph, mark: Pipeline) -> Pipelined:
    """The stages that a step would make of the whole model, divided along no other axis. graph: of `program_of`.

    Raises: SmeltError (S0641) where there are none.
    """
    trained = {name: p.requires_grad for name, p in state.tree.named_parameters(remove_duplicate=False)}
    return staged(graph, mark, [*marks_of(state), mark], trained)


def _examples(state: State) -> tuple[Any, ...]:
    if state.examples is None:
        raise ScheduleError(
            "the program to be divided is not known", why="the schedule has no example inputs",
            fix="smelt.schedule(model, example_inputs=(x,)): the arguments of all ranks together", code="S0622",
        )  # fmt: skip
    return tuple(state.examples)
