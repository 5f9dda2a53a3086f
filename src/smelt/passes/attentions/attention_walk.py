"""What stands between the two products of attention, and what a softmax may be written as: for whoever looks for it.

    %2 = mul %1, 0.125; %3 = add %2, %mask; %4 = softmax %3, -1        ==>   from %4 up: add %mask, mul 0.125, to %1

Invariant: nothing is judged here. `climb` takes the steps that its caller takes: a pass those that it can keep exactly,
a schedule those that it can write down as a pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from smelt.ir import Arg, Node, TensorType, Value
from smelt.ops.record import Trait
from smelt.ops.sets import where
from smelt.passes.base import call_of

Kind: TypeAlias = str
"""`same` (copies, casts), `view`, `dropout`, or the name of the operator that scales or masks; `where_not` where a
`where` has the scores in its other operand."""
MASKING: frozenset[Kind] = frozenset(("add", "sub", "masked_fill", "where", "where_not"))
SCALING: frozenset[Kind] = frozenset(("mul", "div"))
BADDBMM = "aten.baddbmm.default"
PRODUCTS = ("aten.matmul.default", "aten.bmm.default")
CASTS = ("to", "_to_copy", "type_as", "float")
"""Names of operators that convert, whatever they take besides."""
_SAME = where(Trait.SAME_VALUES)
_VIEWS = where(Trait.RESHAPES)


class Step(NamedTuple):
    """A node whose result is scores, or probabilities, that it changes.

    source: these before. by: the factor, the mask, or the condition; fill: what is put where that is (not) set.
    """

    node: Node
    kind: Kind
    source: Value
    by: Arg = None
    fill: Arg = None


Steps: TypeAlias = tuple[Step, ...]


class Softmax(NamedTuple):
    """What stands for a softmax over the last axis.

    written: "softmax", "_softmax", "log" (exp of log_softmax), "amax" or "max" (by exp, less that), "bare" (nothing is
    taken off). source: what it is of. dtype: the dtype that it is computed in, None for that of the source.
    """

    written: str
    source: Value
    dtype: Arg = None


def name_of(node: Node) -> str:
    """An operator's name, without namespace and overload."""
    parts = node.op.split(".")
    return parts[1] if len(parts) > 1 else node.op


def steps_of(node: Node) -> list[Step]:
    """Each way in which a node's result may be scores that it changes; none for other operators."""
    if node.op in _SAME or name_of(node) in CASTS:
        return _steps(node, ("same", node.args[0] if node.args else None, None, None))
    if node.op in _VIEWS:
        return _steps(node, ("view", node.args[0], None, None))
    call = call_of(node)
    if not call:
        return []
    match node.op:
        case "aten.dropout.default":
            return _steps(node, ("dropout", call["input"], None, None))
        case "aten.mul.Tensor" | "aten.mul.Scalar":
            x, y = call["self"], call["other"]
            return _steps(node, ("mul", x, y, None), ("mul", y, x, None))
        case "aten.div.Tensor" | "aten.div.Scalar":
            return _steps(node, ("div", call["self"], call["other"], None))
        case "aten.add.Tensor" if call["alpha"] == 1:
            x, y = call["self"], call["other"]
            return _steps(node, ("add", x, y, None), ("add", y, x, None))
        case "aten.sub.Tensor" if call["alpha"] == 1:
            return _steps(node, ("sub", call["self"], call["other"], None))
        case "aten.masked_fill.Scalar" | "aten.masked_fill.Tensor":
            return _steps(node, ("masked_fill", call["self"], call["mask"], call["value"]))
        case "aten.where.self" | "aten.where.ScalarOther" | "aten.where.ScalarSelf":
            x, y, test = call["self"], call["other"], call["condition"]
            return _steps(node, ("where", x, test, y), ("where_not", y, test, x))
    return []


def _steps(node: Node, *found: tuple[Kind, Arg, Arg, Arg]) -> list[Step]:
    return [Step(node, kind, source, by, fill) for kind, source, by, fill in found if isinstance(source, Value)]


def climb(
    value: Value, fits: Callable[[Step, Steps], bool], ends: Callable[[Node, Steps], bool], below: Steps = ()
) -> tuple[Node, Steps] | None:
    """From a value up to a product: that, and the steps between, from the value on. None where no way leads to one.

    fits: whether a step is taken, given those below it; ends: whether a node is the product.
    """
    node = value.node
    if node is None:
        return None
    if ends(node, below):
        return node, below
    for step in steps_of(node):
        if fits(step, below):
            found = climb(step.source, fits, ends, (*below, step))
            if found is not None:
                return found
    return None


def softmax_of(node: Node) -> Softmax | None:
    """The softmax over the last axis that a node's result is, or stands for."""
    logarithm = _maker(node.args[0], "aten.log_softmax.int") if node.op == "aten.exp.default" else None
    inner = node if node.op in ("aten.softmax.int", "aten._softmax.default") else logarithm
    if inner is not None:
        source = inner.args[0]
        if not isinstance(source, Value) or not is_last(inner.args[1], source):
            return None
        if inner.op == "aten._softmax.default":
            return Softmax("_softmax", source)
        dtype = inner.args[2] if len(inner.args) > 2 else inner.kwargs.get("dtype")
        return Softmax("softmax" if inner is node else "log", source, dtype)
    e = _maker(node.args[0], "aten.exp.default") if node.op == "aten.div.Tensor" else None
    total = _maker(node.args[1], "aten.sum.dim_IntList") if e is not None and len(node.args) == 2 else None
    if e is None or total is None or total.args[0] is not e.result or not _reduces_last(total):
        return None
    less = _maker(e.args[0], "aten.sub.Tensor")
    if less is None or len(less.args) != 2:
        return Softmax("bare", e.args[0]) if isinstance(e.args[0], Value) else None
    source, most = less.args[0], _undetached(less.args[1])
    if not isinstance(source, Value) or most is None or most.args[0] is not source:
        return Softmax("bare", source) if isinstance(source, Value) else None
    if most.op == "aten.amax.default" and _reduces_last(most):
        return Softmax("amax", source)
    if most.op == "aten.max.dim" and is_last(most.args[1], source) and most.args[2:] == (True,):
        return Softmax("max", source)
    return None


def rank_of(value: Value) -> int | None:
    """How many axes a tensor has, None where that is not known."""
    type_ = value.type
    return len(type_.shape) if isinstance(type_, TensorType) and type_.shape is not None else None


def is_last(axis: object, of: Value) -> bool:
    """Whether an axis is the last of a tensor."""
    rank = rank_of(of)
    return axis == -1 or (rank is not None and axis == rank - 1)


def _maker(arg: object, op: str) -> Node | None:
    node = arg.node if isinstance(arg, Value) else None
    return node if node is not None and node.op == op else None


def _undetached(arg: object) -> Node | None:
    node = arg.node if isinstance(arg, Value) else None
    if node is not None and node.op == "aten.detach.default" and isinstance(node.args[0], Value):
        return node.args[0].node
    return node


def _reduces_last(node: Node) -> bool:
    """Whether a reduction is over the last axis, which it keeps."""
    axes, source = node.args[1], node.args[0]
    axis = axes[0] if isinstance(axes, tuple) and len(axes) == 1 else None
    keeps = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    return isinstance(source, Value) and is_last(axis, source) and keeps is True and "dtype" not in node.kwargs
