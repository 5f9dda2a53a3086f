"""Compute of a product only the columns that constant indices read, and read them along diagonals without indices.

    %1 = bmm %a, %b             (512 columns)          %2 = slice %b, -1, 129, 384; %3 = flip %2, [-1]
    %2 = gather %1, -1, %i      (%i[p, q] = p - q + 256, of 128 x 128)
                                                  ==>  %4 = bmm %a, %3              (255 columns)
                                                       %5 = slice (view %4, [-1, 128 * 255]), -1, 127, 127 + 128 * 254
                                                       %6 = slice (view %5, [-1, 128, 254]), -1, 0, 128

So do relative positions in attention, whose scores by distance are gathered at the distances that there are. Along a
row of the last view the index goes up by one, from row to row down: a step of one row less one element. An index that
goes the other way reads the flipped columns of a right matrix that is static.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from smelt.analysis import is_static
from smelt.ir import Graph, Node, Value
from smelt.passes.base import Pass, PassContext, call_of, emitter
from smelt.passes.contents import constant_contents
from smelt.passes.layouts import replace_result
from smelt.passes.matching import Disturbances, is_autocast, is_used_once, static_tensor
from smelt.rewrite import Rewriter

_GATHER = "aten.gather.default"
_PRODUCTS = {"aten.bmm.default": ("self", "mat2"), "aten.matmul.default": ("self", "other")}

_MOST_COLUMNS = 0.75
"""How much of the columns may be read for it to pay to leave the rest out."""


@dataclass(frozen=True, slots=True)
class _Read:
    """What a constant index reads: columns from `first` to before `after`; `base` - p + q of these, or of them flipped,
    at (p, q), None where it does not go so.
    """

    first: int
    after: int
    base: int | None = None
    is_flipped: bool = False


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    gathers = [n for n in graph.walk() if n.op == _GATHER and not is_autocast(n)]
    if not gathers:
        return False
    found, disturbances = context.dependence(graph), Disturbances(graph)
    known: dict[Value, torch.Tensor | None] = {}
    for node in gathers:
        call = call_of(node)
        scores, index = call["self"], call["index"]
        product = _product(scores)
        if product is None or not isinstance(index, Value) or found.get(index) != "constant":
            continue
        if disturbances.between(rewriter, product, node):
            continue
        if index not in known:
            known[index] = constant_contents(graph, index)
        _, right = _operands(product)
        read = _read(node, known[index], is_right_static=is_static(right, found))
        if read is not None:
            _rewrite(rewriter, node, product, read)
    return rewriter.edits > 0


def _product(scores: object) -> Node | None:
    """The product that makes what is gathered, if nothing else reads it."""
    node = scores.node if isinstance(scores, Value) else None
    if node is None or node.op not in _PRODUCTS or not isinstance(scores, Value) or not is_used_once(scores):
        return None
    types = [static_tensor(v) for v in (*_operands(node), scores)]
    if is_autocast(node) or any(t is None or len(t.sizes) < 2 or 0 in t.sizes for t in types):
        return None
    return node if all(type(n) is int for t in types if t is not None for n in t.sizes) else None


def _operands(product: Node) -> tuple[Value, Value]:
    call = call_of(product)
    left, right = (call[name] for name in _PRODUCTS[product.op])
    assert isinstance(left, Value) and isinstance(right, Value)
    return left, right


def _read(gather: Node, index: torch.Tensor | None, *, is_right_static: bool) -> _Read | None:
    """What of its columns a gather reads, if they are few or lie along diagonals."""
    call = call_of(gather)
    scores = static_tensor(call["self"])
    if index is None or scores is None or call["dim"] not in (-1, len(scores.sizes) - 1):
        return None
    first, after = int(index.min()), int(index.max()) + 1
    columns = scores.sizes[-1]
    if first < 0 or after > columns:
        return None
    is_narrow = after - first <= _MOST_COLUMNS * columns
    read = _Read(first, after) if is_narrow else _Read(0, columns)
    if index.shape[:-1] == scores.sizes[:-1]:
        along = _diagonals(index, read, is_right_static=is_right_static)
        if along is not None:
            return along
    return read if is_narrow else None


def _diagonals(index: torch.Tensor, read: _Read, *, is_right_static: bool) -> _Read | None:
    """The same along diagonals."""
    rows, columns = index.shape[-2:]
    width = read.after - read.first
    if min(rows, columns) < 2 or width - 1 < columns:
        return None
    for is_flipped in (False, True) if is_right_static else (False,):
        at = read.after - 1 - index if is_flipped else index - read.first
        base = int(at.flatten()[0])
        wanted = base - torch.arange(rows)[:, None] + torch.arange(columns)
        if base <= rows and bool((at == wanted).all()):
            return _Read(read.first, read.after, base, is_flipped)
    return None


def _rewrite(rewriter: Rewriter, gather: Node, product: Node, read: _Read) -> None:
    left, right = _operands(product)
    index = call_of(gather)["index"]
    before, after = static_tensor(product.result), static_tensor(gather.result)
    assert before is not None and after is not None
    width = read.after - read.first
    with rewriter.builder.at(gather):
        emit = emitter(rewriter)
        if width < before.sizes[-1]:
            right = emit.call("aten.slice.Tensor", right, -1, read.first, read.after)
        if read.is_flipped:
            right = emit.call("aten.flip.default", right, (-1,))
        made = emit.call(product.op, left, right)
        if read.base is None:
            made = emit.call(_GATHER, made, -1, emit.call("aten.sub.Tensor", index, read.first))
        else:
            *outer, rows, columns = after.sizes
            flat = emit.call("aten.view.default", made, (*outer, rows * width))
            flat = emit.call("aten.slice.Tensor", flat, -1, read.base, read.base + rows * (width - 1))
            lines = emit.call("aten.view.default", flat, (*outer, rows, width - 1))
            made = emit.call("aten.slice.Tensor", lines, -1, 0, columns)
    replace_result(rewriter, gather, made)
    rewriter.erase(product)


narrow_gathers = Pass(
    "narrow-gathers",
    "%1 = bmm %a, %b; %2 = gather %1, -1, %i   ==>   %1 = bmm %a, (slice %b); %2 = a view of %1   (%i: constant)",
    _run,
    rounding=True,
)
