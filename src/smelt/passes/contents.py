"""What a value holds that follows from constants alone, for rewrites that go by positions."""

from __future__ import annotations

import torch

from smelt.ir import Arg, DType, Graph, Node, Value, clone_node
from smelt.ops.effects import effects
from smelt.ops.evaluate import evaluate
from smelt.passes.matching import static_tensor

_MOST_ELEMENTS = 1 << 22
_MOST_STEPS = 256


def constant_contents(graph: Graph, value: Value) -> torch.Tensor | None:
    """What a tensor of i64 holds that depends on no input and no parameter; None where that cannot be told."""
    type_ = static_tensor(value)
    if type_ is None or type_.dtype is not DType.I64 or type_.device != "cpu" or not 0 < type_.numel <= _MOST_ELEMENTS:
        return None
    # A node that is met again goes behind all that it was before, and so does what it reads.
    nodes: dict[Node, None] = {}
    pending, steps = [value], 0
    while pending:
        node, steps = pending.pop().node, steps + 1
        if node is None or node.regions or steps > _MOST_STEPS or not effects(node).is_reproducible:
            return None
        nodes.pop(node, None)
        nodes[node] = None
        pending.extend(node.operands())
    small = Graph("index")
    small.constants = graph.constants
    copies: dict[Value, Arg] = {}
    for node in reversed(nodes):
        copy = clone_node(node, copies)
        copies.update(zip(node.results, copy.results, strict=True))
        small.body.insert(copy)
    small.body.set_yields((copies[value],))
    try:
        with torch.no_grad():
            (made,) = evaluate(small, ())
    except Exception:
        # Eager raises here too; it must do so in each call, where the user sees it.
        return None
    return made if isinstance(made, torch.Tensor) else None
