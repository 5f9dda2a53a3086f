"""Random programs with all kinds of parameters and dtypes: compiled, traced, staged, with gradients, as in eager."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.broad import broad
from tests.programs.broad_tables import ACTS, CAUGHT, FUNCTIONS, LOOPS, OUTS
from tests.programs.judge import OPTIONS, ORDERS, OWN, judge


@pytest.mark.spread(16)
@pytest.mark.parametrize("seed", range(220000, 220012))
def test_random_programs_of_all_parameters(seed: int, tmp_path: Path) -> None:
    path = tmp_path / f"program_{seed}.py"
    path.write_text(broad(seed, 4).text)
    ways = ("compile", "trace", "staged", "grad")
    verdict = judge(path, ways, (OPTIONS, OWN)[seed % 2], ORDERS[seed // 2 % 2 :][:1])
    assert not verdict.difference, f"{verdict.difference}\n{path.read_text()}"
    assert not verdict.internal, f"{verdict.internal}\n{path.read_text()}"


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(50))
def test_many_random_programs_of_all_parameters(part: int, tmp_path: Path) -> None:
    for seed in range(5_000_000 + 100 * part, 5_000_100 + 100 * part):
        path = tmp_path / f"program_{seed}.py"
        path.write_text(broad(seed).text)
        verdict = judge(path, ("compile", "trace", "staged", "grad"), (OPTIONS, OWN)[seed % 2], ORDERS[seed % 2 :][:1])
        assert not verdict.difference, f"{verdict.difference}\n{path.read_text()}"


def test_each_construct_is_written() -> None:
    written: set[str] = set()
    for seed in range(300):
        written |= set(broad(seed).constructs)
    assert written >= CONSTRUCTS, CONSTRUCTS - written
    assert all((ACTS, CAUGHT, FUNCTIONS, LOOPS, OUTS))


CONSTRUCTS = {
    "None or a tensor as argument", "default argument", "keyword-only argument", "text as argument", "*args",
    "**kwargs",
    "dict as argument", "list of ints as argument", "dataclass as argument", "named tuple as argument",
    "tuple as argument", "float16", "bfloat16", "int8", "uint8", "int32", "tensor of changing length",
    "argument laid out otherwise", "infinite arguments", "arguments share memory", "narrow dtype", "out=",
    "write through a view in a loop", "function made here", "error with a way on", "object outside that is written",
    "random numbers", "recursion", "empty", "0-d",
}  # fmt: skip
