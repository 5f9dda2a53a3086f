"""The search: a pattern laid over a program along its dataflow.

It starts where the pattern's rarest node can lie and follows operands, which leave no choice but the order of a
commutative operator's, then users. What is left to decide is kept as a list of equations; a choice that fails is taken
back. Invariant: what is found satisfies every equation; nothing of the program is changed. Work is counted in `steps`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from smelt.diag import ScheduleError
from smelt.ir import Arg, DType, Node, TensorType, Type, Value
from smelt.pattern import CALL_MODULE, ONE_OF, OPTIONAL, short_name
from smelt.scheduling.finding.equations import Numbers
from smelt.scheduling.finding.feasible import Feasible, Place
from smelt.scheduling.finding.forms import STATE, item_of
from smelt.scheduling.finding.patterns import Pattern, is_number
from smelt.scheduling.finding.target import Call, Target

# Of one place of the rarest node; far beyond what patterns with an answer need.
MOST_STEPS = 20_000
Goal: TypeAlias = tuple[str, Any, Any]
Goals: TypeAlias = "tuple[Goal, Goals] | None"


@dataclass(slots=True)
class Found:
    """A place of the whole pattern: what its values and numbers are, and the nodes that it covers."""

    values: dict[Value, Arg]
    places: dict[Node, Place]
    items: tuple[Node, ...]
    numbers: dict[Value, Any]
    compared: tuple[Arg, ...]


@dataclass(slots=True)
class _Choice:
    """Where a search can be resumed: what was known, what was to be shown, and the ways not tried."""

    known: int
    goals: Goals
    ways: Iterator[tuple[Goal, ...]]


@dataclass(slots=True)
class _State:
    """What is known along the current way, and the order in which it became known."""

    values: dict[Value, Arg] = field(default_factory=dict)
    places: dict[Node, Place] = field(default_factory=dict)
    taken: set[Place] = field(default_factory=set)
    items: dict[Node, None] = field(default_factory=dict)
    numbers: list[tuple[str, Node, Arg, Arg]] = field(default_factory=list)
    trail: list[tuple[str, Any]] = field(default_factory=list)

    def back_to(self, length: int) -> None:
        """Forget what became known later."""
        while len(self.trail) > length:
            kind, what = self.trail.pop()
            if kind == "value":
                del self.values[what]
            elif kind == "place":
                self.taken.discard(self.places.pop(what))
            elif kind == "item":
                del self.items[what]
            else:
                self.numbers.pop()


class Search:
    """All places of a pattern in a program."""

    def __init__(self, pattern: Pattern, target: Target, *, escaping: bool = False) -> None:
        self.pattern, self.target = pattern, target
        self.feasible = Feasible(pattern, target, escaping)
        self.steps = self.feasible.steps
        self._state = _State()

    def run(self) -> Iterator[Found]:
        """The places, in the order of where the rarest node lies; one may come in several readings.

        Raises: ScheduleError (S0604) where a place has too many readings to try them all.
        """
        if not self.feasible.complete:
            return
        anchor = min(self.pattern.nodes, key=lambda node: len(self.feasible.places[node]))
        for place in self.feasible.places[anchor]:
            yield from self._readings((("node", anchor, place), None))

    def _readings(self, goals: Goals) -> Iterator[Found]:
        state, choices = self._state, list[_Choice]()
        state.back_to(0)
        limit = self.steps + MOST_STEPS
        while True:
            self.steps += 1
            if self.steps > limit:
                raise ScheduleError(
                    f"the pattern {self.pattern.graph.name} matches one position in too many combinations",
                    why=f"{MOST_STEPS} steps did not try them all; some of its components are alike and not connected",
                    fix="return less of it, connect its components, or look for one of them at a time", code="S0604",
                )  # fmt: skip
            ways: Iterator[tuple[Goal, ...]] | None
            if goals is None:
                step = self._next_step()
                if step is None:
                    found = self._found()
                    if found is not None:
                        yield found
                    ways = iter(())
                else:
                    ways = iter(self._forward(step))
            else:
                goal, goals = goals
                ways = self._show(*goal)
            if ways is not None:
                choices.append(_Choice(len(state.trail), goals, ways))
                while choices:
                    last = choices[-1]
                    state.back_to(last.known)
                    way = next(last.ways, None)
                    if way is not None:
                        goals = last.goals
                        for goal in reversed(way):
                            goals = (goal, goals)
                        break
                    choices.pop()
                else:
                    return

    # --- showing one equation: None where it holds, else the ways in which it may (none: it does not)

    def _show(self, kind: str, wanted: Any, given: Any) -> Iterator[tuple[Goal, ...]] | None:
        if kind == "node":
            return self._show_node(wanted, given)
        return self._show_argument(wanted, given)

    def _show_argument(self, wanted: Arg, given: Arg) -> Iterator[tuple[Goal, ...]] | None:
        if isinstance(wanted, tuple):
            if not isinstance(given, tuple) or len(wanted) != len(given):
                return iter(())
            return iter([tuple(("argument", a, b) for a, b in zip(wanted, given, strict=True))])
        if not isinstance(wanted, Value):
            return None if wanted == given else iter(())
        value = self.pattern.resolve(wanted)
        if value in self._state.values:
            return None if self._state.values[value] is given else iter(())
        if not isinstance(given, Value):
            return iter(())
        if value in self.pattern.inputs:
            # A pattern's own weights only show where some stand.
            if value.node is None and not _type_fits(given.type, value.type):
                return iter(())
            self._know("value", value, given)
            return None
        return self._show_made(value, given)

    def _show_made(self, value: Value, given: Value) -> Iterator[tuple[Goal, ...]] | None:
        node, made_by = value.node, given.node
        if node is None:
            return iter(())
        if node.op == OPTIONAL:
            return iter(self._optional(value, given))
        if node.op == CALL_MODULE:
            around = [] if made_by is None else self.target.calls_of.get(made_by, [])
            calls = [call for call in around if given in call.outputs]
            return iter([(("node", node, call),) for call in calls if self.feasible.allows(node, call)])
        item = item_of(value)
        if item is not None:
            other = item_of(given)
            if other is None or other[1] != item[1] or made_by is None:
                return iter(())
            self._know("value", value, given)
            if made_by not in self._state.items:
                self._know("item", made_by, None)
            return iter([(("argument", item[0], other[0]),)])
        if made_by is None or node.results.index(value) >= len(made_by.results):
            return iter(())
        if node.op == "const":
            same = made_by.op == "const" and made_by.args == node.args and made_by.result.type == value.type
            if same:
                self._know("value", value, given)
            return None if same else iter(())
        if made_by.results[node.results.index(value)] is not given:
            return iter(())
        return iter([(("node", node, made_by),)])

    def _show_node(self, node: Node, place: Place) -> Iterator[tuple[Goal, ...]] | None:
        state = self._state
        if node in state.places:
            return None if state.places[node] is place else iter(())
        if place in state.taken or not self.feasible.allows(node, place) or not self._is_beside(place):
            return iter(())
        self._know("place", node, place)
        if isinstance(place, Call):
            if len(place.outputs) != 1 or not isinstance(node.args[1], tuple):
                return iter(())
            self._know("value", node.result, place.outputs[0])
            return self._show_argument(node.args[1], tuple(place.inputs))
        if node.op == ONE_OF:
            self._know("value", node.result, place.results[0])
            return self._show_one_of(node, place)
        for mine, other in zip(node.results, place.results, strict=True):
            self._know("value", mine, other)
        return self._show_operands(node, place)

    def _show_operands(self, node: Node, place: Node) -> Iterator[tuple[Goal, ...]]:
        wanted, given = self.pattern.arguments[node], self.feasible.arguments_of(place)
        orders = [given]
        if self.pattern.swapped(node) and given["self"] is not given["other"]:
            orders.append({**given, "self": given["other"], "other": given["self"]})
        for order in orders:
            goals: list[Goal] = []
            numbers: list[tuple[str, Node, Arg, Arg]] = []
            for name, arg in wanted.items():
                if _is_of_tensors(arg):
                    goals.append(("argument", arg, order[name]))
                else:
                    numbers.append((name, place, arg, order[name]))
            for equation in numbers:
                self._state.numbers.append(equation)
                self._state.trail.append(("number", None))
            yield tuple(goals)

    def _show_one_of(self, node: Node, place: Node) -> Iterator[tuple[Goal, ...]]:
        assert isinstance(node.args[1], tuple)
        given = [v for v in place.operands() if not is_number(v) and (v.node is None or v.node.op not in STATE)]
        if len(given) < len(node.args[1]):
            return iter(())
        return iter([tuple(("argument", a, b) for a, b in zip(node.args[1], given, strict=False))])

    def _optional(self, value: Value, given: Value) -> Iterator[tuple[Goal, ...]]:
        node, made_by = value.node, given.node
        assert node is not None and isinstance(node.args[0], tuple)
        names = {str(name) for name in node.args[0]}
        if made_by is not None and (made_by.op in names or short_name(made_by.op) in names):
            first = next(iter(made_by.operands()), None)
            if first is not None and made_by not in self._state.taken and self._is_beside(made_by):
                self._know("value", value, given)
                self._know("place", node, made_by)
                yield (("argument", node.args[1], first),)
        self._know("value", value, given)
        yield (("argument", node.args[1], given),)

    # --- going on where nothing is left to show

    def _next_step(self) -> Node | None:
        """A node of the pattern that has no place yet: one beside what has, if there is any."""
        state, left = self._state, None
        for node in self.pattern.steps:
            if node in state.places or all(result in state.values for result in node.results if result.users):
                continue
            if any(self.pattern.resolve(value) in state.values for value in node.operands()):
                return node
            left = left or node
        return left

    def _forward(self, node: Node) -> Iterator[tuple[Goal, ...]]:
        state = self._state
        known = [v for v in map(self.pattern.resolve, node.operands()) if v in state.values and not is_number(v)]
        bound = [value for v in known if isinstance(value := state.values[v], Value)]
        if node.op == OPTIONAL:
            for user in (user for value in bound for user in value.users if isinstance(user, Node)):
                for result in user.results:
                    yield (("argument", node.result, result),)
            yield from ((("argument", node.result, value),) for value in bound)
            return
        if node.results and item_of(node.results[0]) is not None:
            users = [user for value in bound for user in value.users if isinstance(user, Node)]
            for mine in node.results:
                if mine.users and mine not in state.values:
                    for result in (result for user in users for result in user.results):
                        yield (("argument", mine, result),)
                    return
            return
        if not known:
            yield from ((("node", node, place),) for place in self.feasible.places[node])
            return
        if node.op == CALL_MODULE:
            calls = [p for p in self.feasible.places[node] if isinstance(p, Call) and bound[0] in p.inputs]
            yield from ((("node", node, call),) for call in calls)
            return
        # All users of the value that has fewest.
        fewest = min(bound, key=lambda value: len(value.users), default=None)
        users = [] if fewest is None else [user for user in fewest.users if isinstance(user, Node)]
        yield from ((("node", node, user),) for user in users)

    def _found(self) -> Found | None:
        state = self._state
        numbers = Numbers(self.pattern, self.target, state.values)
        if not numbers.hold(state.numbers):
            return None
        compared = tuple(given for _, _, _, given in state.numbers)
        return Found(numbers.values, dict(state.places), tuple(state.items), dict(numbers.bound), compared)

    def _is_beside(self, place: Place) -> bool:
        """Whether a place lies in the same body as what has been found: a branch or loop is not entered halfway."""
        first = next(iter(self._state.places.values()), None)
        return first is None or _body(first) is _body(place)

    def _know(self, kind: str, what: Any, value: Any) -> None:
        state = self._state
        if kind == "value":
            state.values[what] = value
        elif kind == "place":
            state.places[what] = value
            state.taken.add(value)
        else:
            state.items[what] = None
        state.trail.append((kind, what))


def _body(place: Place) -> object:
    return place.nodes[0].parent if isinstance(place, Call) else place.parent


def _is_of_tensors(arg: Arg) -> bool:
    if isinstance(arg, tuple):
        return any(map(_is_of_tensors, arg))
    return isinstance(arg, Value) and not is_number(arg)


def _type_fits(type_: Type, wide: Type) -> bool:
    """Whether a tensor may stand where a parameter has this type: element type and sizes, where told."""
    if not isinstance(wide, TensorType):
        return True
    if not isinstance(type_, TensorType):
        return False
    if wide.dtype not in (type_.dtype, DType.UNKNOWN):
        return False
    if wide.shape is None:
        return True
    if type_.shape is None or len(type_.shape) != len(wide.shape):
        return False
    return all(type(want) is not int or want == have for have, want in zip(type_.shape, wide.shape, strict=True))
