"""Bags of as many rows of a table each as gathers and sums, which kernels fuse with what is around them.

    %1, _, _, _ = embedding_bag %w, %i, [0, 4, 8]   ==>   %2 = gather %w, 0, %i; %1 = sum (view %2, [-1, 4, 64]), [1]

So does `nn.EmbeddingBag` of indices in two dimensions. Torch's operator enters its threads once for each table, and
they wait for each other. A gather refuses what the bag refuses, with an exception of the same type.
"""

from __future__ import annotations

from smelt.analysis.dependence import Dependence
from smelt.ir import DType, Graph, Node, Value
from smelt.passes.base import Pass, PassContext, call_of, emitter
from smelt.passes.contents import constant_contents
from smelt.passes.matching import is_autocast, static_tensor
from smelt.rewrite import Rewriter

_BAGS = "aten.embedding_bag.padding_idx"
_MODES = {0: "aten.sum.dim_IntList", 1: "aten.mean.dim"}


def _run(graph: Graph, context: PassContext) -> bool:
    nodes = [n for n in graph.walk() if n.op == _BAGS and not is_autocast(n)]
    if not nodes:
        return False
    rewriter, found = context.rewriter(graph), context.dependence(graph)
    for node in nodes:
        size = _size_of_bags(graph, node, found)
        if size is not None:
            _rewrite(rewriter, node, size)
    return rewriter.edits > 0


def _size_of_bags(graph: Graph, node: Node, found: dict[Value, Dependence]) -> int | None:
    """Rows of each bag, if all have as many and nothing is asked but their sums or means."""
    call = call_of(node)
    weight, indices, offsets = (static_tensor(call[name]) for name in ("weight", "indices", "offsets"))
    if weight is None or indices is None or offsets is None or any(result.users for result in node.results[1:]):
        return None
    if weight.dtype not in (DType.F32, DType.F64) or (indices.dtype, offsets.dtype) != (DType.I64, DType.I64):
        return None
    if call["mode"] not in _MODES or call["include_last_offset"] or call["per_sample_weights"] is not None:
        return None
    if call["padding_idx"] is not None or not all(type(n) is int and n for t in (weight, indices) for n in t.sizes):
        return None
    given = call["offsets"]
    if len(indices.sizes) != 1 or not isinstance(given, Value) or found.get(given) != "constant":
        return None
    starts = constant_contents(graph, given)
    if starts is None or starts.numel() == 0 or indices.sizes[0] % starts.numel():
        return None
    size = indices.sizes[0] // starts.numel()
    return size if starts.tolist() == list(range(0, indices.sizes[0], size)) else None


def _rewrite(rewriter: Rewriter, node: Node, size: int) -> None:
    call = call_of(node)
    mode = call["mode"]
    assert isinstance(mode, int)
    weight, indices = static_tensor(call["weight"]), static_tensor(call["indices"])
    assert weight is not None and indices is not None
    width = weight.sizes[1]
    with rewriter.builder.at(node):
        emit = emitter(rewriter)
        rows = emit.call("aten.view.default", call["indices"], (indices.sizes[0], 1))
        rows = emit.call("aten.expand.default", rows, (indices.sizes[0], width))
        read = emit.call("aten.gather.default", call["weight"], 0, rows)
        bags = emit.call("aten.view.default", read, (-1, size, width))
        made = emit.call(_MODES[mode], bags, (1,))
    if made.type == node.results[0].type:
        rewriter.replace_all_uses(node.results[0], made)
        rewriter.erase(node)


gathered_bags = Pass(
    "gathered-bags",
    "%1, _, _, _ = embedding_bag %w, %i, [0, 4, 8]   ==>   %2 = gather %w, 0, %i; %1 = sum (view %2, [-1, 4, 64]), [1]",
    _run,
    rounding=True,
)
