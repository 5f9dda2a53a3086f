"""Where each node of a pattern can lie at all: a filter over all pairs, before anything is tried.

Invariant: it drops no place of a match. For each pattern node, in program order, the program's nodes of its key are
asked whether their literals agree, whether the nodes that make their operands are places of the pattern's, and whether
no more nodes use their results. Its work is at most the pattern's nodes times the program's nodes of their keys.
"""

from __future__ import annotations

from smelt.ir import Arg, Node, TensorType, Value
from smelt.pattern import CALL_MODULE, NAMESPACE, ONE_OF, fits_module, short_name
from smelt.scheduling.finding.forms import counts_axes, is_arithmetic, is_idle, item_of, named_arguments
from smelt.scheduling.finding.patterns import Pattern
from smelt.scheduling.finding.target import Call, Target

Place = Node | Call


class Feasible:
    """The places of each pattern node; `steps` counts the pairs that were looked at."""

    def __init__(self, pattern: Pattern, target: Target, escaping: bool) -> None:
        self.pattern, self.target, self.escaping = pattern, target, escaping
        self.steps = 0
        self.places: dict[Node, list[Place]] = {}
        self._sets: dict[Node, set[Place]] = {}
        self._users: dict[Value, int] = {}
        self.arguments: dict[Node, dict[str, Arg]] = {}
        self.complete = self._fill()

    def allows(self, node: Node, place: Place) -> bool:
        """Whether a pattern node can lie there."""
        return place in self._sets[node]

    def arguments_of(self, node: Node) -> dict[str, Arg]:
        """The arguments of a program's node by name."""
        found = self.arguments.get(node)
        if found is None:
            found = self.arguments[node] = named_arguments(node)
        return found

    def _fill(self) -> bool:
        """Whether every node has a place."""
        keys = self.pattern.keys
        # A key that the program lacks ends it before any pair is looked at.
        if any(
            not node.op.startswith(NAMESPACE) and keys[node] not in self.target.by_key for node in self.pattern.nodes
        ):
            return False
        for node in self.pattern.nodes:
            found = [place for place in self._candidates(node) if self._fits(node, place)]
            if not found:
                return False
            self.places[node] = found
            self._sets[node] = set(found)
        return True

    def _candidates(self, node: Node) -> list[Place]:
        if node.op == CALL_MODULE:
            which, path_fits = str(node.args[0]), dict[str, bool]()
            found: list[Place] = []
            for call in self.target.calls:
                if call.path not in path_fits:
                    path_fits[call.path] = bool(call.path) and fits_module(
                        which, call.path, self.target.module(call.path)
                    )
                if path_fits[call.path]:
                    found.append(call)
            return found
        if node.op == ONE_OF:
            assert isinstance(node.args[0], tuple)
            names = {str(name) for name in node.args[0]}
            return [
                place
                for nodes in self.target.by_key.values()
                for place in nodes
                if place.op in names or short_name(place.op) in names
            ]
        return list(self.target.by_key.get(self.pattern.keys[node], ()))

    def _fits(self, node: Node, place: Place) -> bool:
        self.steps += 1
        if node.op.startswith(NAMESPACE):
            return True
        assert isinstance(place, Node)
        if len(node.results) != len(place.results):
            return False
        for mine, other in zip(node.results, place.results, strict=True):
            most = None if self.escaping else self.pattern.most_users(mine)
            if most is not None and self._count(other) > most:
                return False
        wanted, given = self.pattern.arguments[node], self.arguments_of(place)
        if wanted.keys() != given.keys():
            return False
        key = self.pattern.keys[node]
        swap = self.pattern.swapped(node)
        for name, arg in wanted.items():
            if swap and name in ("self", "other"):
                continue
            if not self._may_be(arg, given[name]) or (not counts_axes(key, name) and _differ(arg, given[name], place)):
                return False
        if not swap:
            return True
        a, b, c, d = wanted["self"], wanted["other"], given["self"], given["other"]
        straight = self._may_be(a, c) and self._may_be(b, d) and not _differ(b, d, place)
        return straight or (self._may_be(a, d) and self._may_be(b, c))

    def _may_be(self, wanted: Arg, given: Arg) -> bool:
        """Whether what makes an operand can lie at what makes the other."""
        if isinstance(wanted, tuple) and isinstance(given, tuple) and len(wanted) == len(given):
            return all(map(self._may_be, wanted, given))
        if not isinstance(wanted, Value):
            return True
        made_by = self.pattern.resolve(wanted).node
        if made_by is None or made_by not in self._sets or made_by.op.startswith(NAMESPACE):
            return True
        return isinstance(given, Value) and given.node is not None and given.node in self._sets[made_by]

    def _count(self, value: Value) -> int:
        """How many uses a value has that are more than questions of sizes."""
        found = self._users.get(value)
        if found is None:
            found = sum(not is_idle(user) and not _asks_sizes(user) for user in value.users)
            self._users[value] = found
        return found


def _asks_sizes(user: object) -> bool:
    """Whether a use is of sizes, or of an item: whether it lies in the match is seen later."""
    return isinstance(user, Node) and (
        is_arithmetic(user) or (bool(user.results) and item_of(user.results[0]) is not None)
    )


def _differ(wanted: Arg, given: Arg, place: Node) -> bool:
    """Whether two literals, neither of which is a list, are different."""
    if isinstance(wanted, (Value, tuple)) or isinstance(given, (Value, tuple)):
        return False
    return not same_literal(wanted, given, place)


def same_literal(wanted: Arg, given: Arg, place: Node) -> bool:
    """Whether literals are the same; 3 and 3.0 are where the result is of floats anyway."""
    if type(wanted) is type(given):
        # The text tells -0.0 from 0.0, and nan from all else.
        return repr(wanted) == repr(given)
    if {type(wanted), type(given)} == {int, float} and place.results:
        type_ = place.results[0].type
        return wanted == given and isinstance(type_, TensorType) and type_.dtype.is_floating
    return False
