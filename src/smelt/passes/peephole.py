"""Views and conversions that do nothing, or that two can do as one.

%1 = transpose %x 0 1; %2 = transpose %1 0 1   ==>   use %x for %2
%1 = view %x [6]; %2 = view %1 [2, 3]          ==>   %2 = view %x [2, 3]
%1 = slice %x 0 2; %2 = as_strided %1 [3] [1] 0  ==>   %2 = as_strided %x [3] [1] 0
%1 = copy %x %y; %2 = select_scatter %z %1 0 1   ==>   %2 = select_scatter %z %y 0 1

Only where dtype, sizes, strides and the memory that the result lies in stay as they are.
"""

from __future__ import annotations

from smelt.diag import SmeltError
from smelt.ir import Arg, Graph, Node, Region, TensorType, Value
from smelt.ops.effects import alias_of, aliases
from smelt.ops.record import Trait
from smelt.ops.sets import where
from smelt.ops.shapes.views import Layout, seen_as
from smelt.ops.typing import infer
from smelt.passes.base import Pass, PassContext, call_of, can_erase
from smelt.passes.mutation.returned import WHOLE_VIEWS, is_returned
from smelt.rewrite import Match, Rewriter, Rule, anything, apply_rules, literal, op

_RETURN_SELF = tuple(sorted(where(Trait.RETURNS_ITSELF)))


def _drop(rewriter: Rewriter, match: Match) -> Arg | None:
    node = match.root
    operand = alias_of(node)
    kind = node.result.type
    if operand is None or operand.type != kind or not (isinstance(kind, TensorType) and kind.is_static):
        return None
    if node.op in WHOLE_VIEWS and is_returned(node.result):
        # A view that is returned is a tensor object of its own.
        return None
    if node.op == "aten.detach.default" and _is_seen(node.result):
        # Of what a parameter's view shows, autograd is to know nothing.
        return None
    return operand


def _is_seen(value: Value) -> bool:
    """Whether a view of the value, or it itself, may be among the graph's outputs."""
    return any(
        isinstance(user, Region)
        or (value in (shared for results in aliases(user) for shared in results) and any(map(_is_seen, user.results)))
        for user in value.users
    )


def _order(node: Node) -> tuple[int, ...] | None:
    """The permutation that a transpose or permute does."""
    call = call_of(node)
    kind = node.result.type
    if not isinstance(kind, TensorType) or kind.rank is None:
        return None
    order = list(range(kind.rank))
    if node.op == "aten.permute.default":
        dims = call["dims"]
        return tuple(d % kind.rank for d in dims if isinstance(d, int)) if isinstance(dims, tuple) else None
    first, second = call["dim0"], call["dim1"]
    if not (isinstance(first, int) and isinstance(second, int)) or not order:
        return None
    order[first], order[second] = order[second], order[first]
    return tuple(order)


def _compose(rewriter: Rewriter, match: Match) -> Arg | None:
    outer, inner = _order(match.root), _order(match.node("inner"))
    base = match.value("x")
    if outer is None or inner is None or len(outer) != len(inner):
        return None
    order = tuple(inner[i] for i in outer)
    if order == tuple(range(len(order))) and not is_returned(match.root.result):
        return base
    made = rewriter.builder.add("aten.permute.default", (base, order), (match.root.result.type,))
    rewriter.adopt(made)
    return made.result


def _merge_views(rewriter: Rewriter, match: Match) -> Arg | None:
    base, kind = match.value("x"), match.root.result.type
    if not (isinstance(base.type, TensorType) and isinstance(kind, TensorType)):
        return None
    if not (base.type.is_static and kind.is_static) or seen_as(Layout.of(base.type), kind.sizes) != kind.steps:
        return None
    made = rewriter.builder.add("aten.view.default", (base, kind.sizes), (kind,))
    rewriter.adopt(made)
    return made.result


def _place_at_start(rewriter: Rewriter, match: Match) -> Arg | None:
    """Places in a storage are those of what was made there: only that surely begins where its storage does."""
    node, call = match.root, call_of(match.root)
    operand = call["self"]
    if call["storage_offset"] is None or not isinstance(operand, Value) or not isinstance(operand.type, TensorType):
        return None
    base: Value | None = operand
    start = operand
    while base is not None:
        start = base
        base = alias_of(base.node) if base.node is not None else None
    if start is operand or not isinstance(start.type, TensorType):
        return None
    if start.type.dtype is not operand.type.dtype:
        if _is_of_start(operand):
            return None
        try:
            types = infer("aten.view.dtype", (start, operand.type.dtype), {})
        except (SmeltError, RuntimeError):
            return None
        viewed = rewriter.builder.add("aten.view.dtype", (start, operand.type.dtype), types)
        rewriter.adopt(viewed)
        start = viewed.result
    made = rewriter.builder.add(node.op, (start, *node.args[1:]), (node.result.type,), node.kwargs)
    rewriter.adopt(made)
    return made.result


def _is_of_start(value: Value) -> bool:
    """Whether a value is what was made in its storage, in another dtype."""
    node = value.node
    if node is None or node.op != "aten.view.dtype":
        return False
    (source,) = node.operands()
    return source.node is None or alias_of(source.node) is None


def _same_dtype_softmax(rewriter: Rewriter, match: Match) -> Arg | None:
    x = match.value("x")
    if not isinstance(x.type, TensorType) or x.type.dtype is not match["dtype"]:
        return None
    made = rewriter.builder.add(match.root.op, (x, match["dim"]), (match.root.result.type,))
    rewriter.adopt(made)
    return made.result


def _scatter_the_source(rewriter: Rewriter, match: Match) -> Arg | None:
    """How a part lies before it is put into a whole shows nowhere."""
    node, copied, source = match.root, match.node("copy").result.type, match.value("source")
    a, b = source.type, copied
    if not (isinstance(a, TensorType) and isinstance(b, TensorType) and a.is_static and b.is_static):
        return None
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return None
    made = rewriter.builder.add(node.op, (node.args[0], source, *node.args[2:]), (node.result.type,), node.kwargs)
    rewriter.adopt(made)
    return made.result


def _is_value(arg: Arg) -> bool:
    return isinstance(arg, Value)


_TRANSPOSES = ("aten.transpose.int", "aten.permute.default")
_SCATTERS = ("aten.select_scatter.default", "aten.slice_scatter.default", "aten.diagonal_scatter.default")
_X = anything("x", _is_value)
_ANY_LITERAL = literal(lambda arg: True)

RULES: tuple[Rule, ...] = (
    Rule("drop-view", op(WHOLE_VIEWS, anything(), open_ended=True), _drop),
    Rule("drop-conversion", op(_RETURN_SELF, anything(), open_ended=True), _drop),
    Rule(
        "compose-transposes",
        op(_TRANSPOSES, op(_TRANSPOSES, _X, open_ended=True, name="inner"), open_ended=True),
        _compose,
    ),
    Rule(
        "merge-views",
        op("aten.view.default", op("aten.view.default", _X, _ANY_LITERAL), _ANY_LITERAL),
        _merge_views,
    ),
    Rule(
        "scatter-the-source",
        op(
            _SCATTERS,
            anything("whole"),
            op("aten.copy.default", anything("target"), anything("source", _is_value), name="copy"),
            open_ended=True,
        ),
        _scatter_the_source,
    ),
    Rule("place-at-start", op("aten.as_strided.default", _X, open_ended=True), _place_at_start),
    Rule(
        "softmax-of-its-own-dtype",
        op(
            ("aten.softmax.int", "aten.log_softmax.int"),
            _X,
            literal(lambda a: True, "dim"),
            literal(lambda a: a is not None, "dtype"),
        ),
        _same_dtype_softmax,
    ),
)


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    return apply_rules(rewriter, RULES, can_erase=can_erase).total() > 0


peephole = Pass("peephole", "%1 = transpose %x 0 1; %2 = transpose %1 0 1   ==>   use %x for %2", _run)
