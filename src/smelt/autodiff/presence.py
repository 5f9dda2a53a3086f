"""Which gradients there are on some paths only: autograd gives None where no path from a result leads to a leaf.

    %y = if %c { %a = mul %x %w; yield %a } else { yield %x }        %w has a gradient where %c is true

What may be of a gradient is a set, as bits: it is absent, it is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from smelt.autodiff.activity import is_differentiated
from smelt.ir import STATE_OPS, Arg, Graph, Node, Region, Value, values_in

_ABSENT, _THERE = 1, 2
_State = dict[Value, int]


def is_uncertain(graph: Graph, active: Collection[Value], outputs: Iterable[int], wanted: Collection[Value]) -> bool:
    """Whether, for one of the outputs, data decide if a wanted value has a gradient."""
    if not any(node.regions for node in graph.body):
        return False
    for i in outputs:
        state: _State = dict.fromkeys(values_in(graph.outputs[i]), _THERE)
        _region(graph.body, state, active)
        if any(state.get(value) == _ABSENT | _THERE for value in wanted):
            return True
    return False


def _either(a: int, b: int) -> int:
    """What may be of a sum of two gradients."""
    return (a & b & _ABSENT) | ((a | b) & _THERE)


def _add(state: _State, arg: Arg, found: int) -> None:
    for value in values_in(arg):
        state[value] = _either(state.get(value, _ABSENT), found)


def _region(region: Region, state: _State, active: Collection[Value]) -> None:
    for node in reversed(list(region)):
        found = _ABSENT
        for result in node.results:
            found = _either(found, state.get(result, _ABSENT))
        if found == _ABSENT or node.op in STATE_OPS:
            continue
        if node.op == "if":
            _branch(node, state, active)
        elif node.regions:
            _loop(node, state, active)
        elif is_differentiated(node):
            for value in node.operands():
                if value in active:
                    _add(state, value, found)


def _branch(node: Node, state: _State, active: Collection[Value]) -> None:
    arms = []
    for region in node.regions:
        inner = _behind(region.yields, [state.get(r, _ABSENT) for r in node.results], active)
        _region(region, inner, active)
        arms.append(inner)
    for value in set().union(*arms):
        _add(state, value, arms[0].get(value, _ABSENT) | arms[1].get(value, _ABSENT))


def _loop(node: Node, state: _State, active: Collection[Value]) -> None:
    body, count = node.regions[-1], len(node.results)
    firsts, params = node.args[len(node.args) - count :], body.params[len(body.params) - count :]
    carried = [state.get(r, _ABSENT) for r in node.results]
    while True:
        inner = _behind(body.yields, carried, active)
        _region(body, inner, active)
        before = [inner.get(p, _ABSENT) for p in params]
        joined = [a | b for a, b in zip(carried, before, strict=True)]
        if joined == carried:
            break
        carried = joined
    is_run = _is_run(node)
    for first, found, once in zip(firsts, carried, before, strict=True):
        for value in values_in(first):
            if value in active:
                _add(state, value, once if is_run else found)
    for value, found in inner.items():
        if value not in params:
            _add(state, value, found if is_run else found | _ABSENT)


def _behind(yields: Iterable[Arg], found: Iterable[int], active: Collection[Value]) -> _State:
    state: _State = {}
    for arg, one in zip(yields, found, strict=True):
        for value in values_in(arg):
            if value in active:
                _add(state, value, one)
    return state


def _is_run(node: Node) -> bool:
    """Whether a loop surely has an iteration."""
    if node.op != "for":
        return False
    start, stop, step = node.args[:3]
    return isinstance(start, int) and isinstance(stop, int) and isinstance(step, int) and bool(range(start, stop, step))
