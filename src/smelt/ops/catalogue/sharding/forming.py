"""What forms are written with: a rank's graph in the making."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from smelt.diag.records import record
from smelt.ir import Arg, Device, Node, TensorType, Value
from smelt.ops.lowering import GraphEmitter
from smelt.ops.ranks.placements import WHOLE, Placement, Shard
from smelt.ops.registry import arguments_of, schema_of


@record
class Exchange:
    """Rows that are with the rank that has their expert.

    of: the program's numbers of where each expert's rows end. ends: the rank graph's, of all ranks; own: of the rank's
    experts. sizes: how many experts each rank has. back: how the rows lay before, or as what they come back.
    """

    of: Value
    ends: Value
    own: Value
    sizes: tuple[int, ...]
    back: Placement


class Parting(Protocol):
    """What a form is written with: a rank's graph in the making."""

    ranks: int
    rank: int
    axis: str
    emitter: GraphEmitter
    exchanges: dict[Placement, Exchange]

    def placement(self, value: Value) -> Placement:
        """In which placement a value was computed."""
        ...

    def get(self, value: Value, at: Placement, *, entered: bool = False) -> Value:
        """A value in a placement. entered: for work that differs between ranks."""
        ...

    def arg(self, arg: Arg, at: Placement, *, entered: bool = False) -> Arg:
        """An argument, value or not."""
        ...

    def forks(self, node: Node) -> bool:
        """Whether ranks draw other random numbers for a node."""
        ...

    def summed(self, made: Value, node: Node) -> tuple[Value, Placement]:
        """What a rank's share of a node's sum becomes."""
        ...


Form: TypeAlias = Callable[[Parting, Node], "Sequence[tuple[Value, Placement]] | None"]


def call_of(node: Node) -> Mapping[str, Arg]:
    schema = schema_of(node.op)
    assert schema is not None
    return arguments_of(schema, node.args, node.kwargs)


def divided(part: Parting, arg: Arg) -> Shard | None:
    at = part.placement(arg) if isinstance(arg, Value) else WHOLE
    return at if isinstance(at, Shard) else None


def device_of(type_: TensorType) -> Arg:
    """Where a tensor of this type is, as an argument."""
    return Device(type_.device)
