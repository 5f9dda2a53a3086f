"""What one compiled object knows of sizes and numbers that change: what its builds leave free, and what they may not.

Invariant: a wish of the user's that a call does not fit never changes an answer: it is told, and the call is compiled
as if nothing had been wished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smelt.capture import Captured
from smelt.capture.dynamic.spec import SizeGuard, Spot
from smelt.compiler.deciding.generalisation import Earlier, Freedom, freedom, is_state, may_be_free
from smelt.compiler.deciding.seen_calls import SeenCall, seen_call
from smelt.compiler.object.compiled_types import Entry
from smelt.compiler.sizes.dynamic_shapes import Wish, wishes
from smelt.compiler.sizes.size_texts import guard_that_fixes, readable
from smelt.diag import CaptureError
from smelt.diag.records import record


@record
class Look:
    """A call that is about to be compiled: what it looks like, what is to be free, and which wishes it does not fit."""

    call: SeenCall
    freedom: Freedom
    unfit: str = ""


MOST_FIXED = 2
"""Values that a program may fix a size or number at, after which it is left free in no further build."""

MOST_FIXED_STATE = 6
"""The same for a number of the program's state: a counter that is compared with one of its values passes it by."""


@dataclass
class Sight:
    """The choice for one object. refused: why a capture could not leave a size or number free.

    fixed: at which values of one that was left free the program held, where that was a single one in each build.
    strict: tensors that do not lie row by row in calls for which nothing could be left free.
    """

    target: Callable[..., Any]
    dynamic: bool | None
    shapes: Any = None
    refused: dict[Spot, str] = field(default_factory=dict)
    fixed: dict[Spot, set[int | float]] = field(default_factory=dict)
    strict: set[frozenset[str]] = field(default_factory=set)

    def look(self, earlier: Iterable[Earlier], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Look:
        """What is to be free when this call is compiled. Raises: SmeltError (S0304) where a wish has no such place."""
        wished = wishes(self.shapes, self.target, args, kwargs)
        problem = unfit(wished)
        call, earlier = seen_call(args, kwargs), tuple(earlier)
        self._note_grown(call, earlier)
        return Look(
            call, freedom(call, earlier, self.dynamic, () if problem else wished, self.refused, self.strict), problem
        )

    def forget(self) -> None:
        """What could not be free may be now: more of the program's state is among its arguments."""
        for known in (self.refused, self.fixed, self.strict):
            known.clear()

    def _note_grown(self, call: SeenCall, earlier: Sequence[Earlier]) -> None:
        """A list or a dict that is longer at each call makes of each call another kind, whatever is free in it."""
        grown = [found[0] for before in earlier if (found := before.call.grown(call)) is not None]
        for place in dict.fromkeys(grown):
            if grown.count(place) >= MOST_FIXED:
                self.refused[place, None] = "it holds another number of items at each call, and each number is an entry"

    def settle(self, look: Look, entry: Entry) -> Earlier:
        """The call with what became free in its entry; what could not is compiled as it stands from now on."""
        if look.freedom and not entry.forms:
            if look.call.odd:
                self.strict.add(look.call.odd)  # of calls without these tensors it tells nothing
            else:
                self.refuse(look, entry.why_fixed)
        self._note_fixed(look, entry)
        return Earlier(look.call, entry.free)

    def _note_fixed(self, look: Look, entry: Entry) -> None:
        """A program that has another answer for each value gains nothing from builds that leave it free."""
        captured = getattr(entry, "captured", None)
        if not isinstance(captured, Captured) or captured.sizes is None or captured.signature is None:
            return
        facts, places = captured.sizes, captured.signature.inputs
        for name, number in facts.fixed.items():
            origin = facts.symbols[name]
            spot = (places[origin.input], origin.dim)
            tried = look.freedom.entries.get(spot)
            if tried is None or tried.kind == "named" or not may_be_free(spot, number):
                continue
            values = self.fixed.setdefault(spot, set())
            values.add(number)
            if len(values) >= (MOST_FIXED_STATE if is_state(spot) else MOST_FIXED):
                guard = guard_that_fixes(facts, name)
                line = f" at {guard.span}" if guard is not None and guard.span is not None else ""
                use = f": {guard.use} (do that outside of what is compiled)" if guard is not None and guard.use else ""
                self.refused[spot] = f"each of its values is a program of its own{line}{use}"

    def broken(self, look: Look, entry: Entry) -> CaptureError | None:
        """What the program does to sizes and numbers that `dynamic_shapes` names, where that cannot be."""
        captured = getattr(entry, "captured", None)
        return violation(look.freedom, captured) if isinstance(captured, Captured) else None

    def refuse(self, look: Look, why: str) -> None:
        """Note that what was to be free cannot be."""
        tried = [spot for spot in look.freedom.entries if spot not in look.freedom.hints]
        self.refused.update(dict.fromkeys(tried, why))


def violation(freedom: Freedom, captured: Captured, *, is_for_one: bool = False) -> CaptureError | None:
    """The error (S0111) where the program fixes a size or number that was named, or makes two of them equal.

    is_for_one: also where it is fixed at 0 or 1, of which a further capture would be rid.
    """
    facts, signature = captured.sizes, captured.signature
    if facts is None or signature is None:
        return None
    for name, origin in facts.symbols.items():
        entry = freedom.entries.get((signature.inputs[origin.input], origin.dim))
        if entry is None or entry.kind != "named":
            continue
        if name in facts.fixed and (is_for_one or facts.fixed[name] not in (0, 1)):
            advice = f"change the line, or leave {name} out of dynamic_shapes"
            return _fixed(name, f"{facts.fixed[name]}", advice, guard_that_fixes(facts, name))
        other = facts.equal.get(name, "")
        if other != entry.name and other in {e.name for e in freedom.entries.values()}:
            return _fixed(name, other, f"call both {other}", guard_that_fixes(facts, name))
    return None


def _fixed(name: str, value: str, advice: str, guard: SizeGuard | None) -> CaptureError:
    return CaptureError(
        f"{name} was to stay free, and the program holds only where it is {value}",
        None if guard is None else guard.span,
        why="this line needs its value" if guard is None else f"this line needs {readable(guard.text)}",
        fix=advice,
        code="S0111",
    )


def unfit(wished: Sequence[Wish]) -> str:
    """The first wish that this call's sizes do not fit, as a sentence; empty where all do."""
    first: dict[str, Wish] = {}
    for wish in wished:
        entry, value = wish.entry, wish.value
        if (entry.low is not None and value < entry.low) or (entry.high is not None and value > entry.high):
            low, high = "" if entry.low is None else entry.low, "" if entry.high is None else entry.high
            return f"{wish.shown} is {value}, and dynamic_shapes says {entry.name or 'it'} is in {low}..{high}"
        if entry.name is not None:
            before = first.setdefault(entry.name, wish)
            if before.value != value:
                return (
                    f"{before.shown} is {before.value} and {wish.shown} is {value}, and dynamic_shapes calls both "
                    f"{entry.name}"
                )
    return ""
