"""What values depend on: nothing but constants, nothing but state, or a call's inputs."""

from __future__ import annotations

from typing import Literal, TypeAlias

from smelt.ir import STATE_OPS, Graph, Region, Value, values_in
from smelt.ir.sizes import current_trace, is_symbolic
from smelt.ops.effects import effects

Dependence: TypeAlias = Literal["constant", "state", "call"]
"""constant: only literals. state: parameters, buffers, captured tensors too. call: inputs, randomness, effects."""

_RANK: dict[Dependence, int] = {"constant": 0, "state": 1, "call": 2}


def dependence(graph: Graph) -> dict[Value, Dependence]:
    """For each value the strongest thing it depends on. Memory that is written anywhere depends on the call."""
    found: dict[Value, Dependence] = {}
    written = {v for node in graph.walk() for v in effects(node).writes}
    _region(graph.body, found, written)
    return found


def is_static(value: Value, found: dict[Value, Dependence]) -> bool:
    """Whether a value is the same in every call as long as parameters and buffers stay."""
    return found.get(value, "call") != "call"


def _region(region: Region, found: dict[Value, Dependence], written: set[Value]) -> None:
    for param in region.params:
        found[param] = "call"
    for node in region:
        for inner in node.regions:
            _region(inner, found, written)
        level: Dependence = "state" if node.op in STATE_OPS else "constant"
        effect = effects(node)
        inside = [v for r in node.regions for arg in r.yields for v in values_in(arg)]
        if not effect.is_reproducible or written.intersection((*node.operands(), *node.results)):
            level = "call"
        if current_trace() is not None and is_symbolic((node.args, tuple(node.kwargs.values()))):
            # A size of the call's inputs is an argument.
            level = "call"
        for value in (*node.operands(), *inside):
            if _RANK[found.get(value, "call")] > _RANK[level]:
                level = found.get(value, "call")
        for result in node.results:
            found[result] = level
