"""Random programs whose data lie in dictionaries, sets and objects with keys of every kind, as in eager."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.judge import OPTIONS, OWN
from tests.programs.keyed import CONTAINERS, KEYS, WAYS, judge_keyed, keyed


def _check(seed: int, folder: Path) -> None:
    way = WAYS[seed % len(WAYS)]
    path = folder / f"keyed_{seed}.py"
    path.write_text(keyed(seed, way == "trace").text)
    judged = judge_keyed(path, way, (OPTIONS, OWN)[seed // 3 % 2])
    assert not judged.difference, f"{way}: {judged.difference}\n{path.read_text()}"


@pytest.mark.spread(10)
@pytest.mark.parametrize("seed", range(18))
def test_random_programs_with_keys_of_every_kind(seed: int, tmp_path: Path) -> None:
    _check(seed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(20))
def test_many_random_programs_with_keys_of_every_kind(part: int, tmp_path: Path) -> None:
    for seed in range(10_000 + 50 * part, 10_050 + 50 * part):
        _check(seed, tmp_path)


def test_each_kind_is_written() -> None:
    written: set[str] = set()
    for seed in range(500):
        written |= set(keyed(seed).constructs)
    assert written >= {f"key: {key}" for key in KEYS} | set(CONTAINERS) | {"set", "frozenset", "own set", "argument"}
    assert written >= {"branch on data", "write a tensor", "write in place", "count", "key by data"}
