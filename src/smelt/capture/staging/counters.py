"""Counters that hold one number are one number of the graph, and what is computed of it is computed once.

    for step_t in steps: step_t += 1; step = step_t.item(); lr / (1 - 0.9**step)        (an optimizer's update)

    %1 = item %step_1;  %2 = pow 0.9, %1;  ...       ==>      the same
    %3 = item %step_2;  %4 = pow 0.9, %3;  ...                %3 = item %step_2;  expect(%3 == %1, True)

An optimizer counts the steps of each parameter apart, and computes a dozen numbers of each count: as many operators as
the update itself has.

Invariant: counters that held one number when the program was recorded, and that it has just advanced by as much. Calls
of this graph keep them at one number, so the expectation fails only where somebody sets one of them otherwise, and the
program is then recorded anew. Each run of a region has counters of its own, and only what all paths come by is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from smelt.capture.recording.tensor_slots import Slot, StateSlot
from smelt.capture.staging.fakes.symbols import ScalarSlot, is_staged, slot_of
from smelt.ir import BOOL, FLOAT, INT, Graph, Value

Key: TypeAlias = Any

_RECENT = 64
"""Records among which a counter's last write is: it is read soon."""


class Counters:
    """Those of one run of a region."""

    def __init__(self) -> None:
        self._first: dict[Key, ScalarSlot] = {}
        self._made: dict[Key, ScalarSlot] = {}
        self._of_them: set[Slot] = set()

    def first(self, found: ScalarSlot, step: float) -> ScalarSlot:
        """The number of the first counter that held this one's number, and was advanced by as much."""
        number = found.worlds[0]
        if number != number:  # NaN, which equals nothing
            return found
        first = self._first.setdefault((type(step), step, type(number), number), found)
        self._of_them.add(first)
        return first

    def key(self, op: str, args: Sequence[object]) -> Key | None:
        """What the number that an operator computes of counters follows from; None for all other operators."""
        if not self._of_them or (op == "py.call" and not str(args[0]).startswith("math.")):
            return None
        slots = [slot_of(arg) for arg in args if is_staged(arg)]
        if self._of_them.isdisjoint(slots):
            return None
        rest = [arg for arg in args if not is_staged(arg)]
        if any(type(slot) is not ScalarSlot for slot in slots) or any(type(a) not in (int, float, str) for a in rest):
            return None
        return op, *[slot_of(arg) if is_staged(arg) else (type(arg), repr(arg)) for arg in args]

    def made(self, key: Key) -> ScalarSlot | None:
        """The number that was computed so."""
        return self._made.get(key)

    def note(self, key: Key, slot: Slot) -> None:
        """An operator gave a value."""
        if type(slot) is ScalarSlot and slot.type in (BOOL, INT, FLOAT):
            self._made[key] = slot
            self._of_them.add(slot)


def step_of(slot: Slot, records: Sequence[Any]) -> int | float | None:
    """What the program has just added in place to a number from outside; None for any other tensor."""
    for record in reversed(records[-_RECENT:]):
        if isinstance(record, tuple) and any(made is slot for made in record[3]):
            info, noted, named = record[:3]
            is_counted = info.name == "aten.add_.Tensor" and isinstance(noted[0], StateSlot) and not named
            return noted[1] if is_counted and type(noted[1]) in (int, float) else None
    return None


def expects_counts(graph: Graph) -> bool:
    """Whether a graph holds only while counters are one number."""
    expected = (node.args[0] for node in graph.body if node.op == "expect")
    questions = (value.node for value in expected if isinstance(value, Value))
    return any(node is not None and node.op == "py.eq" and all(map(_is_read, node.args)) for node in questions)


def _is_read(arg: object) -> bool:
    return isinstance(arg, Value) and arg.node is not None and arg.node.op == "aten.item.default"
