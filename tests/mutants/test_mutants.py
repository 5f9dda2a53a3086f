"""The list of seeded bugs is in step with the sources, and some of them are caught here and now."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant, missing_tests, mutated
from tests.mutants.run import attempt

# A few whose tests need no more than the start of a process.
QUICK = ("arena: lives that touch", "cache: checksum", "threads: independence")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_it_applies(mutant: Mutant) -> None:
    assert mutated(mutant)
    assert mutant.breaks and mutant.tests and not missing_tests(mutant)


def test_names_are_their_own_and_there_are_enough() -> None:
    assert not [name for name, count in Counter(m.name for m in MUTANTS).items() if count > 1]
    assert len(MUTANTS) >= 40


@pytest.mark.parametrize("name", QUICK)
def test_it_is_caught(name: str) -> None:
    (mutant,) = (m for m in MUTANTS if m.name == name)
    outcome = attempt(mutant)
    assert outcome.status == "caught", outcome.by
