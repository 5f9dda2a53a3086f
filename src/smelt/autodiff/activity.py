"""Which values of a functional graph depend on some of its inputs or state, as autograd sees it.

%0 = aten.detach.default(%x)          no: what is detached has no history
%1 = aten.mul.Tensor(%x, 2)           ["no_grad"]  no
%2 = aten.add.Tensor(%x, %1)          yes
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import reduce
from operator import and_, or_

from smelt.analysis.gradients import CUTS, is_recorded
from smelt.ir import (
    ANY,
    STATE_OPS,
    Arg,
    DictType,
    DType,
    Graph,
    ListType,
    Node,
    OptionalType,
    Region,
    TensorType,
    TupleType,
    Type,
    Value,
    map_values,
    values_in,
)  # fmt: skip
from smelt.ops.effects import alias_of, aliases, effects
from smelt.rewrite import Rewriter, known_range

_MOST_TRIPS = 16
"""Iterations that are gone through one by one to know what hangs on how many there are."""


def active_values(graph: Graph, sources: Iterable[Value]) -> set[Value]:
    """All values that depend on the sources differentiably, these among them."""
    found = set(sources)
    before = -1
    while before != len(found):  # again for loops, whose iterations hand values on
        before = len(found)
        _region(graph.body, found)
    return found


def _region(region: Region, found: set[Value]) -> None:
    for node in region:
        if node.regions:
            _control(node, found)
        elif is_differentiated(node) and any(v in found for v in node.operands()):
            found.update(r for r in node.results if may_depend(r.type))


def _control(node: Node, found: set[Value]) -> None:
    count = len(node.results)
    firsts = node.args[len(node.args) - count :] if node.op != "if" else ()
    for region in node.regions:
        carried = region.params[len(region.params) - count :] if firsts else []
        _hand_on(firsts, carried, found)
        _region(region, found)
        if len(region.yields) == count:
            _hand_on(region.yields, node.results, found)
            for other in node.regions if firsts else ():
                _hand_on(region.yields, other.params[len(other.params) - count :], found)
    if firsts:
        _hand_on(firsts, node.results, found)


def certain_values(graph: Graph, sources: Iterable[Value]) -> set[Value]:
    """Those of the active values that depend on the sources whatever path data choose."""
    found = dict.fromkeys(sources, ACTIVE)
    certain_marks(graph.body, found, lambda node, read, result: read if is_differentiated(node) else 0)
    return set(found)


Marks = dict[Value, int]
"""What is known of values, as bits."""
ACTIVE = 1
"""The value depends differentiably on the sources."""


def certain_marks(nodes: Iterable[Node], marks: Marks, step: Callable[[Node, int, Value], int]) -> None:
    """Go through nodes in order, and note of each value the marks that it has whatever path data choose.

    step: of a node without regions, the marks of a result where the operands have these (all together).
    """
    for node in nodes:
        if not node.regions:
            read = _marks_of(node.operands(), marks)
            if read:
                _mark(node.results, [step(node, read, result) for result in node.results], marks)
            continue
        if node.op == "if":
            for arm in node.regions:
                certain_marks(arm, marks, step)
            yielded = [[_marks_of(values_in(arg), marks) for arg in arm.yields] for arm in node.regions]
            _mark(node.results, [reduce(and_, arms) for arms in zip(*yielded, strict=True)], marks)
            continue
        _mark(node.results, _certain_of_loop(node, marks, step), marks)


def _certain_of_loop(node: Node, marks: Marks, step: Callable[[Node, int, Value], int]) -> list[int]:
    """The marks of a loop's results however often it turns."""
    count = len(node.results)
    carried = [_marks_of(values_in(arg), marks) for arg in node.args[len(node.args) - count :]]

    def after() -> list[int]:
        inside = dict(marks)
        for region in node.regions:
            _mark(region.params[len(region.params) - count :], carried, inside)
            certain_marks(region, inside, step)
        return [_marks_of(values_in(arg), inside) for arg in node.regions[-1].yields]

    numbers = known_range(node) or range(0)
    for _ in range(min(len(numbers), _MOST_TRIPS)):
        now = after()
        if now == carried:
            return carried
        carried = now
    if 0 < len(numbers) <= _MOST_TRIPS:
        return carried
    while True:  # it may end before any iteration
        both = [a & b for a, b in zip(carried, after(), strict=True)]
        if both == carried:
            return carried
        carried = both


def _marks_of(values: Iterable[Value], marks: Marks) -> int:
    return reduce(or_, (marks.get(value, 0) for value in values), 0)


def _mark(values: Iterable[Value], found: Iterable[int], marks: Marks) -> None:
    for value, mark in zip(values, found, strict=True):
        mark = mark if may_depend(value.type) else mark & ~ACTIVE
        if mark:
            marks[value] = mark


def _hand_on(args: Iterable[Arg], into: Iterable[Value], found: set[Value]) -> None:
    for arg, value in zip(args, into, strict=False):
        if may_depend(value.type) and any(v in found for v in values_in(arg)):
            found.add(value)


def is_differentiated(node: Node) -> bool:
    """Whether autograd records a node: not one that cuts histories, nor one where the program has switched it off."""
    return node.op not in CUTS and is_recorded(node)


def hidden_write(raw: Graph, requires: Callable[[Value], bool]) -> Node | None:
    """A node of a raw capture that writes where autograd does not look (without gradients, or through `detach`) into
    what may have a history. Behind it the history is still that of the old numbers, which no functional graph can say.

    requires: whether an input, or the result of a `param`, `buffer` or `captured` node, requires gradients.
    """
    for node in raw.walk():
        if node.regions or node.op == "write":
            continue
        for target in effects(node).writes:
            is_hidden = not is_recorded(node)
            value = target
            while (maker := value.node) is not None and not maker.regions and (source := alias_of(maker)) is not None:
                is_hidden |= maker.op in CUTS
                value = source
            has_history = requires(value) if maker is None or maker.op in STATE_OPS else is_differentiated(maker)
            if is_hidden and has_history and may_depend(target.type):
                return node
    return None


def base_of(arg: Arg) -> Value | None:
    """What an output of a functional graph is a view of in the end, an input or what an operator made; itself, if it
    is no view. None for what is no tensor."""
    value = arg if isinstance(arg, Value) and isinstance(arg.type, TensorType) else None
    while value is not None and (maker := value.node) is not None:
        if maker.op == "unpack":
            (packed,) = maker.args
            maker = packed.node if isinstance(packed, Value) else None
        shared = {v for found in aliases(maker) for v in found} if maker is not None and not maker.regions else set()
        if len(shared) != 1:
            return value
        value = shared.pop()
    return value


def is_view_of(graph: Graph, arg: Arg, sources: Collection[Value]) -> bool:
    """Whether an output of a functional graph is a view of a source that the graph does not write to."""
    base = base_of(arg)
    return base in sources and not any(node.op == "write" and node.args[0] is base for node in graph.body)


def detach_islands(graph: Graph) -> None:
    """Detach what is computed where gradients are off, so that it keeps that meaning without the mode."""
    rewriter = Rewriter(graph)
    builder = rewriter.builder
    for node in list(graph.walk()):
        if node.regions or node.parent is None or is_recorded(node):
            continue
        for result in node.results:
            if not isinstance(result.type, TensorType) or not may_depend(result.type):
                continue
            users = list(result.users)
            builder.region, builder.before = node.parent, node.next
            builder.span, builder.scope = node.span, node.scope
            made = builder.add("aten.detach.default", (result,), [result.type])
            rewriter.adopt(made)
            _hand_to(rewriter, users, {result: made.result})


def _hand_to(rewriter: Rewriter, users: Iterable[Node | Region], new: Mapping[Value, Value]) -> None:
    """Have these users take other values."""

    def swapped(arg: Arg) -> Arg:
        return map_values(arg, lambda v: new.get(v, v))

    for user in users:
        if isinstance(user, Node):
            kwargs = {name: swapped(arg) for name, arg in user.kwargs.items()}
            rewriter.set_arguments(user, tuple(map(swapped, user.args)), kwargs)
        else:
            rewriter.set_yields(user, tuple(map(swapped, user.yields)))


def may_depend(type_: Type) -> bool:
    """Whether a value of this type can have a gradient."""
    if isinstance(type_, TensorType):
        return type_.dtype is not DType.BOOL and not type_.dtype.is_integral
    if isinstance(type_, TupleType):
        return any(map(may_depend, type_.elements))
    if isinstance(type_, OptionalType):
        return may_depend(type_.element)
    if isinstance(type_, DictType):
        return may_depend(type_.value)
    return may_depend(type_.element) if isinstance(type_, ListType) else type_ == ANY
