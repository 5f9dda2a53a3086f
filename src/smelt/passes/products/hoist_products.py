"""Multiply a whole tensor by a weight once, not piece by piece: the input half of every recurrent cell.

    %a = select %x, 0, 0; %1 = linear %a, %w, %b                 %0 = linear %x, %w, %b
    ...                                                ==>       %1 = select %0, 0, 0
    %d = select %x, 0, 1; %2 = linear %d, %w, %b                 %2 = select %0, 0, 1

The weight is read once for all rows. Pieces are views of the whole: one that an output or a write would see stays
apart, as does one whose users need other strides than the view has.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.diag.records import record
from smelt.ir import Arg, Graph, Node, Region, TensorType, Value
from smelt.ir.sizes import value as at_hand
from smelt.ops.typing import infer
from smelt.passes.base import Pass, PassContext, call_of, emitter, erase_dead
from smelt.passes.layouts import escapes, plan_layouts, set_layouts
from smelt.passes.matching import FLOATS, Disturbances, is_autocast, static_tensor
from smelt.rewrite import Rewriter

_LINEAR = "aten.linear.default"
_PIECES = ("aten.select.int", "aten.slice.Tensor")

_MOST_ROWS = 32
"""Rows of a piece: a product of more uses what it reads of the weight often enough."""
_LEAST_SHARE = 0.75
"""How much of the whole the pieces must make up: the rest is computed for nobody."""


@record
class _Piece:
    """A linear node whose input is `view` of `whole`."""

    node: Node
    view: Node
    whole: Value
    rows: int


_Key = tuple[Region | None, Value, Arg, Arg, str]


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    disturbances = Disturbances(graph)
    groups: dict[_Key, list[_Piece]] = {}
    for node in graph.walk():
        piece = _piece(node)
        if piece is not None:
            call = call_of(node)
            key = (node.parent, piece.whole, call["weight"], call["bias"], node.mode)
            groups.setdefault(key, []).append(piece)
    for group in groups.values():
        first = group[0].node
        members = [p for p in group if p.node is first or not disturbances.between(rewriter, first, p.node)]
        members = [p for p in members if plan_layouts({p.node.result: _type(p)}) is not None]
        if _pays(members):
            _hoist(rewriter, members)
    return rewriter.edits > 0


def _piece(node: Node) -> _Piece | None:
    """A product of few rows of a tensor, if its result is nobody's but the graph's."""
    if node.op != _LINEAR or is_autocast(node):
        return None
    call = call_of(node)
    x = call["input"]
    view = x.node if isinstance(x, Value) else None
    if view is None or view.op not in _PIECES or view.parent is not node.parent:
        return None
    of = call_of(view)
    whole = of["self"]
    kind, all_ = static_tensor(x), static_tensor(whole)
    result, matrix = static_tensor(node.result), static_tensor(call["weight"])
    if not isinstance(whole, Value) or kind is None or all_ is None or result is None or matrix is None:
        return None
    dim = of["dim"]
    if not isinstance(dim, int) or len(matrix.sizes) != 2 or kind.dtype not in FLOATS or matrix.dtype is not kind.dtype:
        return None
    if dim % len(all_.sizes) == len(all_.sizes) - 1 or not kind.numel or escapes(node.result):
        return None
    rows = at_hand(kind.numel // kind.sizes[-1])
    return _Piece(node, view, whole, rows) if rows <= _MOST_ROWS else None


def _type(piece: _Piece) -> TensorType:
    """The type of a piece of the whole result."""
    call = call_of(piece.node)
    stem = piece.whole
    (whole,) = infer(_LINEAR, (stem, call["weight"], call["bias"]))
    standin = Value(stem.name, whole, stem.owner)
    (found,) = infer(piece.view.op, (standin, *piece.view.args[1:]), piece.view.kwargs)
    assert isinstance(found, TensorType)
    return found


def _pays(members: Sequence[_Piece]) -> bool:
    if len(members) < 2:
        return False
    kind = static_tensor(members[0].whole)
    assert kind is not None
    return sum(p.rows for p in members) >= _LEAST_SHARE * at_hand(kind.numel) // at_hand(kind.sizes[-1])


def _hoist(rewriter: Rewriter, members: Sequence[_Piece]) -> None:
    # Two pieces may meet in one user, so that what each may do alone need not do for all.
    plan = plan_layouts({p.node.result: _type(p) for p in members})
    if plan is None:
        return
    first = members[0]
    call = call_of(first.node)
    with rewriter.builder.at(first.node):
        whole = emitter(rewriter).call(_LINEAR, first.whole, call["weight"], call["bias"])
    parts: dict[Value, Value] = {}
    for piece in members:
        with rewriter.builder.at(piece.node):
            rest = piece.view.args[1:]
            parts[piece.node.result] = emitter(rewriter).call(piece.view.op, whole, *rest, **piece.view.kwargs)
    set_layouts(rewriter, parts, plan)
    views = [piece.view for piece in members]
    for piece in members:
        rewriter.erase(piece.node)
    erase_dead(rewriter, list(dict.fromkeys(views)))


hoist_products = Pass(
    "hoist-products",
    "%1 = linear (select %x, 0, 0), %w; %2 = linear (select %x, 0, 1), %w   ==>   selects of linear %x, %w",
    _run,
    rounding=True,
)
