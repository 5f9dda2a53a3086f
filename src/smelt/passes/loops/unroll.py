"""Counted loops as their iterations, one after the other, where that makes faster code.

%2: i64[2, _] = for %i in (0, 3, 1) with (%1: i64[2, _] = %0: i64[2, 5]) { ...; yield cat([%1, %n], 1) }
    ==>   %a: i64[2, 6] = cat([%0, %n0], 1); ...; %2: i64[2, 8] = cat([%b, %n2], 1)

Tensors that grow have known sizes then: a loop of them would be called from Python. Few small iterations are fused with
each other. Lists are taken apart. Loops with regions inside, and those that come to too many operators, stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.diag import InternalError, SmeltError
from smelt.ir import Arg, Graph, ListType, Node, Region, TensorType, TupleType, Type, Value, map_values
from smelt.ops.convert import bind
from smelt.ops.python.python_ops import python_op
from smelt.ops.typing import infer
from smelt.passes.base import Pass, PassContext
from smelt.passes.inline import take_apart
from smelt.rewrite import Rewriter, known_range

MOST_GROWING = 4096
"""Operators of a loop of tensors that grow, or that picks from lists: it would go through Python."""
MOST, MOST_TRIPS = 1024, 64
"""Operators of any other loop, and its iterations unless it fills a list."""
_MOST_ASIDE = 256
"""Operators of one that puts aside what its iterations make, for a gradient: that goes through a loop, too."""

_SIZES = ("aten.sym_size.int", "aten.sym_numel.default", "aten.dim.default")


class _Stays(Exception):
    """Sizes are not known even then, or a list is used as a whole."""


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    for node in list(graph.body):
        if _pays(node):
            _unroll(rewriter, node)
    return rewriter.edits > 0


def _pays(node: Node) -> bool:
    """Whether a node is a counted loop that is faster unrolled, and not too long."""
    numbers = known_range(node)
    if numbers is None:
        return False
    (body,) = node.regions
    trips = len(numbers)
    operators = trips * sum(1 for _ in body)
    if any(inner.regions for inner in body) or operators > MOST_GROWING:
        return False
    if operators <= (_MOST_ASIDE if _puts_aside(body) else MOST) and (trips <= MOST_TRIPS or _has_list(node)):
        return True
    if any(inner.op != "py.append" and _has_list(inner) for inner in body):
        return True
    # It begins with tensors of known sizes and goes on with others.
    pairs = zip(node.args[3:], body.params[1:], strict=True)
    return any(isinstance(a, Value) and _is_known(a.type) and not _is_known(p.type) for a, p in pairs)


def _puts_aside(body: Region) -> bool:
    """Whether a loop fills a tensor by its number, and does nothing else with it."""
    return any(
        node.op == "aten.select_scatter.default" and node.args[0] in body.params and node.args[3:] == (body.params[0],)
        and node.result in body.yields and sum(node.result.users.values()) == 1
        for node in body
    )  # fmt: skip


def _has_list(node: Node) -> bool:
    return any(isinstance(value.type, ListType) for value in (*node.operands(), *node.results))


def _is_known(type_: Type) -> bool:
    if isinstance(type_, TupleType):
        return all(map(_is_known, type_.elements))
    return not isinstance(type_, ListType) and (not isinstance(type_, TensorType) or type_.is_static)


def _unroll(rewriter: Rewriter, node: Node) -> None:
    """Put the iterations in the loop's place, if all sizes are known then."""
    (body,) = node.regions
    made: list[Node] = []
    try:
        carried = [_taken_apart(arg) for arg in node.args[3:]]
        for index in known_range(node) or ():
            mapping: dict[Value, Arg] = dict(zip(body.params, (index, *carried), strict=True))
            for inner in body:
                with rewriter.builder.at(node):
                    _copy(rewriter, inner, mapping, made)
            carried = [_mapped(arg, mapping) for arg in body.yields]
        with rewriter.builder.at(node):
            results = [_whole(rewriter, r, arg, made) for r, arg in zip(node.results, carried, strict=True)]
    except (_Stays, SmeltError, InternalError, KeyError, TypeError, ValueError, RuntimeError):
        for added in reversed(made):
            rewriter.erase(added)
        return
    following = _behind(node)
    rewriter.replace_node(node, results)
    _learn(rewriter, following)


def _taken_apart(arg: Arg) -> Arg:
    """A list that is begun before the loop as its items. Raises: _Stays for any other."""
    items = _as_items(arg)
    if isinstance(items, Value) and isinstance(items.type, ListType):
        raise _Stays
    return items


def _mapped(arg: Arg, mapping: Mapping[Value, Arg]) -> Arg:
    return map_values(arg, lambda v: mapping[v] if v in mapping else _as_items(v))


def _as_items(arg: Arg) -> Arg:
    """A list of known items as these."""
    is_list = isinstance(arg, Value) and isinstance(arg.type, ListType) and arg.node is not None
    return tuple(arg.node.args) if is_list and arg.node.op == "py.list" else arg  # type: ignore[union-attr]


def _copy(rewriter: Rewriter, node: Node, mapping: dict[Value, Arg], made: list[Node]) -> None:
    """One node for what its operands are in this iteration. Raises: _Stays."""
    args = tuple(_mapped(arg, mapping) for arg in node.args)
    kwargs = {name: _mapped(arg, mapping) for name, arg in node.kwargs.items()}
    known = args if node.op == "py.list" else _known(node.op, args)
    if known is not None:
        mapping[node.result] = known
        return
    if not node.op.startswith("aten.") and _has_list(node):
        raise _Stays
    types = _types(node.op, args, kwargs)
    builder = rewriter.builder
    builder.span, builder.scope, builder.mode = node.span, node.scope, node.mode
    copy = builder.add(node.op, args, types, kwargs)
    rewriter.adopt(copy)
    made.append(copy)
    mapping.update(zip(node.results, copy.results, strict=True))


def _known(op: str, args: Sequence[Arg]) -> Arg | None:
    """What an operator of Python's gives where that is known: a longer list, an item, a number."""
    first = args[0] if args else None
    if op in _SIZES and isinstance(first, Value) and isinstance(first.type, TensorType) and first.type.is_static:
        if op == "aten.sym_size.int":
            return first.type.sizes[args[1]] if isinstance(args[1], int) else None
        return first.type.numel if op == "aten.sym_numel.default" else len(first.type.sizes)
    if not op.startswith("py."):
        return None
    match op, args:
        case "py.append", (tuple(), _):
            return (*first, args[1])  # type: ignore[misc]
        case "py.len", (tuple(),):
            return len(first)  # type: ignore[arg-type]
        case "py.getitem", (tuple(), int(at)):
            found: Arg = first[at]  # type: ignore[index]
            return found
    python = python_op(op)
    if python is None or python.rng or not all(isinstance(arg, int | float) for arg in args):
        return None
    answer = python.run(*[bind(arg, {}) for arg in args])
    return answer if type(answer) in (bool, int, float) else None


def _types(op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> tuple[Type, ...]:
    """Types of results, all known. Raises: _Stays."""
    if op == "unpack":
        (operand,) = args
        if not isinstance(operand, Value) or not isinstance(operand.type, TupleType):
            raise _Stays
        return operand.type.elements
    types = infer(op, args, kwargs)
    if not all(map(_is_known, types)):
        raise _Stays
    return types


def _whole(rewriter: Rewriter, result: Value, arg: Arg, made: list[Node]) -> Arg:
    """What stands behind the loop for a result of it: its items where an operator takes a list, else a list again."""
    if not isinstance(result.type, ListType) or not isinstance(arg, tuple):
        return arg
    if all(isinstance(user, Node) and user.op.startswith("aten.") for user in result.users):
        return arg
    whole = rewriter.builder.add("py.list", arg, [result.type])
    rewriter.adopt(whole)
    made.append(whole)
    return whole.result


def _behind(node: Node) -> list[Node]:
    region = node.parent
    assert isinstance(region, Region)
    nodes = list(region)
    return nodes[nodes.index(node) + 1 :]


def _learn(rewriter: Rewriter, nodes: Sequence[Node]) -> None:
    """Give the nodes behind a loop the sizes that are known now."""
    for node in nodes:
        if node.parent is None or node.regions or len(node.results) == 0:
            continue
        args = tuple(map(_as_items, node.args)) if node.op.startswith("py.") else node.args
        known = _known(node.op, args)
        if known is None and node.op == "py.sum" and len(args) == 1:
            known = _sum(rewriter, node, args[0])
        if known is not None:
            rewriter.replace_node(node, [known])
            continue
        if all(_is_known(r.type) for r in node.results):
            continue
        try:
            types = _types(node.op, node.args, node.kwargs)
        except (_Stays, SmeltError, InternalError, TypeError, ValueError, RuntimeError):
            continue
        with rewriter.builder.at(node):
            again = rewriter.builder.add(node.op, node.args, types, node.kwargs)
            rewriter.adopt(again)
        rewriter.replace_node(node, again.results)
        if again.op == "unpack":
            take_apart(rewriter, again)


def _sum(rewriter: Rewriter, node: Node, items: Arg) -> Value | None:
    """Python's sum of tensors of one type, as it adds them."""
    if not isinstance(items, tuple):
        return None
    values = [item for item in items if isinstance(item, Value)]
    type_ = values[0].type if values else None
    if not isinstance(type_, TensorType) or len(values) != len(items) or any(v.type != type_ for v in values):
        return None
    total: Value | None = None
    with rewriter.builder.at(node):
        for value in values:
            args: tuple[Arg, ...] = (value, 0) if total is None else (total, value)
            made = rewriter.builder.add("aten.add.Tensor", args, [type_])
            rewriter.adopt(made)
            total = made.result
    return total


unroll = Pass("unroll", "for %i in (0, 2, 1) with (%1: f32[_] = %0: f32[4]) { ... }   ==>   its iterations", _run)
