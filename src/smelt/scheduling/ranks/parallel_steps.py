"""Steps on many ranks: which tensors are divided along which axis of a mesh, and where they are brought together.

Invariant: these steps change nothing in the model's tree; `build(mesh=...)` reads them from the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch

from smelt.diag import ScheduleError
from smelt.parallel.dividing.marks import Batch, Cut, Divide, Fork, Mark, Pipeline, Stored, Sync
from smelt.parallel.dividing.syncs import SYNCS
from smelt.scheduling.draft import Draft, Selected
from smelt.scheduling.finding.target import join
from smelt.scheduling.modules.module_steps import OnModule
from smelt.scheduling.paths import paths_of
from smelt.scheduling.primitives import Steps
from smelt.scheduling.state import State
from smelt.scheduling.steps import Step


class OnRanks(OnModule):
    """A step that is a mark for `build(mesh=...)`."""

    on_graphs: ClassVar[bool] = True

    def axis(self, arguments: Mapping[str, Any]) -> str:
        """The axis that is meant. Raises: ScheduleError (S0607)."""
        axis = arguments.get("mesh_dim")
        if not isinstance(axis, str) or not axis.isidentifier():
            raise ScheduleError(
                f"{axis!r} is no axis of a mesh", why="axes have names", fix='mesh_dim="tp"', code="S0607"
            )
        return axis

    def free_axis(self, draft: Draft, arguments: Mapping[str, Any]) -> str:
        """The axis that is meant, along which no other step has stages, or that no other step divides along.

        Raises: ScheduleError (S0607, S0641).
        """
        axis, has_stages = self.axis(arguments), self.name == "pipeline"
        for other in marks_of(draft.state_before):
            if isinstance(other, Pipeline) and (has_stages or other.axis == axis):
                raise ScheduleError(
                    "the model has stages already" if has_stages else f"the ranks of {axis!r} have stages",
                    why=f"{other.stages} along {other.axis!r}, at {other.where}"
                    + ("" if has_stages else ": each runs other layers, so they have nothing in common to divide"),
                    fix="undo that step with s.undo()" if has_stages else "use another axis", code="S0641",
                )  # fmt: skip
            if has_stages and not isinstance(other, Cut) and getattr(other, "axis", None) == axis:
                raise ScheduleError(
                    f"the ranks of {axis!r} cannot have stages", why=f"a step divides along it, at {other.where}",
                    fix="use another axis", code="S0641",
                )  # fmt: skip
        return axis


class ShardTensor(OnRanks):
    """Divide a parameter or buffer among the ranks of an axis."""

    name = "shard"

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        module = self.module(draft, at)
        axis, tensor, dim = self.free_axis(draft, arguments), arguments.get("tensor"), arguments.get("axis")
        blocks, unit = arguments.get("blocks", 1), arguments.get("unit", 1)
        found = _tensor_of(module, at.path, tensor)
        if type(dim) is not int or not -found.dim() <= dim < found.dim():
            raise ScheduleError(
                f"{join(at.path, str(tensor))} has no dimension {dim!r}", why=f"its sizes are {list(found.shape)}",
                fix=f"axis= a number from 0 to {found.dim() - 1}", code="S0641",
            )  # fmt: skip
        for value, name in ((blocks, "blocks"), (unit, "unit")):
            if type(value) is not int or value < 1:
                raise ScheduleError(
                    f"{name}={value!r} does not divide anything", why="it is a count", fix=f"{name}=1", code="S0641"
                )
        if found.shape[dim] % (blocks * unit):
            raise ScheduleError(
                f"{join(at.path, str(tensor))} is not {blocks} blocks of units of {unit} along dimension {dim}",
                why=f"it has {found.shape[dim]} elements there", fix="correct blocks or unit", code="S0641",
            )  # fmt: skip
        for other in marks_of(draft.state_before):
            if isinstance(other, Divide) and other.axis == axis and _is_same(draft, other.name, found):
                raise ScheduleError(
                    f"{join(at.path, str(tensor))} is divided along {axis!r} already",
                    why=f"as {other.name}, dimension {other.dim}, at {other.where}",
                    fix="undo that step with s.undo(), or leave this one out", code="S0641",
                )  # fmt: skip
        draft.note(at.path, f"{tensor} divided along {axis}: dimension {dim % found.dim()}")


class SyncValue(OnRanks):
    """Bring what a module gives or is given into a placement."""

    name = "sync"

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        self.module(draft, at)
        axis, op, which = self.free_axis(draft, arguments), arguments.get("op"), arguments.get("which", "output")
        if op not in SYNCS:
            raise ScheduleError(
                f"{op!r} is no collective", why=f"there are {', '.join(SYNCS)}", fix='op="all_reduce"', code="S0641"
            )
        if which not in ("input", "output"):
            raise ScheduleError(f"a module has no {which!r}", fix="which='input' or which='output'", code="S0641")
        draft.note(at.path, f"{op} of its {which} along {axis}")


class DataParallel(OnRanks):
    """Divide the batch."""

    name = "data_parallel"

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        self.module(draft, at)
        axis = self.free_axis(draft, arguments)
        twice = next((m for m in marks_of(draft.state_before) if isinstance(m, Batch) and m.axis == axis), None)
        if twice is not None:
            raise ScheduleError(
                f"the batch is divided along {axis!r} already", why=f"at {twice.where}",
                fix="leave one of the steps out", code="S0641",
            )  # fmt: skip
        if at.path:
            raise ScheduleError(
                f"{at.path} has no batch of its own", why="the inputs of the whole model are divided",
                fix=f"s.data_parallel(mesh_dim={axis!r})", code="S0641",
            )  # fmt: skip
        draft.note(at.path, f"the batch divided along {axis}")


class ShardState(OnRanks):
    """Store parameters, and with them the optimizer's state, divided; use them whole."""

    name = "shard_state"

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        self.module(draft, at)
        draft.note(at.path, f"parameters stored divided along {self.free_axis(draft, arguments)}")


class ForkRandom(OnRanks):
    """Let ranks draw other random numbers each."""

    name = "own_rng"

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        self.module(draft, at)
        draft.note(at.path, f"other random numbers on each rank of {self.free_axis(draft, arguments)}")


class CutStage(OnModule):
    """End a stage of a pipeline behind a module."""

    name = "cut"
    on_graphs: ClassVar[bool] = True

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        self.module(draft, at)
        if not at.path:
            raise ScheduleError(
                "the last stage ends behind the whole model by itself", why="nothing would be in the next stage",
                fix='select a module inside: s["layers.0"]', code="S0641",
            )  # fmt: skip
        draft.note(at.path, "a stage ends here")


class PipelineStages(OnRanks):
    """Lay stages along an axis."""

    name = "pipeline"

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        self.module(draft, at)
        axis = self.free_axis(draft, arguments)
        for name in ("stages", "microbatches"):
            value = arguments.get(name)
            if type(value) is not int or value < 1:
                raise ScheduleError(f"{name}={value!r} is no count", why="it is a positive integer", code="S0641")
        kinds = ("1f1b", "gpipe", "interleaved")
        if arguments.get("schedule") not in kinds:
            raise ScheduleError(
                f"{arguments.get('schedule')!r} is no schedule of a pipeline", why=f"there are {', '.join(kinds)}",
                code="S0641",
            )  # fmt: skip
        draft.note(at.path, f"{arguments['stages']} stages along {axis}")


class ParallelSteps(Steps):
    """The typed methods of this module's primitives."""

    def shard(self, tensor: str, axis: int, mesh_dim: str, *, blocks: int = 1, unit: int = 1) -> Self:
        """Divide a parameter or buffer of this module along one of its dimensions among the ranks of a mesh's axis.

        tensor: its name in the module, "weight". axis: its dimension. unit: elements that stay together, a head's.
            blocks: into how many equal blocks the dimension falls, each of which is divided: 3 for a weight that holds
            those of queries, keys and values. Ranks get as many units as `torch.chunk` gives them; the last may have
            fewer. A parameter with several names is divided under all of them.
        What follows from it (the products' other dimensions, sums over ranks, gradients) is derived; `s.verify(mesh=)`
        proves it.
        Raises: ScheduleError (S0641) for a tensor or dimension that there is not, and one that is divided already.
        """
        given = {"tensor": tensor, "axis": axis, "mesh_dim": mesh_dim}
        more = {name: value for name, value in (("blocks", blocks), ("unit", unit)) if value != 1}
        return self.take("shard", {**given, **more})

    def sync(self, op: str, mesh_dim: str, *, dim: int | None = None, which: str = "output") -> Self:
        """Bring what this module gives into a placement, by a collective that is checked when the module is built.

        op: "all_reduce" (a sum over ranks becomes whole), "reduce_scatter" (it becomes divided along `dim`),
            "all_gather" (what is divided becomes whole), "shard" (what is whole becomes divided along `dim`: nothing is
            sent), "all_to_all" (divided along another dimension). which: "output" or "input".
        Collectives that nobody names are derived all the same. Raises: ScheduleError (S0641).
        """
        more = {name: value for name, value in (("dim", dim), ("which", which)) if value not in (None, "output")}
        return self.take("sync", {"op": op, "mesh_dim": mesh_dim, **more})

    def data_parallel(self, mesh_dim: str, *, inputs: Sequence[str] = ()) -> Self:
        """Divide the batch among the ranks of an axis: each gets its share of the inputs' first dimension.

        inputs: which, by the names of parameters of `forward`; by default all as long as the first. Means over the
        batch are those over all ranks' batches. Raises: ScheduleError (S0641).
        """
        return self.take("data_parallel", {"mesh_dim": mesh_dim, **({"inputs": list(inputs)} if inputs else {})})

    def shard_state(self, mesh_dim: str) -> Self:
        """Store the parameters of this module, and so their gradients and the optimizer's state, divided along an axis.

        They are gathered where they are used, and their gradients arrive as blocks (ZeRO). Raises: ScheduleError.
        """
        return self.take("shard_state", {"mesh_dim": mesh_dim})

    def own_rng(self, mesh_dim: str) -> Self:
        """Let each rank of an axis draw random numbers of its own in this module, where what it computes is divided.

        Without this step, ranks use their shares of the numbers that one process draws: each draws all of them. All
        other numbers stay the same on all ranks. A proof (`verify`) runs with the numbers of one process.
        Raises: ScheduleError; `build` raises SmeltError (S0641) where no dropout of the module is divided.
        """
        return self.take("own_rng", {"mesh_dim": mesh_dim})

    def cut(self) -> Self:
        """End a stage of a pipeline behind this module. Raises: ScheduleError (S0641)."""
        return self.take("cut", {})

    def pipeline(
        self, stages: int, mesh_dim: str = "pp", *, schedule: str = "1f1b", microbatches: int | None = None
    ) -> Self:
        """The model as stages along an axis; by default as equal in work as can be.

        schedule: "1f1b", "gpipe" or "interleaved". microbatches: into how many the batch falls, by default as many as
        stages. Raises: ScheduleError (S0641).
        """
        count = stages if microbatches is None else microbatches
        return self.take(
            "pipeline", {"stages": stages, "mesh_dim": mesh_dim, "schedule": schedule, "microbatches": count}
        )


def _tensor_of(module: torch.nn.Module, path: str, name: Any) -> torch.Tensor:
    found = module._parameters.get(name) if isinstance(name, str) else None
    if found is None and isinstance(name, str):
        found = module._buffers.get(name)
    if found is None:
        has = [n for table in (module._parameters, module._buffers) for n, t in table.items() if t is not None]
        raise ScheduleError(
            f"{path or 'the whole'} ({type(module).__name__}) has no parameter or buffer {name!r}",
            why=f"it has {', '.join(has) or 'none'}", fix="name one of these", code="S0641",
        )  # fmt: skip
    return found


def _is_same(draft: Draft, name: str, tensor: torch.Tensor) -> bool:
    owner, _, last = name.rpartition(".")
    module = draft.root.get_submodule(owner)
    return module._parameters.get(last) is tensor or module._buffers.get(last) is tensor


def marks_of(state: State) -> list[Mark]:
    """What the steps of a state say of ranks, module by module."""
    found: list[Mark] = []
    for step in state.steps:
        for path in paths_of(state, step.path):
            found += _marks(step, path)
    return found


def _marks(step: Step, path: str) -> Iterator[Mark]:
    given, where = step.arguments, step.where
    match step.primitive:
        case "shard":
            name, more = join(path, given["tensor"]), (given.get("blocks", 1), given.get("unit", 1))
            yield Divide(name, given["axis"], given["mesh_dim"], *more, where)
        case "sync":
            yield Sync(path, given["mesh_dim"], given["op"], given.get("dim"), given.get("which", "output"), where)
        case "data_parallel":
            yield Batch(given["mesh_dim"], tuple(given.get("inputs", ())), where)
        case "shard_state":
            yield Stored(given["mesh_dim"], path, where)
        case "own_rng":
            yield Fork(given["mesh_dim"], path, where)
        case "cut":
            yield Cut(path, where)
        case "pipeline":
            yield Pipeline(given["mesh_dim"], given["stages"], given["schedule"], given["microbatches"], where)
