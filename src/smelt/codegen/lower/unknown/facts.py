"""What is known of counts at a point of the graph: how small they cannot be, and how they follow from one another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from smelt.codegen.lower.python.plain import is_number
from smelt.codegen.lower.unknown.values import Count
from smelt.ir import Arg, Node, Value
from smelt.ir.python_operators import COMPARISON_NAMES

_COMPARE = {f"py.{name}": o.function for name, o in COMPARISON_NAMES.items()}


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
        for count, least in lower_bounds(test, outcome):
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


def comparisons(test: Arg, outcome: bool) -> Iterator[tuple[Value, str, Arg]]:
    """What holds of numbers where a condition comes out so, also where it is one of several (`a and b`)."""
    node = test.node if isinstance(test, Value) else None
    if node is None:
        return
    if node.op == "py.not_":
        yield from comparisons(node.args[0], not outcome)
    elif node.op == "if":
        which = node.results.index(test)  # type: ignore[arg-type]
        then, other = (region.yields[which] for region in node.regions)
        for answer, mine, never in ((True, then, other), (False, other, then)):
            if never is (not outcome):
                yield from comparisons(node.args[0], answer)
                yield from comparisons(mine, outcome)
    elif node.op == "py.bool" and isinstance(node.args[0], Value) and is_number(node.args[0].type):
        yield node.args[0], "ne" if outcome else "eq", 0
    elif node.op.removeprefix("py.") in COMPARISON_NAMES and len(node.args) == 2:
        (left, right), relation = node.args, node.op.removeprefix("py.")
        if isinstance(right, Value):
            left, right, relation = right, left, COMPARISON_NAMES[relation].swapped
        if isinstance(left, Value):
            yield left, relation if outcome else COMPARISON_NAMES[relation].negated, right


def lower_bounds(test: Arg, outcome: bool) -> Iterator[tuple[Value, int]]:
    """What a condition says of counts where it comes out so: each with the least that it is."""
    for left, relation, right in comparisons(test, outcome):
        count = _counted(left)
        if type(right) is not int or (count is not left and right != 0):
            continue
        match relation:
            case "gt":
                yield count, max(right + 1, 0)
            case "ge" | "eq":
                yield count, max(right, 0)
            case "ne" if right == 0:
                yield count, 1


def truth(test: Arg, known: Mapping[Value, Arg]) -> bool | None:
    """How a condition comes out where some values are known; None where these do not tell."""
    test = known.get(test, test) if isinstance(test, Value) else test
    if not isinstance(test, Value):
        return bool(test) if isinstance(test, (bool, int)) else None
    node = test.node
    if node is None:
        return None
    if node.op in ("py.not_", "py.bool"):
        found = truth(node.args[0], known)
        return found if found is None or node.op == "py.bool" else not found
    if node.op == "if":
        which, at = truth(node.args[0], known), node.results.index(test)
        ways = zip((True, False), node.regions, strict=True)
        found_all = {truth(region.yields[at], known) for answer, region in ways if which in (None, answer)}
        return found_all.pop() if len(found_all) == 1 else None
    compare = _COMPARE.get(node.op)
    if compare is None or len(node.args) != 2:
        return None
    left, right = (_number(arg, known) for arg in node.args)
    return None if left is None or right is None else compare(left, right)


def _number(arg: Arg, known: Mapping[Value, Arg]) -> int | None:
    """What a number is where some values are known."""
    arg = known.get(arg, arg) if isinstance(arg, Value) else arg
    if isinstance(arg, Value) and arg.node is not None and arg.node.op == "py.mul":
        left, right = (_number(part, known) for part in arg.node.args)
        return None if left is None or right is None else left * right
    return arg if type(arg) is int else None


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
