"""Lists that loops gather, as one tensor each: what is gradient of a list would have no graph.

    %l = for %i in (0, n, 1) with (%p = py.list()) {          %s = for %i in (0, n, 1) with (%t = empty([n, 3])) {
      ...; %q = py.append(%p, %v); yield %q            ==>      ...; %q = select_scatter(%t, %v, 0, i); yield %q
    }                                                         }
    %a = aten.stack.default(%l); %b = py.getitem(%l, 2)       %a = %s; %b = aten.select.int(%s, 0, 2)

Only where the loop does nothing else with the list, its elements have one known size, and what is read from it later
leaves the program as no view of it. Other lists that gradients lead to are refused (`reverse.of_no_tensor`).
"""

from __future__ import annotations

from smelt.autodiff.loops import carry, count_of, divided, is_sized, minus, yield_also
from smelt.ir import INT, Arg, Graph, ListType, Node, Region, TensorType, Value
from smelt.ops.effects import aliases
from smelt.ops.lowering import GraphEmitter
from smelt.rewrite import Rewriter, drop_results

_STACK, _GET, _LENGTH = "aten.stack.default", "py.getitem", "py.len"


def lists_as_tensors(graph: Graph, active: set[Value]) -> bool:
    """Make tensors of the lists among the active values, where that can be done; whether there was one."""
    rewriter = Rewriter(graph)
    found = False
    for node in list(graph.walk()):
        if node.op != "for" or node.parent is None or not active.intersection(node.results):
            continue
        for number in reversed(range(len(node.results))):
            if node.results[number] in active and (element := _gathered(node, number)) is not None:
                _gather(rewriter, node, number, element)
                found = True
    return found


def _gathered(loop: Node, number: int) -> Value | None:
    """What each iteration of a loop appends to a list that it carries and is empty before; None for any other list."""
    first, result = loop.args[3 + number], loop.results[number]
    (body,) = loop.regions
    param, last = body.params[1 + number], body.yields[number]
    if not isinstance(result.type, ListType) or not isinstance(first, Value) or first.node is None:
        return None
    appends = last.node if isinstance(last, Value) else None
    if first.node.op != "py.list" or first.node.args or appends is None or appends.op != "py.append":
        return None
    if appends.parent is not body or appends.args[0] is not param or dict(param.users) != {appends: 1}:
        return None
    element = appends.args[1]
    if not isinstance(element, Value) or not _is_dense(result.type.element) or element.type != result.type.element:
        return None
    return element if dict(appends.result.users) == {body: 1} and all(map(_reads, result.users)) else None


def _is_dense(type_: object) -> bool:
    return isinstance(type_, TensorType) and is_sized(type_) and type_.strides is None


def _reads(user: Node | Region) -> bool:
    """Whether a user of a list takes it as a whole or its elements, and no view of these leaves the program."""
    if not isinstance(user, Node) or user.op not in (_STACK, _GET, _LENGTH):
        return False
    return user.op != _GET or (_is_number(user.args[1]) and _stays_inside(user.result))


def _is_number(arg: Arg) -> bool:
    return type(arg) is int or (isinstance(arg, Value) and arg.type == INT)


def _stays_inside(value: Value) -> bool:
    for user in value.users:
        if not isinstance(user, Node) or user.regions or user.op in ("write", "unpack") or user.op.startswith("py."):
            return False
        for result, sources in zip(user.results, aliases(user), strict=True):
            if value in sources and not _stays_inside(result):
                return False
    return True


def _gather(rewriter: Rewriter, loop: Node, number: int, element: Value) -> None:
    b = GraphEmitter(rewriter.builder, rewriter.adopt)
    (body,) = loop.regions
    start, stop, step = loop.args[:3]
    type_, result = element.type, loop.results[number]
    assert isinstance(type_, TensorType)
    with b.builder.at(loop):
        count = count_of(b, start, stop, step)
        first = b.call("aten.empty.memory_format", (count, *type_.sizes), dtype=type_.dtype)
    param = carry(rewriter, loop, first, first.type)
    with b.builder.inside(body):
        at = divided(b, minus(b, body.params[0], start), step)
        yield_also(rewriter, body, b.call("aten.select_scatter.default", param, element, 0, at))
    whole = loop.results[-1]
    for user in list(result.users):
        assert isinstance(user, Node)
        with b.builder.at(user):
            read = _read(b, user, whole, count)
        rewriter.replace_node(user, (read,))
    last = body.yields[number]
    drop_results(rewriter, loop, (number,))
    if isinstance(last, Value) and last.node is not None:
        rewriter.erase(last.node)


def _read(b: GraphEmitter, user: Node, whole: Value, count: Arg) -> Arg:
    if user.op == _LENGTH:
        return count
    if user.op == _GET:
        return b.call("aten.select.int", whole, 0, user.args[1])
    dim = user.args[1] if len(user.args) > 1 else user.kwargs.get("dim", 0)
    if dim == 0:
        return whole
    return b.call("aten.contiguous.default", b.call("aten.movedim.int", whole, 0, dim))
