"""What is known of counts at a point of the graph: how small they cannot be, and how they follow from one another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smelt.codegen.lower.plain import is_number
from smelt.codegen.lower.unknown.values import Count
from smelt.ir import Arg, Node, Value

_SWAPPED = {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge", "eq": "eq", "ne": "ne"}
_NEGATED = {"gt": "le", "le": "gt", "lt": "ge", "ge": "lt", "eq": "ne", "ne": "eq"}


class Facts:
    """least: a count is at least this. below: a count is at most another one less so much, or 0. totals: what
    counts add up to, and the most that this can be.
    """

    def __init__(self) -> None:
        self.least: dict[Value, int] = {}
        self.below: dict[Value, tuple[Value, int]] = {}
        self.totals: dict[tuple[Count, ...], tuple[Count, int]] = {}

    def at_least(self, count: Count) -> int:
        """The least that a count can be."""
        if not isinstance(count, Value):
            return count
        return max(self.least.get(count, 0), 0)

    @contextmanager
    def under(self, test: Arg, outcome: bool) -> Iterator[None]:
        """Where a condition has come out so."""
        saved = dict(self.least)
        self.learn(test, outcome)
        try:
            yield
        finally:
            self.least = saved

    def learn(self, test: Arg, outcome: bool) -> None:
        """Take note of how a condition came out."""
        found = lower_bound(test, outcome)
        if found is not None:
            count, least = found
            self.least[count] = max(self.least.get(count, 0), least)

    def shrinks(self, count: Count, start: Value) -> bool:
        """Whether a count is surely less than another one that is not 0."""
        total = 0
        while isinstance(count, Value) and count is not start:
            if count not in self.below:
                return False
            count, less = self.below[count]
            total += less
        return count is start and total > 0


def lower_bound(test: Arg, outcome: bool) -> tuple[Value, int] | None:
    """What a condition on a count says of it where it comes out so: the count, and the least that it is."""
    node = test.node if isinstance(test, Value) else None
    if node is None:
        return None
    if node.op == "py.not_":
        return lower_bound(node.args[0], not outcome)
    if node.op == "py.bool" and isinstance(node.args[0], Value) and is_number(node.args[0].type):
        found = _counted(node.args[0])
        return (found, 1) if outcome else None
    relation = node.op.removeprefix("py.")
    if relation not in _SWAPPED or len(node.args) != 2:
        return None
    left, right = node.args
    if isinstance(right, Value):
        left, right, relation = right, left, _SWAPPED[relation]
    if not isinstance(left, Value) or type(right) is not int:
        return None
    if not outcome:
        relation = _NEGATED[relation]
    count = _counted(left)
    if count is not left and right != 0:
        return None
    match relation:
        case "gt":
            return count, max(right + 1, 0)
        case "ge" | "eq":
            return count, max(right, 0)
        case "ne" if right == 0:
            return count, 1
    return None


def _counted(value: Value) -> Value:
    """The count that a number is a multiple of: it is 0 where that is."""
    while value.node is not None and value.node.op == "py.mul":
        left, right = value.node.args
        if not isinstance(left, Value) or type(right) is not int or right < 1:
            break
        value = left
    return value


def known_outcome(node: Node) -> bool | None:
    """What a comparison of a number with None gives."""
    if node.op not in ("py.eq", "py.ne", "py.is_none"):
        return None
    one, other = node.args if len(node.args) == 2 else (node.args[0], None)
    if isinstance(other, Value):
        one, other = other, one
    if other is not None or not isinstance(one, Value) or not is_number(one.type):
        return None
    return node.op == "py.ne"
