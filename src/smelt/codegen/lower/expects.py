"""`expect`: the run ends, before any write, where a value is not the one that the graph holds for.

expect(%any, True)   ==>   Expect(slot of %any, True), natively; other literals are compared in Python
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.codegen.lower.context import Context, cannot_lower, torch_dtype
from smelt.diag import Miss, Span
from smelt.ir import Node, TensorType, Value
from smelt.ops.evaluate import same_number
from smelt.runtime.plan import Expect, PyCall


def lower_expect(ctx: Context, node: Node) -> None:
    """Compare where the value is at hand."""
    value, literal = node.args
    if not isinstance(value, Value) or not isinstance(value.type, TensorType):
        raise cannot_lower(node, "what it compares is no tensor")
    slot = ctx.slot(value, any_layout=True)
    if isinstance(literal, bool | int | float):
        ctx.builder.check(ctx.builder.storage_of(slot))
        ctx.builder.emit(Expect(slot, literal, torch_dtype(value)))
        ctx.note(node, "kernel", "expect")
        return
    ctx.builder.emit(PyCall(_comparison(literal, node.span), (slot,)))
    ctx.note(node, "python", "expect")


def _comparison(literal: Any, span: Span | None) -> Callable[[torch.Tensor], None]:
    def expect(tensor: torch.Tensor) -> None:
        found = tensor.item()
        if not same_number(found, literal):
            raise Miss(literal, found, span)

    return expect
