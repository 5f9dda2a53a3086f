"""Random whole programs behave as in eager: compiled, traced, and as staged graphs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.generate import generate
from tests.programs.judge import OPTIONS, ORDERS, OWN, judge
from tests.programs.run import report

PROGRAMS, PARTS = 150, 10


def _check(folder: Path, seeds: range, size: int, **options: object) -> list[dict[str, object]]:
    rows = []
    for seed in seeds:
        path = folder / f"program_{seed}.py"
        path.write_text(generate(seed, size).text)
        verdict = judge(path, **options)  # type: ignore[arg-type]
        assert not verdict.difference, f"{verdict.difference}\n{path.read_text()}"
        assert not verdict.internal, f"{verdict.internal}\n{path.read_text()}"
        rows.append({"seed": seed, "size": size, **vars(verdict)})
    return rows


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs(part: int, tmp_path: Path) -> None:
    each = PROGRAMS // PARTS
    rows = _check(tmp_path, range(part * each, part * each + each), 5, orders=ORDERS[part % 2 :][:1])
    print(report(rows))


@pytest.mark.nightly
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("part", range(50))
def test_many_random_programs(part: int, own: bool, tmp_path: Path) -> None:
    first = 1_000_000 + 200 * part + (100 if own else 0)
    rows = _check(tmp_path, range(first, first + 100), 0, options=OWN if own else OPTIONS)
    print(report(rows))


def test_each_construct_is_written() -> None:
    written: set[str] = set()
    for seed in range(400):
        written |= set(generate(seed).constructs)
    assert written >= CONSTRUCTS, CONSTRUCTS - written


CONSTRUCTS = {
    "if", "elif", "else", "while", "for over range", "for over tensor", "for over list", "for over dict", "enumerate",
    "zip", "break", "continue", "early return", "loop else", "ternary", "and/or", "not", "chained comparison", "assert",
    "raise", "in-place through a view", "in-place operator", "named view", "alias", "buffer write", "list append",
    "list +=", "list pop", "dict item set", "unpacking", "defined on one path", ".item()", "int(tensor)",
    "float(tensor)", "bool(tensor)", "tolist", "len()", "size of data", "closure", "lambda", "nonlocal",
    "attribute effect", "print", "f-string", "comprehension", "match", "try", "with", "random numbers",
    "dtype conversion", "None or a tensor", "range of data", "write to an argument's container",
    "any/all of a generator",
}  # fmt: skip
