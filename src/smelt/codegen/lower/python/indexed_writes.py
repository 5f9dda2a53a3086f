"""Writes at numbers of the run as writes of parts: `out[i] = v`, `out[i, j] = v`.

    %a = select(%out, 0, %i); %b = select_scatter(%a, %v, 0, %j); %c = select_scatter(%out, %b, 0, %i)
        ==>   %c = index_put(%out, [%i, %j], %v)

Invariant: the graph that was given stays as it is. What `select` checks, `index_put` checks, too.
"""

from __future__ import annotations

from smelt.codegen.lower.python.plain import is_plain_type
from smelt.ir import Arg, DType, Graph, Node, TensorType, Value
from smelt.ir.sizes import equals
from smelt.ops.effects import effects
from smelt.ops.registry import arguments_of, schema_of
from smelt.rewrite import Rewriter

_SELECT, _SCATTER = "aten.select.int", "aten.select_scatter.default"


def with_parts(graph: Graph) -> Graph:
    """The graph itself where it writes at no number of the run, else a copy in which such writes are `index_put`."""
    if not any(_is_at_number(node) for node in graph.walk()):
        return graph
    copy = graph.clone()
    rewriter = Rewriter(copy)
    # Whole writes stand behind those of parts of their parts.
    for node in reversed(list(copy.walk())):
        if node.op == _SCATTER and node.parent is not None:
            _rewrite(rewriter, node)
    return copy


def _is_at_number(node: Node) -> bool:
    return node.op == _SCATTER and isinstance(_call(node)["index"], Value)


def _call(node: Node) -> dict[str, Arg]:
    schema = schema_of(node.op)
    assert schema is not None
    return arguments_of(schema, node.args, node.kwargs)


def _rewrite(rewriter: Rewriter, node: Node) -> None:
    """Put one write in the place of scatters into scatters, if one of their positions is a number of the run."""
    call = _call(node)
    whole, source = call["self"], call["src"]
    if not isinstance(whole, Value) or not is_plain_type(whole.type) or any(equals(n, 0) for n in _sizes(whole)):
        return
    dims = list(range(len(_sizes(whole))))
    at: dict[int, Arg] = {}
    chain = [node]
    while True:
        dim, index = call["dim"], call["index"]
        if type(dim) is not int or not isinstance(source, Value) or not is_plain_type(source.type):
            return
        at[dims.pop(dim)] = index
        inner = _part_of_part(chain[-1], source)
        if inner is None:
            break
        chain.append(inner)
        call = _call(inner)
        source = call["src"]
    if not any(isinstance(index, Value) for index in at.values()):
        return
    kind = TensorType(DType.I64, ())
    tensors = {
        d: rewriter.insert("aten.scalar_tensor.default", (index,), [kind], {"dtype": DType.I64}, before=node).result
        for d, index in at.items()
    }
    indices = tuple(tensors.get(d) for d in range(max(at) + 1))
    put = rewriter.insert("aten.index_put.default", (whole, indices, source), [node.result.type], before=node)
    rewriter.replace_node(node, [put.result])
    for inner in chain[1:]:
        rewriter.erase(inner)
    _sweep(rewriter, put, whole, at)


def _part_of_part(node: Node, source: Value) -> Node | None:
    """The node that makes what a node scatters, if it scatters into the very part that is written over."""
    inner = source.node
    if inner is None or inner.op != _SCATTER or inner.parent is not node.parent or source.users != {node: 1}:
        return None
    row = _call(inner)["self"]
    if not isinstance(row, Value) or row.node is None or row.node.op != _SELECT:
        return None
    return inner if _is_same(_call(row.node), _call(node)) else None


def _is_same(one: dict[str, Arg], other: dict[str, Arg]) -> bool:
    """Whether two calls select the same."""
    a, b = one["index"], other["index"]
    return one["self"] is other["self"] and one["dim"] == other["dim"] and _is_equal(a, b)


def _is_equal(a: Arg, b: Arg) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return equals(a, b)
    return a is b and isinstance(a, Value)


def _sweep(rewriter: Rewriter, put: Node, whole: Value, at: dict[int, Arg]) -> None:
    """Drop the views that only said where to write: their positions are checked by the write."""
    node = put.prev
    while node is not None and not node.regions and effects(node).is_pure:
        before = node.prev
        if node.op == _SELECT and not node.result.users and _leads_to(node, whole, at):
            rewriter.erase(node)
        node = before


def _leads_to(node: Node, whole: Value, at: dict[int, Arg]) -> bool:
    """Whether a view is at positions of these, dimension by dimension."""
    calls = [_call(node)]
    while calls[-1]["self"] is not whole:
        source = calls[-1]["self"]
        if not isinstance(source, Value) or source.node is None or source.node.op != _SELECT:
            return False
        calls.append(_call(source.node))
    dims = list(range(len(_sizes(whole))))
    for call in reversed(calls):
        dim, index = call["dim"], call["index"]
        wanted = at.get(dims.pop(dim)) if type(dim) is int else None
        if not _is_equal(index, wanted):
            return False
    return True


def _sizes(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.sizes
