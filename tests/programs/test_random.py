"""Random whole programs behave as in eager: compiled, traced, and as staged graphs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.generate import generate
from tests.programs.judge import OPTIONS, ORDERS, OWN, judge
from tests.programs.run import KINDS, report
from tests.programs.wide import wide
from tests.programs.wide_tables import EXPRESSIONS, WRITES

PROGRAMS, PARTS = 60, 12
BY_SCRIPT = range(2, 17)  # the nightly target scripts all
WAYS = ("compile", "trace", "staged")


def _check(folder: Path, seeds: range, size: int, is_wide: bool = False, **options: object) -> list[dict[str, object]]:
    rows = []
    for seed in seeds:
        path = folder / f"program_{seed}.py"
        path.write_text((wide if is_wide else generate)(seed, size).text)
        verdict = judge(path, **options)  # type: ignore[arg-type]
        assert not verdict.difference, f"{verdict.difference}\n{path.read_text()}"
        assert not verdict.internal, f"{verdict.internal}\n{path.read_text()}"
        rows.append({"seed": seed, "size": size, "kind": "wide" if is_wide else "generate", **vars(verdict)})
    return rows


@pytest.mark.spread(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs(part: int, tmp_path: Path) -> None:
    each = PROGRAMS // PARTS
    rows = _check(tmp_path, range(part * each, part * each + each), 5, orders=ORDERS[part % 2 :][:1], ways=WAYS)
    print(report(rows))


@pytest.mark.spread(4)
@pytest.mark.parametrize("part", range(4))
def test_random_programs_of_more_constructs(part: int, tmp_path: Path) -> None:
    options = OWN if part % 2 else OPTIONS
    seeds, orders = range(2 * part, 2 * part + 2), ORDERS[part // 2 :][:1]
    print(report(_check(tmp_path, seeds, 5, True, options=options, orders=orders, ways=WAYS)))


@pytest.mark.spread(6)
@pytest.mark.parametrize("part", range(6))
def test_gradients_of_random_programs(part: int, tmp_path: Path) -> None:
    """Arguments need gradients, in training: eager's gradients, that there are none, or its error on the way back."""
    options = OWN if part % 2 else OPTIONS
    seeds, orders = range(1000 + 6 * part, 1006 + 6 * part), ORDERS[part % 2 :][:1]
    _check(tmp_path, seeds, 5, part % 3 == 2, options=options, orders=orders, ways=("train",))


# Programs whose gradients once differed from eager's: by a write to what a gradient needs, by a write to a leaf.
@pytest.mark.parametrize("seed", [1129, 1383])
def test_gradients_that_once_differed(seed: int, tmp_path: Path) -> None:
    options = OWN if seed % 2 else OPTIONS
    _check(tmp_path, range(seed, seed + 1), 0, options=options, orders=ORDERS[seed % 2 :][:1], ways=("train",))


@pytest.mark.spread(3)
@pytest.mark.parametrize("part", range(3))
def test_random_programs_by_script(part: int, tmp_path: Path) -> None:
    print(report(_check(tmp_path, BY_SCRIPT[part::3], 5, ways=("script",))))


def test_no_program_reads_which_zero_is_the_greater(tmp_path: Path) -> None:
    # Its first call makes a number of `maximum(-0.0, 0.0)`, of which eager gives either, by the place in memory.
    _check(tmp_path, range(3304251, 3304252), 5, options=OWN, orders=ORDERS[1:], ways=WAYS)


@pytest.mark.nightly
@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("part", range(50))
def test_many_random_programs(part: int, own: bool, is_wide: bool, tmp_path: Path) -> None:
    first = 1_000_000 + 200 * part + (100 if own else 0)
    rows = _check(tmp_path, range(first, first + 100), 0, is_wide, options=OWN if own else OPTIONS)
    print(report(rows))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("part", range(6))
def test_gradients_of_many_random_programs(part: int, kind: str, tmp_path: Path) -> None:
    options = OWN if part % 2 else OPTIONS
    first = 2_000_000 + 50 * part
    for seed in range(first, first + 50):
        path = tmp_path / f"program_{seed}.py"
        path.write_text(KINDS[kind](seed, 0).text)
        verdict = judge(path, ("train",), options, ORDERS[seed % 2 :][:1])
        assert not verdict.difference, f"{verdict.difference}\n{path.read_text()}"


def test_each_construct_is_written() -> None:
    written: set[str] = set()
    for seed in range(400):
        written |= set(generate(seed).constructs)
    assert written >= CONSTRUCTS, CONSTRUCTS - written
    for seed in range(400):
        written |= set(wide(seed).constructs)
    assert written >= MORE, MORE - written


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
MORE = {
    *(construct for group in EXPRESSIONS.values() for construct in group), *(what for _, what in WRITES),
    "error that is caught", "text of an error", "raise again", "try else", "finally", "own context manager",
    "several views at once", "object", "object that is written", "named tuple", "dict comprehension", "set",
    "nested comprehension", "sorted", "zip and map", "reversed", "defaultdict", "setdefault", "dict merge",
    "list methods", "list slice assign", "star unpacking", "text", "generator", "alias in a list", "walrus",
    "functions in a list", "loop over modules", "nested loops", "while True", "range with a step",
}  # fmt: skip
