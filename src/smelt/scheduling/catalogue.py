"""All primitives by name: those of Smelt, an explicit tuple, and those of the user."""

from __future__ import annotations

from typing import Literal, overload

from smelt.diag import ScheduleError
from smelt.scheduling.graphs.fusing import Fuse, FuseHorizontal
from smelt.scheduling.graphs.graph_steps import CheckpointPart, Compile, DecomposePart, Inline, Outline, PrintPart
from smelt.scheduling.graphs.kernel_steps import ParallelLoop, SetStages, SetWarps, TileLoop, UnrollLoop, VectorizeLoop
from smelt.scheduling.modules.module_steps import Annotate, Checkpoint, Decompose, ForkRng, Layout, PrintAt
from smelt.scheduling.modules.module_steps_precision import Precision
from smelt.scheduling.modules.module_steps_quantize import Quantize
from smelt.scheduling.modules.replacing import Replace, ReplaceAll
from smelt.scheduling.primitives import Primitive
from smelt.scheduling.ranks.parallel_steps import (
    CutStage,
    DataParallel,
    ForkRandom,
    PipelineStages,
    ShardState,
    ShardTensor,
    SyncValue,
)

PRIMITIVES: tuple[type[Primitive], ...] = (
    Replace,
    ReplaceAll,
    Fuse,
    FuseHorizontal,
    Outline,
    Inline,
    Compile,
    Checkpoint,
    Decompose,
    Annotate,
    ForkRng,
    Layout,
    Precision,
    Quantize,
    PrintAt,
    TileLoop,
    VectorizeLoop,
    UnrollLoop,
    ParallelLoop,
    SetWarps,
    SetStages,
    ShardTensor,
    SyncValue,
    DataParallel,
    ShardState,
    ForkRandom,
    CutStage,
    PipelineStages,
)

ON_MATCHES: tuple[type[Primitive], ...] = (
    CheckpointPart,
    DecomposePart,
    PrintPart,
)
"""What these names mean where they are taken on matches."""

registered: dict[str, type[Primitive]] = {}
"""The user's, by `smelt.register_primitive`."""


@overload
def list_primitives(*, name_only: Literal[True] = True) -> tuple[str, ...]: ...
@overload
def list_primitives(*, name_only: Literal[False]) -> dict[str, type[Primitive]]: ...
def list_primitives(*, name_only: bool = True) -> tuple[str, ...] | dict[str, type[Primitive]]:
    """The names of all primitives: Smelt's, then those registered; with name_only=False the classes by name."""
    found = {primitive.name: primitive for primitive in (*PRIMITIVES, *registered.values())}
    return tuple(found) if name_only else found


def primitive_of(name: str, *, on_matches: bool = False) -> type[Primitive]:
    """The primitive of a name. Raises: ScheduleError (S0606) where there is none."""
    for primitive in ON_MATCHES if on_matches else ():
        if primitive.name == name:
            return primitive
    found = list_primitives(name_only=False).get(name)
    if found is None:
        raise ScheduleError(
            f"there is no primitive {name!r}", why=f"there are {', '.join(list_primitives())}",
            fix="register it with smelt.register_primitive, or correct the name", code="S0606",
        )  # fmt: skip
    return found
