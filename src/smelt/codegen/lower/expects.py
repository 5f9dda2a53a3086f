"""`expect`: the run ends, before any write, where a value is not the one that the graph holds for.

    expect(%any, True)   ==>   compare the 0-d tensor; another value raises `Miss`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.codegen.lower.context import Context, cannot_lower
from smelt.diag import Miss, Span
from smelt.ir import Node, TensorType, Value
from smelt.ops.evaluate import same_number
from smelt.runtime.plan import PyCall


def lower_expect(ctx: Context, node: Node) -> None:
    """Compare where the value is at hand."""
    value, literal = node.args
    if not isinstance(value, Value) or not isinstance(value.type, TensorType):
        raise cannot_lower(node, "what it compares is no tensor")
    ctx.builder.emit(PyCall(_comparison(literal, node.span), (ctx.slot(value, any_layout=True),)))
    ctx.note(node, "python", "expect")


def _comparison(literal: Any, span: Span | None) -> Callable[[torch.Tensor], None]:
    def expect(tensor: torch.Tensor) -> None:
        found = tensor.item()
        if not same_number(found, literal):
            raise Miss(literal, found, span)

    return expect
