"""Is a graph well formed? Names, definitions before uses, users in step, regions that fit their node.

`verify(graph)` raises one VerifyError that shows the first fault on the graph's own text. What an op's arguments must
be is not known here: pass `check` (see `smelt.ops.check`) for that. What a region yields, and what a loop starts with,
may be of a narrower type than the result (f32[8] where f32[_] is carried, int where optional[int] is).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from smelt.diag import VerifyError
from smelt.ir.graph import Graph
from smelt.ir.nodes import Arg, Node, Region, Value, values_in
from smelt.ir.printer import arg_text, print_node
from smelt.ir.size_numbers import Size
from smelt.ir.type_order import arg_fits, type_of_arg
from smelt.ir.types import ANY, BOOL, INT, TensorType, Type

NodeCheck = Callable[[Node], Iterable[str]]
# Operators of the graph itself, whose form is known here.
_STRUCTURAL = frozenset(("if", "for", "while", "write", "param", "buffer", "captured", "const", "unpack", "expect"))


def verify(graph: Graph, check: NodeCheck | None = None) -> None:
    """Raise VerifyError (S0202) unless the graph is well formed; `check` yields further faults of one node."""
    for node, fault in faults(graph, check):
        where = node.span if node is not None else None
        shown = print_node(node) if node is not None else ""
        raise VerifyError(
            f"graph {graph.name} is not well formed: {fault}",
            where,
            why=f"at\n       {shown.splitlines()[0]}" if shown else "",
            fix="the pass or the text that made this graph is wrong; parse and verify it after each step to find which",
            code="S0202",
        )


def faults(graph: Graph, check: NodeCheck | None = None) -> Iterator[tuple[Node | None, str]]:
    """All faults with the node they are at."""
    values = list(graph.values())
    names = [v.name for v in values]
    if len(set(names)) < len(names):
        for name, count in Counter(names).items():
            if count > 1:
                yield None, f"%{name} is defined {count} times"
    uses = _Uses(frozenset(values))
    yield from _region_faults(graph.body, set(), uses, check)
    for value in values:
        if value in uses.wrong or sum(value.users.values()) != uses.count.get(value, 0):
            yield value.node, f"the users of %{value.name} are out of step with the arguments"


class _Uses:
    """How often each value of a graph is used. wrong: values that say so otherwise of a user."""

    def __init__(self, values: frozenset[Value]) -> None:
        self.values = values
        self.count: dict[Value, int] = {}
        self.wrong: set[Value] = set()

    def of(self, used: Sequence[Value], user: Node | Region, visible: set[Value]) -> Iterator[str]:
        """Count the uses by one user; what is wrong with them."""
        count = self.count
        for value in used:
            if value not in self.values:
                yield f"%{value.name} is not defined in this graph"
                continue
            count[value] = count.get(value, 0) + 1
            if value not in visible:
                yield f"%{value.name} is used before it is defined"
            if value.users.get(user) != used.count(value):
                self.wrong.add(value)


def _region_faults(
    region: Region,
    visible: set[Value],
    uses: _Uses,
    check: NodeCheck | None,
) -> Iterator[tuple[Node | None, str]]:
    mine = list(region.params)
    visible.update(mine)
    for param in region.params:
        if param.owner is not region:
            yield None, f"%{param.name} does not belong to the region whose parameter it is"
    count = 0
    for node in region:
        count += 1
        if node.parent is not region:
            yield node, "the node does not know its region"
            visible.difference_update(mine)
            return
        for fault in uses.of(tuple(node.operands()), node, visible):
            yield node, fault
        for inner in node.regions:
            if inner.owner is not node:
                yield node, "a region does not know its node"
            yield from _region_faults(inner, visible, uses, check)
        if node.op in _STRUCTURAL:
            for fault in _shape_faults(node):
                yield node, fault
        if check is not None:
            for fault in check(node):
                yield node, fault
        for result in node.results:
            if result.owner is not node:
                yield node, f"%{result.name} does not know its node"
            visible.add(result)
            mine.append(result)
    if count != region.size:
        yield None, f"a region says it holds {region.size} nodes, and holds {count}"
    for fault in uses.of(tuple(v for arg in region.yields for v in values_in(arg)), region, visible):
        yield region.owner if isinstance(region.owner, Node) else None, fault
    # Nothing of a region is seen outside it.
    visible.difference_update(mine)


def _shape_faults(node: Node) -> Iterator[str]:
    match node.op:
        case "if":
            yield from _if_faults(node)
        case "for":
            yield from _for_faults(node)
        case "while":
            yield from _while_faults(node)
        case "write":
            yield from _write_faults(node)
        case "expect":
            if len(node.args) != 2 or not isinstance(node.args[0], Value) or node.results:
                yield "expect takes a value and what it must be, and has no result"
            elif not isinstance(node.args[1], bool | int | float | complex | str | None):
                yield "expect compares with a plain number, a text or None"
        case "param" | "buffer" | "captured":
            if len(node.args) != 1 or not isinstance(node.args[0], str) or len(node.results) != 1:
                yield f"{node.op} takes one name and has one result"
        case "const":
            if len(node.args) != 1 or len(node.results) != 1 or not isinstance(node.results[0].type, TensorType):
                yield "const takes its data and has one tensor result"
        case "unpack":
            if len(node.args) != 1 or not isinstance(node.args[0], Value):
                yield "unpack takes one value"


def _if_faults(node: Node) -> Iterator[str]:
    if len(node.regions) != 2 or len(node.args) != 1:
        yield "if takes one condition and has two regions"
        return
    if isinstance(node.args[0], Value) and not _is_condition(node.args[0].type):
        yield f"the condition is {node.args[0].type}, not bool or a one-element tensor"
    for region, name in zip(node.regions, ("then", "else"), strict=True):
        if region.params:
            yield f"the {name} region has parameters"
        yield from _yield_faults(region.yields, [r.type for r in node.results], f"the {name} region")


def _for_faults(node: Node) -> Iterator[str]:
    if len(node.regions) != 1 or len(node.args) < 3:
        yield "for takes start, stop, step and first values, and has one region"
        return
    (body,) = node.regions
    for bound in node.args[:3]:
        if not (type(bound) in (int, Size) or (isinstance(bound, Value) and bound.type == INT)):
            yield "start, stop and step of a for are integers"
    if not body.params or body.params[0].type != INT:
        yield "the first parameter of a for's region is the index, an int"
        return
    types = [r.type for r in node.results]
    yield from _carried_faults(body.params[1:], node.args[3:], types)
    yield from _yield_faults(body.yields, types, "the body")


def _while_faults(node: Node) -> Iterator[str]:
    if len(node.regions) != 2:
        yield "while has two regions"
        return
    test, body = node.regions
    types = [r.type for r in node.results]
    yield from _carried_faults(test.params, node.args, types)
    yield from _carried_faults(body.params, node.args, types)
    if len(test.yields) != 1 or (isinstance(test.yields[0], Value) and not _is_condition(test.yields[0].type)):
        yield "the test of a while yields one bool"
    yield from _yield_faults(body.yields, types, "the body")


def _write_faults(node: Node) -> Iterator[str]:
    if len(node.args) != 2 or len(node.results) != 1 or not isinstance(node.args[0], Value):
        yield "write takes a target and a value, and has one result"


def _is_condition(type_: Type) -> bool:
    return type_ in (BOOL, ANY) or (isinstance(type_, TensorType) and (not type_.is_static or type_.numel == 1))


def _carried_faults(params: list[Value], inits: tuple[Arg, ...], types: list[Type]) -> Iterator[str]:
    if not len(params) == len(inits) == len(types):
        yield f"{len(inits)} first values, {len(params)} parameters and {len(types)} results do not pair up"
        return
    for param, init, type_ in zip(params, inits, types, strict=True):
        if param.type != type_:
            yield f"%{param.name} is {param.type}, but the loop's result is {type_}"
        if not arg_fits(init, type_):
            yield f"{arg_text(init)} is {type_of_arg(init)}, but the loop carries {type_}"


def _yield_faults(yields: tuple[Arg, ...], types: list[Type], what: str) -> Iterator[str]:
    if len(yields) != len(types):
        yield f"{what} yields {len(yields)} values for {len(types)} results"
        return
    for arg, type_ in zip(yields, types, strict=True):
        if not arg_fits(arg, type_):
            yield f"{what} yields {arg_text(arg)}: {type_of_arg(arg)} where the result is {type_}"
