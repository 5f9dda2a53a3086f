"""What a rewritten graph is held to: types that agree, nodes that are used.

Invariant: `check` is asked of everything that stands for a value of the old graph.
"""

from __future__ import annotations

from collections.abc import Hashable

from smelt.codegen.lower.unknown.values import Held, Padded, Refused
from smelt.ir import UNKNOWN_DIM, Region, TensorType, TupleType, Type, Value
from smelt.ops.effects import effects


class Exact(Exception):
    """Something must not be padded after all: a node that makes it, or what a loop carries in a place."""

    def __init__(self, what: Hashable) -> None:
        super().__init__(str(what))
        self.what = what


def has_unknown(type_: Type) -> bool:
    """Whether a type has tensors in it whose sizes are not known."""
    if isinstance(type_, TupleType):
        return any(map(has_unknown, type_.elements))
    return isinstance(type_, TensorType) and not type_.is_static


def is_by_columns(type_: TensorType) -> bool:
    """Whether rows of unknown number lie one column after the other."""
    return type_.strides == (1, UNKNOWN_DIM) and type_.shape is not None and type_.shape[0] == UNKNOWN_DIM


def sweep(region: Region) -> None:
    """Drop what was made and is not used."""
    for node in reversed(region):
        for inner in node.regions:
            sweep(inner)
        if not node.regions and not any(r.users for r in node.results):
            found = effects(node)
            if found.is_pure and not found.may_throw:
                node.drop_arguments()
                region.remove(node)


def tensor_type(form: Held) -> TensorType | None:
    if isinstance(form, Padded):
        return form.type
    if isinstance(form, Value) and isinstance(form.type, TensorType) and form.type.is_static:
        return form.type
    return None


def check(held: Held, type_: Type, *, lies: bool) -> None:
    """Raises: Refused where what stands for a value is not what its type says, or cannot be cut exactly again.

    lies: its strides are those of the exact tensor, even where the type does not know them.
    """
    if isinstance(held, Padded):
        if not isinstance(type_, TensorType) or type_.shape is None or len(type_.shape) != len(held.counts):
            raise Refused(f"a value of type {type_}")
        if type_.dtype is not held.type.dtype:
            raise Refused(f"it is {type_.dtype}")
        for count, size, dim in zip(held.counts, held.type.sizes, type_.shape, strict=True):
            if isinstance(dim, int) and (count is not None or size != dim):
                raise Refused("a size that is known")
        if is_by_columns(type_) and held.counts[0] is not None and held.counts[1] is None:
            return
        told = type_.strides or ()
        if any(s != step if isinstance(s, int) else not lies for s, step in zip(told, held.type.steps, strict=False)):
            raise Refused("it has another memory layout")
    elif (
        isinstance(held, Value)
        and isinstance(held.type, TensorType)
        and (not isinstance(type_, TensorType) or held.type.dtype is not type_.dtype)
    ):
        raise Refused(f"a value of type {type_}")
