"""The list of seeded bugs is in step with the sources, and some of them are caught here and now."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant, missing_tests, mutated
from tests.mutants.run import Run, attempt, judged

# A few whose tests need no more than the start of a process.
QUICK = ("arena: lives that touch", "cache: checksum", "threads: independence")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_it_applies(mutant: Mutant) -> None:
    assert mutated(mutant)
    assert mutant.breaks and mutant.tests and not missing_tests(mutant)


def test_names_are_their_own_and_there_are_enough() -> None:
    assert not [name for name, count in Counter(m.name for m in MUTANTS).items() if count > 1]
    assert len(MUTANTS) >= 40


def test_what_no_longer_applies_is_told() -> None:
    mutant = MUTANTS[0]
    assert attempt(replace(mutant, old="nothing of the kind")).status == "stale"
    for wrong in (replace(mutant, old="return "), replace(mutant, new=mutant.old), replace(mutant, new="if (:")):
        with pytest.raises(ValueError, match=mutant.name):
            mutated(wrong)
    assert missing_tests(replace(mutant, tests=(*mutant.tests, "tests/none.py", "tests/demo/test_demo.py::test_none")))


@pytest.mark.parametrize(
    ("run", "hangs", "status"),
    [
        (Run(0, "3 passed"), False, "survived"),
        (Run(1, "FAILED tests/a.py::test_b - AssertionError"), False, "caught"),
        (Run(-11, ""), False, "caught"),
        (Run(2, "ERROR tests/a.py"), False, "broken"),
        (Run(5, "no tests ran"), False, "broken"),
        (Run(None, ""), False, "broken"),
        (Run(None, ""), True, "caught"),
    ],
)
def test_only_a_failing_test_catches(run: Run, hangs: bool, status: str) -> None:
    assert judged(replace(MUTANTS[0], hangs=hangs), run)[0] == status


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", QUICK)
def test_it_is_caught(name: str) -> None:
    (mutant,) = (m for m in MUTANTS if m.name == name)
    outcome = attempt(mutant)
    assert outcome.status == "caught", outcome.by
