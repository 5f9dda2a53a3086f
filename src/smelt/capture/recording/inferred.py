"""Results that are inference tensors although the caller is not in inference mode, or the other way round.

    with torch.inference_mode():
        h = encoder(x)
    return h                                   h.is_inference(): autograd refuses to save it, in-place writes raise

Values are the same, but who gets the result can tell, so the graph's caller gets the same kind. Kinds are told of
memory: a view is of the kind of what it shows, wherever it was taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smelt._torch.seen.record_modes import Modes
from smelt.analysis.aliases import alias_analysis, is_external
from smelt.ir import Graph, Node, values_in

WHY = "the graph gives tensors of one kind, and autograd and in-place writes tell inference tensors from others"
FIX = "return a clone made outside of torch.inference_mode(), or use torch.no_grad() inside"


def kinds_of(tensors: Sequence[torch.Tensor], caller: Modes) -> dict[int, bool]:
    """By number of a result, whether it is an inference tensor; for those that the caller's mode does not make so."""
    return {i: not caller.inference for i, t in enumerate(tensors) if t.is_inference() != caller.inference}


def kinds_on_all_ways(graph: Graph, tensors: Sequence[torch.Tensor], caller: Modes) -> dict[int, bool]:
    """The same for a graph with control flow, whose `tensors` are stand-ins for results that ways meet in.

    Raises: MixedKinds where a result is of one kind on some ways and of the other on others.
    """
    if caller.inference:
        # No node says that it is outside of the caller's inference mode: only stand-ins do, and those of one way.
        kinds = kinds_of(tensors, caller)
        if kinds and any(node.regions for node in graph.walk()):
            raise MixedKinds(next(iter(kinds)))
        return kinds
    if not any(_is_inferred(node) for node in graph.walk()):
        return {}
    found = alias_analysis(graph)
    kinds = {}
    for number, (output, tensor) in enumerate(zip(graph.outputs, tensors, strict=True)):
        nodes = [root.node for root in found.of_all(values_in(output)) if not is_external(root)]
        # A constant is made before the run, under no mode of the program's.
        ways = {_is_inferred(node) for node in nodes if node is not None and not _is_constant(node)}
        if len(ways) > 1:
            raise MixedKinds(number)
        if ways.pop() if ways else tensor.is_inference():
            kinds[number] = True
    return kinds


class MixedKinds(Exception):
    """A result that is an inference tensor on some paths only; its number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"result number {number} is an inference tensor on some paths only")


def _is_inferred(node: Node) -> bool:
    return node.mode.startswith("inference")


def _is_constant(node: Node) -> bool:
    """Whether a node is a constant, or the copy of one that leaves."""
    if node.op == "aten.clone.default":
        return any(value.node is not None and value.node.op == "const" for value in node.operands())
    return node.op == "const"
