"""Random programs in which Python asks tensors about themselves, with other sizes at each call, answer as in eager."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.asks import asks
from tests.programs.asks_tables import ASKS, CHANGES, MAKERS, RISKY, SOURCES, VIEWS
from tests.programs.judge import OPTIONS, ORDERS, OWN, judge


@pytest.mark.spread(6)
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_that_ask_tensors_about_themselves(seed: int, tmp_path: Path) -> None:
    _check(seed, 4, tmp_path, ("compile", "dynamic")[seed % 2 :][:1])


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(30))
def test_many_random_programs_that_ask_tensors_about_themselves(part: int, tmp_path: Path) -> None:
    for seed in range(100_000 + 100 * part, 100_100 + 100 * part):
        _check(seed, 0, tmp_path, ("compile", "dynamic"))


def _check(seed: int, size: int, folder: Path, ways: tuple[str, ...]) -> None:
    path = folder / f"program_{seed}.py"
    path.write_text(asks(seed, size).text)
    verdict = judge(path, ways, (OPTIONS, OWN)[seed % 2], ORDERS[seed // 2 % 2 :][:1])
    assert not verdict.difference, f"{verdict.difference}\n{path.read_text()}"
    assert not verdict.internal, f"{verdict.internal}\n{path.read_text()}"


def test_each_construct_is_written() -> None:
    written: set[str] = set()
    for seed in range(60):
        written |= set(asks(seed).constructs)
    tables = {"view": VIEWS, "maker": MAKERS, "change": CHANGES, "source": SOURCES, "asks": {**ASKS, **RISKY}}
    missing = {f"{kind}: {label}" for kind, table in tables.items() for label in table} - written
    assert not missing
