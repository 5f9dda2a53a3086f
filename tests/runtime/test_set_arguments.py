"""Guards on sets among the arguments: a set that changed in place is another argument."""

from __future__ import annotations

from typing import Any

from smelt.runtime.guarding.guard_args import ArgumentTests


def holds(tests: ArgumentTests, *args: Any) -> bool:
    scope = {**tests.scope, "args": args, "kwargs": {}}
    return all(eval(test.code, scope) for test in tests.tests)


def test_a_set_that_changed_in_place_is_seen() -> None:
    seen = {1, "a"}
    tests = ArgumentTests((seen, [seen, 2]), {})
    assert holds(tests, seen, [seen, 2])
    seen.add(3)
    assert not holds(tests, seen, [seen, 2])
    seen.remove(3)
    assert holds(tests, seen, [seen, 2])


def test_equal_sets_are_alike_and_members_of_another_type_are_not() -> None:
    tests = ArgumentTests(({1, 2},), {})
    assert holds(tests, {2, 1})
    assert not holds(tests, {1.0, 2})
    assert not holds(tests, {True, 2})
    assert not holds(tests, frozenset({1, 2}))
