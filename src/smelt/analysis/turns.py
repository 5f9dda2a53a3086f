"""Which loops take a first turn, whatever the data is: what they begin with says so.

while with (%i = 0, %ok = True) { %1 = py.lt %i, 40; yield %1 } do ...      ==>      it takes a turn
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from smelt.ir import Arg, Node, Region, Value
from smelt.ops.python.python_ops import python_op

_NUMBERS: Final = (bool, int, float)


def takes_a_turn(node: Node) -> bool:
    """Whether a `for` or a `while` runs its body at least once; False where only a run can tell."""
    if node.op == "for":
        bounds = [bound for bound in node.args[:3] if type(bound) is int]
        return len(bounds) == 3 and bounds[2] != 0 and bool(range(*bounds))
    (test, *_), first = node.regions, node.args
    found = _yielded(test, dict(zip(test.params, first, strict=True)))
    return len(found) == 1 and found[0] is True


def _yielded(region: Region, known: Mapping[Value, Arg]) -> tuple[Arg, ...]:
    """What a region yields, with numbers for all that follow from numbers."""
    values = dict(known)

    def of(arg: Arg) -> Arg:
        return values.get(arg, arg) if isinstance(arg, Value) else arg

    for node in region:
        args = tuple(map(of, node.args))
        if node.op == "if" and type(args[0]) is bool:
            found = _yielded(node.regions[0 if args[0] else 1], values)
            values.update(zip(node.results, found, strict=True))
            continue
        operator = python_op(node.op)
        if operator is None or not operator.is_pure or node.kwargs or not all(type(arg) in _NUMBERS for arg in args):
            continue
        if not operator.throws(args):
            values[node.result] = operator.run(*args)
    return tuple(map(of, region.yields))
