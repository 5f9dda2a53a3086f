"""`expect`: the run ends, before any write, where a value is not the one that the graph holds for.

expect(%any, True)   ==>   compare the 0-d tensor or the number; another value raises `Miss`
"""

from __future__ import annotations

from smelt.codegen.lower.context import Context, torch_dtype
from smelt.codegen.lower.python.numbers import element_type
from smelt.codegen.lower.python.plain import is_number
from smelt.codegen.lower.python.python_nodes import lower_python
from smelt.ir import Node, Value
from smelt.runtime.plan import Expect


def lower_expect(ctx: Context, node: Node) -> None:
    """Compare where the value is at hand."""
    value, literal = node.args
    if not isinstance(value, Value) or not isinstance(literal, (bool, int, float)):
        lower_python(ctx, node)
    elif is_number(value.type):
        ctx.builder.emit(Expect(ctx.number(value).slot, literal, where=node.span))
        ctx.note(node, "number", "expect")
    elif element_type(value.type) is not None:
        slot = ctx.slot(value, any_layout=True)
        ctx.builder.check(ctx.place(value).storage)
        ctx.builder.emit(Expect(slot, literal, torch_dtype(value), node.span))
        ctx.note(node, "number", "expect")
    else:
        lower_python(ctx, node)
