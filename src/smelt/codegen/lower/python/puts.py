"""Parts of tensors at positions that the library writes, where the whole is written back: in the tensor itself.

    %1 = index_copy(%c, 2, %at, %k); %2 = write(%c, %1)          ==>          index_copy_(%c, 2, %at, %k)

Invariant: an error leaves of the tensor what it leaves in eager, since the same operator raises it.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt._torch.library.stable import dispatchable
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context
from smelt.codegen.lower.generic import operand
from smelt.codegen.lower.memory.in_place import PUTS
from smelt.ir import Node, Value
from smelt.ops.registry import overload, schema_of
from smelt.runtime.plan import Dispatch, Use


def lower_put(ctx: Context, node: Node, target: Callable[[Node], Place | None]) -> bool:
    """Write into the tensor from outside that the node's first operand is, if nobody can tell; whether it was done.

    target: where a node may write; whoever gets a place must write there.
    """
    op, schema = overload(PUTS[node.op]), schema_of(node.op)
    whole = node.args[0]
    if op is None or schema is None or node.mode or not isinstance(whole, Value) or not ctx.is_bound(whole):
        return False
    call = ctx.call_arguments(node)
    if call.get("accumulate"):
        return False
    rest = [operand(ctx, node, call[a.name], True) for a in schema.arguments[1:]]
    args = (Use(ctx.slot(whole, any_layout=True)), *rest)
    if not dispatchable(op, list(args), lambda a: a.slot if isinstance(a, Use) else None):
        return False
    place = target(node)
    if place is None:
        return False
    ctx.builder.emit(Dispatch(op, (Use(ctx.builder.handle(place)), *rest), (None,)))
    ctx.overwritten(place.storage)
    ctx.bind(node.result, place)
    ctx.note(node, "dispatcher", str(op))
    return True
