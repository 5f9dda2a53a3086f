"""Whether autograd would give what a captured program returns, or leaves behind, a history."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from smelt.analysis.gradients import gradient_flow
from smelt.capture import Captured
from smelt.ir import Value


def has_history(
    captured: Captured, is_enabled: bool, inputs: Collection[str], state: Collection[tuple[str, str]]
) -> bool:
    """Whether it may on any way through the graph.

    is_enabled: the caller's grad mode. inputs, state: names of inputs, and kind and path of state, that require
    gradients.
    """
    if captured.own_backward:
        return True  # no operator tells
    assert captured.graph is not None

    def requires(value: Value) -> bool:
        return value.name in inputs if value.node is None else (value.node.op, value.node.args[0]) in state

    flow = gradient_flow(captured.graph, requires, is_enabled)
    known = captured.spent | captured.returned.keys()
    return flow.leaves_some or any(has and i not in known for i, has in enumerate(flow.outputs))


def has_history_on_other_ways(captured: Captured, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """The same for a graph of all ways, whose recorded run gave none."""
    assert captured.graph is not None and captured.signature is not None
    if not any(node.regions for node in captured.graph.walk()):
        return False
    found = captured.signature.flatten(args, kwargs)
    inputs = {value.name for value, x in zip(captured.graph.inputs, found, strict=True) if requires_gradients(x)}
    state = {key for key, entry in captured.state.entries.items() if requires_gradients(entry.tensor)}
    return bool(inputs or state) and has_history(captured, captured.caller.grad, inputs, state)


def requires_gradients(value: Any) -> bool:
    """Whether a value is a tensor that does."""
    return isinstance(value, torch.Tensor) and value.requires_grad
