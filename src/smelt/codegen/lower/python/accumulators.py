"""Lists that a loop of free length fills, and that are joined behind it: one tensor from the start, row by row.

    %ys = for %i in (0, B, 1) with (%l = %list) { ...; %m = py.append(%l, %h); yield %m };  %y = stack(%ys)
        ==>   %y = for %i in (0, B, 1) with (%t = %empty) { ...; %u = index_put(%t, [%i], %h); yield %u }

Invariant: the graph that was given stays as it is. Nothing but the appends and what joins them sees the list, and the
rest of the loop is native, so that a row is written where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.lower.python.plain import is_number, is_plain_type
from smelt.diag import SmeltError
from smelt.diag.records import record
from smelt.ir import Arg, DType, Graph, MemoryFormat, Node, Region, TensorType, TupleType, Type, Value
from smelt.ir.sizes import ceil_div, is_symbolic
from smelt.ops.meta import CannotRun
from smelt.ops.typing import infer
from smelt.rewrite import Rewriter

_STACK = "aten.stack.default"
_JOINS = (_STACK, "aten.cat.default", "aten.concat.default")


@record
class _List:
    """A list in one place of a loop: what each turn appends, its first tensors, the only node that uses the result."""

    index: int
    append: Node
    element: TensorType
    first: tuple[Value, ...]
    join: Node


def with_rows(graph: Graph) -> Graph:
    """The graph itself where no such list is, else a copy in which they are tensors."""
    if not any(_lists_of(node) for node in graph.walk()):
        return graph
    copy = graph.clone()
    rewriter = Rewriter(copy)
    try:
        for node in list(copy.walk()):
            for found in _lists_of(node):
                _rewrite(rewriter, node, found)
    except (CannotRun, SmeltError, TypeError, ValueError, RuntimeError):
        return graph  # what uses the rows cannot be told their number
    return copy


def _lists_of(node: Node) -> list[_List]:
    """The lists of a loop, if it is native but for them."""
    if node.op != "for" or not all(isinstance(a, int) for a in node.args[:3]) or type(node.args[2]) is not int:
        return []
    if not any(map(is_symbolic, node.args[:2])) or node.args[2] == 0:
        return []
    found = [one for k in range(len(node.results)) if (one := _list_of(node, k)) is not None]
    appends = {one.append for one in found}
    return found if found and all(_is_native(n) for n in node.regions[0].walk() if n not in appends) else []


def _is_native(node: Node) -> bool:
    types = [v.type for v in (*node.operands(), *node.results)]
    return all(is_number(t) or is_plain_type(t) for t in types)


def _list_of(node: Node, k: int) -> _List | None:
    (body,) = node.regions
    init, param, last, result = node.args[3 + k], body.params[1 + k], body.yields[k], node.results[k]
    if not isinstance(init, Value) or init.node is None or init.node.op != "py.list" or not isinstance(last, Value):
        return None
    append = last.node
    if append is None or append.op != "py.append" or append.parent is not body or append.args[0] is not param:
        return None
    if param.users != {append: 1} or last.users != {body: 1}:
        return None
    values = (append.args[1], *init.node.args)
    tensors = [v for v in values if isinstance(v, Value)]
    element = tensors[0].type if tensors else None
    if len(tensors) != len(values) or not isinstance(element, TensorType) or not is_plain_type(element):
        return None
    if not all(isinstance(v.type, TensorType) and _is_like(v.type, element) for v in tensors):
        return None
    join = next(iter(result.users), None)
    if not isinstance(join, Node) or result.users != {join: 1} or not _is_join(join):
        return None
    return _List(k, append, element, tuple(tensors[1:]), join)


def _is_like(type_: TensorType, element: TensorType) -> bool:
    return (type_.dtype, type_.shape) == (element.dtype, element.shape)


def _is_join(node: Node) -> bool:
    return node.op in _JOINS and not node.kwargs and len(node.args) < 3 and all(type(a) is int for a in node.args[1:])


def _rewrite(rewriter: Rewriter, loop: Node, found: _List) -> None:
    start, stop, step = loop.args[:3]
    assert isinstance(start, int) and isinstance(stop, int) and isinstance(step, int)
    turns = ceil_div(stop - start, step) if step > 0 else ceil_div(start - stop, -step)
    if turns < 1:
        return
    count, sizes = turns + len(found.first), found.element.sizes
    whole = TensorType(found.element.dtype, (count, *sizes))
    made = rewriter.insert("aten.empty.memory_format", ((count, *sizes),), [whole], {"dtype": whole.dtype}, before=loop)
    table = made.result
    for row, value in enumerate(found.first):
        table = _put(rewriter, table, row, value, loop)
    (body,) = loop.regions
    param, result = body.params[1 + found.index], loop.results[found.index]
    init = loop.args[3 + found.index]
    rewriter.set_arguments(loop, tuple(table if i == 3 + found.index else a for i, a in enumerate(loop.args)))
    # Types of a copy that nobody has seen yet.
    param.type = result.type = whole
    at = _row(rewriter, found, body.params[0], start, step)
    row_value = found.append.args[1]
    assert isinstance(row_value, Value)
    rewriter.replace_node(found.append, [_put(rewriter, param, at, row_value, found.append)])
    joined = _joined(rewriter, found.join, result)
    rewriter.replace_node(found.join, [joined])
    _tell(joined)
    if isinstance(init, Value) and init.node is not None and not init.users:
        rewriter.erase(init.node)


def _row(rewriter: Rewriter, found: _List, index: Value, start: int, step: int) -> Arg:
    """The row of a turn."""
    at: Arg = index

    def computed(op: str, number: int) -> Arg:
        return rewriter.insert(op, (at, number), [index.type], before=found.append).result

    if type(start) is not int or start != 0:
        at = computed("py.sub", start)
    if step != 1:
        at = computed("py.floordiv", step)
    return computed("py.add", len(found.first)) if found.first else at


def _put(rewriter: Rewriter, table: Value, row: Arg, value: Value, before: Node) -> Value:
    kind: Type = TensorType(DType.I64, ())
    at = rewriter.insert("aten.scalar_tensor.default", (row,), [kind], {"dtype": DType.I64}, before=before).result
    return rewriter.insert("aten.index_put.default", (table, (at,), value), [table.type], before=before).result


def _joined(rewriter: Rewriter, join: Node, table: Value) -> Value:
    """The rows as a node joins them."""
    rows = table.type
    assert isinstance(rows, TensorType)
    is_stack = join.op == _STACK
    dim = join.args[1] if len(join.args) > 1 else 0
    assert isinstance(dim, int)
    dim %= len(rows.sizes) - (not is_stack)
    sizes = rows.sizes
    if dim != 0:
        # The rows' own dimension in front of the one that they are joined along.
        order = (*range(1, dim + 1), 0, *range(dim + 1, len(sizes)))
        sizes = tuple(rows.sizes[d] for d in order)
        seen = TensorType(rows.dtype, sizes, strides=tuple(rows.steps[d] for d in order))
        turned = rewriter.insert("aten.permute.default", (table, order), [seen], before=join).result
        dense = {"memory_format": MemoryFormat("contiguous_format")}
        table = rewriter.insert(
            "aten.clone.default", (turned,), [TensorType(rows.dtype, sizes)], dense, before=join
        ).result
    if is_stack:
        return table
    flat = (*sizes[:dim], sizes[dim] * sizes[dim + 1], *sizes[dim + 2 :])
    return rewriter.insert("aten.view.default", (table, flat), [TensorType(rows.dtype, flat)], before=join).result


def _tell(value: Value) -> None:
    """Give what follows from a tensor, whose size is known now, the types that follow.

    Raises: what typing raises; TypeError where regions take it.
    """
    for user in list(value.users):
        if isinstance(user, Region):
            if isinstance(user.owner, Node):
                raise TypeError("it leaves a region")
            continue
        if user.regions:
            raise TypeError("it is carried on")
        if user.op == "unpack":
            types: Sequence[Type] = value.type.elements if isinstance(value.type, TupleType) else ()
        else:
            types = infer(user.op, user.args, user.kwargs)
        for result, type_ in zip(user.results, types, strict=True):
            if result.type != type_:
                result.type = type_
                _tell(result)
