"""Which sizes and numbers of a call are left free when it is compiled.

Static first: a number that nobody saw change is part of the program. One that differs from an earlier call that is
alike otherwise, or that only holds a list or a dict of another length, is free from then on, and so is what was free
for those. `dynamic=True` frees all from the first call,
`dynamic_shapes` what it names, `dynamic=False` nothing else.

Invariant: it only chooses; whatever it chooses, the guards of what is captured decide which calls an entry serves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace

from smelt.capture.dynamic.spec import Free, Spec, Spot
from smelt.capture.structure.state import STATE
from smelt.compiler.deciding.seen_calls import SeenCall
from smelt.compiler.sizes.dims import Entry
from smelt.compiler.sizes.dynamic_shapes import Wish
from smelt.diag.records import record


@record
class Freedom:
    """What is to be free in one capture. entries: by spot, a name and bounds where they were given.

    why: by spot, a phrase on why it is free. hints: for sizes that are 1 in this call, what they were in an earlier
    one: they are free only where they can be so as one size among others. larger: sizes that no call had as 1 yet,
    free from 2 on until one has. odd: tensors on whose strides nothing must depend where anything is free
    (`strides_of_ones`).
    """

    entries: Mapping[Spot, Entry] = field(default_factory=dict)
    why: Mapping[Spot, str] = field(default_factory=dict)
    hints: Mapping[Spot, int] = field(default_factory=dict)
    odd: frozenset[str] = frozenset()
    larger: frozenset[Spot] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.entries)

    def from_one(self) -> Freedom:
        """The same with sizes from 1 on at once, for a program that could not be widened later."""
        return replace(self, larger=frozenset())

    @property
    def specs(self) -> tuple[tuple[Spec, bool], ...]:
        """The same for captures, best first, and whether each is to be widened to sizes of 1.

        That failing, sizes without a bound may be 1, or may not; those that are 1 in this call stay so.
        """
        whole = {
            spot: Free(entry.name, 2 if spot in self.larger else entry.low, entry.high, self.hints.get(spot))
            for spot, entry in self.entries.items()
        }
        if all(spot[1] is None or spot in self.larger for spot in whole):
            return ((whole, False),)
        rest = ((self._spec(1), False), (self._spec(None), False))
        return ((whole, True), *(rest if self.entries.keys() - self.hints.keys() else ()))

    def _spec(self, least: int | None) -> Spec:
        return {
            (place, axis): Free(entry.name, self._low((place, axis), entry, least), entry.high)
            for (place, axis), entry in self.entries.items()
            if (place, axis) not in self.hints
        }

    def _low(self, spot: Spot, entry: Entry, least: int | None) -> int | None:
        if entry.low is not None or spot[1] is None:
            return entry.low
        return 2 if spot in self.larger else least


NO_FREEDOM = Freedom()
_MOST_LISTED = 64  # numbers of lists that grow: each is one more input


@record
class Earlier:
    """A call that an entry was made for, and what is free in that entry."""

    call: SeenCall
    free: frozenset[Spot]


def freedom(
    call: SeenCall,
    earlier: Iterable[Earlier],
    dynamic: bool | None,
    wishes: Iterable[Wish],
    refused: Mapping[Spot, str],
    strict: Collection[frozenset[str]] = (),
) -> Freedom:
    """What is to be free when this call is compiled. Sizes of tensors that are `odd` are not.

    refused: spots of which a capture said that they cannot be free. strict: sets of odd tensors with which the
    program's results follow from their strides.
    """
    wishes = tuple(wishes)
    if not call.is_ordinary or (call.odd and (wishes or call.odd in strict)):
        return NO_FREEDOM
    earlier = tuple(earlier)
    entries: dict[Spot, Entry] = {}
    why: dict[Spot, str] = {}
    auto = Entry("auto")
    for spot in call.values:
        if is_state(spot):
            entries[spot], why[spot] = auto, "the program changes it"
    for spot, reason in _changed(call, earlier) if dynamic is None else _all(call) if dynamic else ():
        entries[spot], why[spot] = auto, reason
    listed = _in_grown(call, earlier) if dynamic is None else frozenset()
    for spot in listed:
        entries[spot], why[spot] = auto, "it stands in a list that grows"
    for wish in wishes:
        spot = wish.place, wish.axis
        if wish.entry.kind == "static":
            entries.pop(spot, None)
        else:
            entries[spot], why[spot] = wish.entry, "dynamic_shapes names it"
    ones = [s for s, e in entries.items() if s[1] is not None and call.raw[s] == 1 and e.kind != "named"]
    hints = {spot: hint for spot in ones if dynamic is None and (hint := _larger(spot, call, earlier)) is not None}
    kept = {
        spot: entry
        for spot, entry in entries.items()
        if spot[0] not in call.odd
        and (
            entry.kind == "named"
            or (
                spot not in refused
                and (spot in hints or spot in listed or is_state(spot) or may_be_free(spot, call.raw[spot]))
            )
        )
    }
    larger = (
        s for s in kept if dynamic is None and s[1] is not None and kept[s] is auto and _is_larger(s, call, earlier)
    )
    hints = {spot: hint for spot, hint in hints.items() if spot in kept}
    return Freedom(kept, {spot: why[spot] for spot in kept}, hints, call.odd, frozenset(larger))


def may_be_free(spot: Spot, value: int | float) -> bool:
    """Whether a size or number is left free without being named: sizes of 0 and 1 have other rules than all others."""
    return isinstance(value, float) or value not in (0, 1)


def is_state(spot: Spot) -> bool:
    """Whether this is a number of the program's state, which is another at each call."""
    return spot[1] is None and spot[0].startswith(f"kwargs[{STATE!r}]")


def _all(call: SeenCall) -> Iterable[tuple[Spot, str]]:
    return ((spot, "dynamic=True") for spot in call.values)


def _changed(call: SeenCall, earlier: Iterable[Earlier]) -> Iterable[tuple[Spot, str]]:
    """What changed since the nearest earlier call, and what is free in any that differs in sizes and numbers only."""
    earlier = tuple(earlier)
    alike = [(found, before) for before in earlier if (found := before.call.difference(call)) is not None]
    if not alike:
        alike = [(grown[1], before) for before in earlier if (grown := before.call.grown(call)) is not None]
    if not alike:
        return {}.items()
    changed, nearest = min(alike, key=lambda pair: len(pair[0] - pair[1].free))
    spots = {spot: f"was {_shown(nearest.call, spot)}, now {_shown(call, spot)}" for spot in changed}
    for _, before in alike:
        for spot in before.free & call.values.keys():
            spots.setdefault(spot, "is free in an earlier entry")
    return spots.items()


def _in_grown(call: SeenCall, earlier: Iterable[Earlier]) -> frozenset[Spot]:
    """The numbers in a list that was longer or shorter in an earlier call: the next ones are others."""
    grown = {more[0] for before in earlier if (more := before.call.grown(call)) is not None}
    lists = tuple(f"{place}[" for place in grown if call.kinds[place][0] is list)
    found = frozenset(spot for spot in call.values if spot[1] is None and lists and spot[0].startswith(lists))
    return found if len(found) <= _MOST_LISTED else frozenset()


def _larger(spot: Spot, call: SeenCall, earlier: Iterable[Earlier]) -> int | None:
    """What a size that is 1 was in an earlier call."""
    calls = [before.call for before in earlier]
    alike = [other.raw for other in calls if other.difference(call) is not None]
    alike = alike or [other.raw for other in calls if other.grown(call) is not None]
    return next((int(raw[spot]) for raw in alike if raw.get(spot, 1) > 1), None)


def _is_larger(spot: Spot, call: SeenCall, earlier: Iterable[Earlier]) -> bool:
    """Whether a size is 1 neither in this call nor in an earlier one, whatever that was like."""
    return all(raw.get(spot, 2) > 1 for raw in (call.raw, *(before.call.raw for before in earlier)))


def _shown(call: SeenCall, spot: Spot) -> str:
    return repr(call.raw[spot])


def shown(spot: Spot) -> str:
    """A size or number of the arguments as code."""
    place, axis = spot
    return place if axis is None else f"{place}.shape[{axis}]"


__all__ = ["NO_FREEDOM", "Earlier", "Freedom", "Spot", "freedom", "shown"]
