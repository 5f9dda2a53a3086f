"""Which parameters to divide so that nothing is sent but sums: found in the graph, whatever the model is called."""

from __future__ import annotations

from dataclasses import dataclass, field

from smelt.ir import STATE_OPS, Graph, Node, TensorType, Value
from smelt.ops.catalogue import record_of
from smelt.ops.ranks.placements import Shard
from smelt.parallel.dividing.reach import Reach, Reaches


@dataclass(slots=True)
class Plan:
    """placements: of parameters and buffers, by path. reaches: what is divided together, in program order.

    left: weights of products that stay whole, with why.
    """

    placements: dict[str, Shard] = field(default_factory=dict)
    reaches: list[Reach] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


def tensor_plan(graph: Graph, ranks: int) -> Plan:
    """Divide the weights of products wherever what goes with them can be divided up to a sum."""
    reaches, plan = Reaches(graph, ranks), Plan()
    weights = product_weights(graph)
    for path in weights:
        if path in plan.placements:
            continue
        found, why = None, "it has no dimension that all ranks could have a part of"
        for dim in _dims_in_order(reaches, path):
            reach = reaches.of(path, dim)
            if reach is None:
                continue
            if reach.breaks:
                node = reach.breaks[0]
                why = f"{node.op} needs the whole" + (f" at {node.span}" if node.span is not None else "")
            elif not reach.ends:
                why = "nothing sums over it"
            elif reach.cuts and len(reach.state.keys() & weights.keys()) < 2:
                why = "only this product would be divided"
            elif any(path in plan.placements for path in reach.state):
                why = "another part of it is divided already"
            else:
                found = reach
                break
        if found is None:
            plan.left[path] = why
            continue
        plan.placements.update(found.state)
        plan.reaches.append(found)
    return plan


def _dims_in_order(reaches: Reaches, path: str) -> list[int]:
    type_ = reaches.by_path[path][0].type
    assert isinstance(type_, TensorType)
    return sorted(range(len(type_.sizes)), key=lambda d: -type_.sizes[d])


def product_weights(graph: Graph) -> dict[str, Node]:
    """The parameters that products multiply with, by path, each with its first product."""
    found: dict[str, Node] = {}
    for node in graph.walk():
        record = record_of(node.op)
        if record is None or (record.product is None and not any(name in node.op for name in _ALSO_PRODUCTS)):
            continue
        for value in node.operands():
            source = _stored(value)
            if source is not None and isinstance(value.type, TensorType) and len(value.type.sizes) > 1:
                found.setdefault(source, node)
    return found


_ALSO_PRODUCTS = ("conv", "_grouped_mm", "einsum")


def _stored(value: Value) -> str | None:
    """The path of a parameter that a value is, or a transposed view of."""
    node = value.node
    while node is not None and node.op in ("aten.t.default", "aten.transpose.int", "aten.permute.default"):
        source = node.args[0]
        node = source.node if isinstance(source, Value) else None
    return str(node.args[0]) if node is not None and node.op in STATE_OPS else None
