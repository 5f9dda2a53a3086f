"""Ask whether a number of the run is in an element type's range where it is made, not in the kernel that takes it.

    write(%p, addcdiv(%p, %a, %b, value=%n))     ==>     %m = py.fits(%n, "f32"); write(%p, addcdiv(..., value=%m))

A kernel that refuses nothing may write where its result belongs although others do so before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from smelt.ir import FLOAT, Arg, Graph, Node, TensorType, Value, map_values
from smelt.ops.python.python_numbers import FITS, RANGES
from smelt.ops.raises import looks_at_range
from smelt.ops.registry import overload as found_overload
from smelt.passes.base import Pass, PassContext


def _dtype(node: Node) -> str:
    """The element type that all of a node's tensors have; empty where there are several."""
    tensors = [v.type for v in (*node.operands(), *node.results) if isinstance(v.type, TensorType)]
    names = {str(type_.dtype) for type_ in tensors}
    return names.pop() if len(names) == 1 else ""


def _run(graph: Graph, context: PassContext) -> bool:
    if not any(node.op == "write" for node in graph.body):
        return False
    rewriter = context.rewriter(graph)
    made: dict[tuple[Value, str], Value] = {}
    for node in list(graph.body):
        found = found_overload(node.op)
        numbers = [v for v in node.operands() if v.type == FLOAT]
        dtype = _dtype(node) if numbers and found is not None and looks_at_range(found) else ""
        if dtype not in RANGES:
            continue
        new: dict[Value, Value] = {}
        for number in numbers:
            if number.node is not None and number.node.op == FITS:
                continue
            key = number, dtype
            if key not in made:
                with rewriter.builder.at(node):
                    check = rewriter.builder.add(FITS, (number, dtype), [FLOAT])
                rewriter.adopt(check)
                made[key] = check.result
            new[number] = made[key]

        swapped = partial(_swapped, new)
        kwargs = {name: swapped(arg) for name, arg in node.kwargs.items()}
        rewriter.set_arguments(node, tuple(map(swapped, node.args)), kwargs)
    return rewriter.edits > 0


def _swapped(new: Mapping[Value, Value], arg: Arg) -> Arg:
    return map_values(arg, lambda v: new.get(v, v))


fit_numbers = Pass(
    "fit-numbers",
    'write(%p, addcdiv(..., value=%n))   ==>   %m = py.fits(%n, "f32"); write(%p, addcdiv(..., value=%m))',
    _run,
)
