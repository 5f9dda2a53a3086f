"""Which convolutions are rewritten as others, and what their options say of one axis."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from smelt.analysis import is_static
from smelt.ir import Arg, DType, Graph, Node, Value
from smelt.passes.base import PassContext, call_of
from smelt.passes.matching import is_autocast, static_tensor


def rewritable(graph: Graph, context: PassContext, ops: Collection[str]) -> Iterator[Node]:
    """Convolutions of these operators in f32, of known sizes and one group, whose weights are parameters."""
    nodes = [n for n in graph.walk() if n.op in ops and not is_autocast(n)]
    if not nodes:
        return
    found = context.dependence(graph)
    for node in nodes:
        call = call_of(node)
        weight, bias = call["weight"], call["bias"]
        if not isinstance(weight, Value) or not is_static(weight, found) or call["groups"] != 1:
            continue
        types = [static_tensor(v) for v in (call["input"], weight, node.result, *([] if bias is None else [bias]))]
        if all(t is not None and t.dtype is DType.F32 and all(type(n) is int and n for n in t.sizes) for t in types):
            yield node


def of_axis(arg: Arg, axis: int) -> int | None:
    """What an option says of an axis; None where it is no constant."""
    if isinstance(arg, tuple):
        arg = arg[axis if len(arg) > 1 else 0]
    return arg if type(arg) is int else None
