"""Numbers of a loop's iterations, and values that a loop carries besides, as gradients need them."""

from __future__ import annotations

from smelt.ir import Arg, Node, Region, TensorType, Type, Value
from smelt.ops.lowering import GraphEmitter
from smelt.rewrite import Rewriter, add_carried, add_result


def is_sized(type_: Type) -> bool:
    """Whether it is a tensor of known sizes."""
    return isinstance(type_, TensorType) and type_.shape is not None and all(type(n) is int for n in type_.shape)


def carry(rewriter: Rewriter, node: Node, first: Arg, type_: Type) -> Value:
    """One more value that a loop carries, without its yield; the parameter of its body."""
    params = add_carried(rewriter, node, first, type_)
    add_result(rewriter, node, type_)
    return params[-1]


def yield_also(rewriter: Rewriter, region: Region, arg: Arg) -> None:
    """Yield one more value."""
    rewriter.set_yields(region, (*region.yields, arg))


def count_of(b: GraphEmitter, start: Arg, stop: Arg, step: Arg) -> Arg:
    """How many iterations a counted loop has."""
    if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
        return len(range(start, stop, step))
    length = minus(b, stop, start)
    if step != 1:
        # The smallest number of steps that come to the length: -(length // -step).
        down = -step if isinstance(step, int) else b.call("py.neg", step)
        length = b.call("py.neg", b.call("py.floordiv", length, down))
    return b.call("py.max", length, 0)


def number_at(b: GraphEmitter, number: Arg, start: Arg, step: Arg) -> Arg:
    """What a loop counts in the iteration of a number."""
    scaled = number if step == 1 else b.call("py.mul", number, step)
    return scaled if start == 0 else b.call("py.add", scaled, start)


def minus(b: GraphEmitter, a: Arg, c: Arg) -> Arg:
    if isinstance(a, int) and isinstance(c, int):
        return a - c
    return a if c == 0 and isinstance(c, int) else b.call("py.sub", a, c)


def divided(b: GraphEmitter, a: Arg, by: Arg) -> Arg:
    return a if by == 1 and isinstance(by, int) else b.call("py.floordiv", a, by)
