"""What restarts have taught: facts add up, and nothing of them changes in place."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from smelt.capture.staging.flow.assumptions import Assumptions, LoopKind, forked, loop_is, peeled

FIRST, SECOND = ("a.py", 1, ("x",)), ("a.py", 2, ("x",))


def test_facts_add_up() -> None:
    known = forked(FIRST) | loop_is(SECOND) | loop_is(SECOND, LoopKind.TESTED) | forked(FIRST)
    assert known.forked == {FIRST}
    assert known.has(SECOND, LoopKind.WHOLE) and known.has(SECOND, LoopKind.UNROLLED, LoopKind.TESTED)
    assert not known.has(FIRST, *LoopKind) and not known.has(SECOND, LoopKind.UNROLLED)
    assert known.of_kind(LoopKind.WHOLE) == {SECOND}
    assert known | Assumptions() == known


def test_iterations_that_are_peeled_come_on_top_of_each_other() -> None:
    known = peeled(FIRST) | peeled(SECOND)
    again = known | peeled(FIRST)
    assert again.peeled == {FIRST: 2, SECOND: 1}
    assert known.peeled == {FIRST: 1, SECOND: 1}


def test_flags_stay() -> None:
    known = Assumptions(as_native=True) | Assumptions(grows=True)
    assert known.as_native and known.grows and not known.counts


def test_a_record_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Assumptions().grows = True  # type: ignore[misc]


def test_what_is_taken_back_is_named() -> None:
    counted = loop_is(FIRST, LoopKind.COUNTED) | Assumptions(arms=frozenset(((FIRST, True),)))
    found = forked(FIRST) | forked(SECOND) | peeled(FIRST) | counted
    known = replace(found, grew=frozenset((SECOND,)), grows=True, as_native=True)
    assert known.without_forks_that_grow().forked == {FIRST}
    assert known.without_counted_loops().loops == {(FIRST, LoopKind.UNCOUNTED)}
    rest = known.without_loops()
    assert (rest.loops, rest.arms, rest.grows) == (frozenset(), frozenset(), False)
    assert (rest.forked, rest.peeled, rest.as_native) == (known.forked, {FIRST: 1}, True)
