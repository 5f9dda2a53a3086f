"""What a schedule says of ranks, as data: which tensors are divided, where values are brought together, what is cut."""

from __future__ import annotations

from smelt.diag import Span
from smelt.diag.records import record


@record
class Divide:
    """A parameter or buffer along an axis of the mesh. blocks, unit: as of `Schedule.shard`."""

    name: str
    dim: int
    axis: str
    blocks: int = 1
    unit: int = 1
    where: Span | None = None


@record
class Sync:
    """What a module gives (or is given) is brought into a placement: whole, or divided along a dimension."""

    path: str
    axis: str
    op: str
    dim: int | None = None
    which: str = "output"
    where: Span | None = None


@record
class Batch:
    """Inputs are divided along their first dimension. inputs: their names; none for all that are as long."""

    axis: str
    inputs: tuple[str, ...] = ()
    where: Span | None = None


@record
class Stored:
    """Parameters, and so gradients and the optimizer's state, are stored divided along an axis, and used whole."""

    axis: str
    path: str = ""
    where: Span | None = None


@record
class Fork:
    """Ranks of an axis draw other random numbers in a module, each for its share."""

    axis: str
    path: str
    where: Span | None = None


@record
class Cut:
    """A stage of a pipeline ends behind a module."""

    path: str
    where: Span | None = None


@record
class Pipeline:
    """The stages stand along an axis. stages: how many; cuts in even shares of the work where none are named."""

    axis: str
    stages: int
    schedule: str = "1f1b"
    microbatches: int = 1
    where: Span | None = None


Mark = Divide | Sync | Batch | Stored | Fork | Cut | Pipeline
