"""Calls whose ways meet again where they return, so that the questions of one call do not multiply those of the next.

    def f(x):                       %1 = if %asked { then, what f did after it } else { the other way }
        if ...: ...        ==>      ...                 # what follows the call is there once
        return ...

A way that cannot be merged with the other where a branch ends goes on by itself: to the end of the call, if what both
ways leave there can be one value, else to the end of the call around it, and so on. Which calls these are is learnt.

Invariant: what a call leaves is what it would leave without being joined; where it cannot be joined, it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from smelt.capture.convert.runtime import Variables
from smelt.capture.recording.tensor_slots import Slot
from smelt.capture.staging.flow.assumptions import Assumptions
from smelt.capture.staging.flow.branches import apply, arm
from smelt.capture.staging.flow.paths import Outcome
from smelt.capture.staging.flow.stops import Again, CannotMerge, CannotStage, Exhausted
from smelt.capture.staging.records import Structured

if TYPE_CHECKING:
    from smelt.capture.scripting.domain import Open


class Call(NamedTuple):
    """A call that runs. level: how many regions there are around it."""

    key: object
    level: int
    is_joined: bool


def want_joined(domain: Open) -> None:
    """A question is asked whose answers go on by themselves: the calls that it is asked in should join them again.

    Raises: Again where that is new.
    """
    inner = [c for c in domain.calls[1:] if c.level == len(domain.session.paths.regions)]
    last = next((i for i, c in enumerate(reversed(inner)) if c.is_joined), len(inner))
    unjoined = domain.session.assumed.unjoined
    if any(c.key not in unjoined for c in inner[len(inner) - last :]):
        # Those around them will ask the like: they learn it at once.
        raise Again(Assumptions(joined=frozenset(c.key for c in domain.calls[1:] if c.key not in unjoined)))


def joined(domain: Open, fn: FunctionType, arguments: object, run: Callable[[], object]) -> object:
    """What a call gives. arguments: all that it is given."""
    key = fn.__code__, fn.__qualname__
    assumed = domain.session.assumed
    if key in assumed.joined and key not in assumed.unjoined and domain.calls:
        found = _as_region(domain, key, (fn, arguments), run)
        if found is not None:
            return found[0]
    domain.calls.append(Call(key, len(domain.session.paths.regions), False))
    try:
        return run()
    finally:
        domain.calls.pop()


def _as_region(domain: Open, key: object, arguments: object, run: Callable[[], Any]) -> tuple[object] | None:
    """The call's value, in a tuple; None where its ways cannot be one, and nothing was done."""
    held: list[object] = [None]

    def body() -> None:
        domain.calls.append(Call(key, len(domain.session.paths.regions), True))
        try:
            held[0] = run()
        finally:
            domain.calls.pop()

    def get() -> tuple[Any, ...]:
        return (held[0],)

    def set_(values: tuple[object, ...]) -> None:
        held[0] = values[0]

    snapshot = domain.session.heap.snapshot((), [arguments])
    domain.session.heap.snapshots.append(snapshot)
    records, outcome = None, Outcome(is_raised=True)
    try:
        traced = arm(domain.session, body, Variables(("value",), get, set_), (None,), snapshot, (None,))
        records, outcome = _traced(domain, traced, key)
    except CannotMerge:
        _never(domain, key)
    except Exhausted:
        raise
    except CannotStage as stop:
        # Perhaps only because it was not to be undone on the way.
        if domain.internal is not None or domain.recorder.error is not None:
            raise
        _never(domain, key)
        if domain.session.stopped is stop:
            domain.session.stopped = None
    finally:
        domain.session.heap.snapshots.pop()
    if records is None or outcome.is_raised:
        return None
    _inline(domain, records)
    apply(outcome, set_)
    return (held[0],)


def _never(domain: Open, key: object) -> None:
    domain.session.learn(Assumptions(unjoined=frozenset((key,))))


def _traced(domain: Open, run: Callable[[], Outcome], key: object) -> tuple[list[object], Outcome]:
    """The call's region; run again, and no more than it, where calls inside turn out to be ones to join."""
    while True:
        try:
            found: tuple[list[Any], Outcome] = domain.session.paths.trace(run, ("value",), ("join", key))
        except Again as again:
            if not again.more.joined or again.more.joined <= domain.session.assumed.joined:
                raise
            domain.session.learn(again.more)
            if domain.session.stopped is again:
                domain.session.stopped = None
        else:
            return found


def _inline(domain: Open, records: list[Any]) -> None:
    """Have the region's records be the program's own, and what they made known from here on."""
    domain.recorder.records.extend(records)
    for record in records:
        for result in _slots(record.results if isinstance(record, Structured) else record[3]):
            tensor = result.ref() if result.kind == "result" else None
            if tensor is not None:
                domain.recorder._slots[id(tensor)] = result


def _slots(results: object) -> list[Slot]:
    if isinstance(results, Slot):
        return [results]
    return [s for r in results for s in _slots(r)] if isinstance(results, (list, tuple)) else []
