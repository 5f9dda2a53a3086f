"""Operators that keep dimensions apart: a count goes where the label of its dimension goes (`ops.catalogue.sharding`).

    linear(%x [n, 8], %w [4, 8])    labels [d0, k], [o, k] -> [d0, o]    ==>  n counts in the result's first dimension

Invariant: a counted dimension that has no label, or one that is summed over, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from smelt.codegen.lower.unknown.selecting import counts_of, tensor_of
from smelt.codegen.lower.unknown.values import Count, Held, Refused, counted_alike, padded_or_value
from smelt.ir import Arg, Node, TensorType, map_values
from smelt.ops.catalogue.sharding import correspondences_of
from smelt.ops.ranks.placements import Dim

if TYPE_CHECKING:
    from smelt.codegen.lower.unknown.rewriting import Rewriting


def labelled(r: Rewriting, node: Node, call: Mapping[str, Arg]) -> Sequence[Held]:
    """The node on whole tensors; what counts of its results follows from the labels of its dimensions."""
    operands = [counts_of(tensor_of(r, v)) for v in node.operands() if isinstance(v.type, TensorType)]
    args = [map_values(arg, r.whole) for arg in node.args]
    made = r.emit.many(node.op, *args, **{name: map_values(arg, r.whole) for name, arg in node.kwargs.items()})
    assert made[0].node is not None
    labels = next(iter(correspondences_of(made[0].node)), None)
    if labels is None or list(map(len, labels.operands)) != list(map(len, operands)):
        raise Refused("dimensions that have no labels")
    cut = {dim.label for dims in labels.results for dim in dims if dim is not None and dim != Dim(dim.label)}
    counts: dict[str, Count | None] = {}
    for dims, counted in zip(labels.operands, operands, strict=True):
        for dim, count in zip(dims, counted, strict=True):
            if dim is None or dim.label in labels.reduces or dim.label in cut or dim != Dim(dim.label):
                if count is not None:
                    raise Refused("rows, or sums, of unknown length")
            elif not counted_alike(counts.setdefault(dim.label, count), count):
                raise Refused("sizes that may differ")
    left = [[None if dim is None else counts.get(dim.label) for dim in dims] for dims in labels.results]
    return [padded_or_value(one, own) for one, own in zip(made, left, strict=True)]
