"""Random programs aimed at one family of what may go wrong each behave as in eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from smelt.capture.staging.flow import loop_statements
from smelt.passes.loops import unroll
from tests.programs.aimed import FAMILIES
from tests.programs.judge import OPTIONS, ORDERS, OWN, judge
from tests.programs.objects import objects

WAYS = ("compile", "trace", "staged")


def _check(family: str, seeds: range, size: int, folder: Path, is_strict: bool = True) -> None:
    for seed in seeds:
        path = folder / f"program_{seed}.py"
        path.write_text(FAMILIES[family](seed, size).text)
        verdict = judge(path, WAYS, (OPTIONS, OWN)[seed % 2], ORDERS[seed // 2 % 2 :][:1])
        assert not verdict.difference, f"{verdict.difference}\n{path.read_text()}"
        # An int beyond 64 bits ends a graph, which is told, and other graphs take its place.
        assert not (is_strict and verdict.internal), f"{verdict.internal}\n{path.read_text()}"


@pytest.mark.spread(4)
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 8), marks=pytest.mark.nightly)], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_aimed_programs(family: str, seeds: range, tmp_path: Path) -> None:
    _check(family, seeds, 6, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(20))
@pytest.mark.parametrize("family", FAMILIES)
def test_many_aimed_programs(family: str, part: int, tmp_path: Path) -> None:
    _check(family, range(7_000_000 + 100 * part, 7_000_100 + 100 * part), 0, tmp_path, is_strict=False)


@pytest.mark.parametrize("seeds", [(4_101_098,), pytest.param(range(4_100_000, 4_100_100), marks=pytest.mark.nightly)])
def test_gradients_of_what_loops_gather(seeds: Sequence[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops of few iterations are, and stay, loops of the graph here: as long ones are, in a fraction of their time."""
    for name, number in (("SHORT", 2), ("LONG", 4), ("LARGE", 8)):
        monkeypatch.setattr(loop_statements, name, number)
    for name in ("MOST_GROWING", "MOST", "_MOST_ASIDE"):
        monkeypatch.setattr(unroll, name, 0)
    for seed in seeds:
        path = tmp_path / f"program_{seed}.py"
        path.write_text(FAMILIES["gathers"](seed, (3, 5, 7)[seed % 3]).text)
        verdict = judge(path, ("train",), (OPTIONS, OWN)[seed % 2], ((0, 0, 1, 2),))
        assert not verdict.difference, f"{verdict.difference}\n{path.read_text()}"


def test_objects_differ_by_who_is_whom() -> None:
    class Box:
        def __init__(self, held: object) -> None:
            self.held = held

    class Slot:
        __slots__ = ("held", "other")

        def __init__(self, held: object) -> None:
            self.held = held

    def ask_for(v: object) -> Callable[[], object]:
        def ask() -> object:
            return v

        return ask

    x = torch.zeros(3)
    for one, other in (
        ((x, x), (x, x.clone())),
        ((x, x[:]), (x, x.clone())),
        ((x, x[1:]), (x, x[:2])),
        (([x], [x]), ([x] * 2,)),
        ((Box([x]), x), (Box([x.clone()]), x)),
        ((Box(x),), (Box(x + 1),)),
        ((1,), (1.0,)),
        ((Slot(1),), (Slot(2),)),
        ((slice(x, 1),), (slice(x + 1, 1),)),
        ((ValueError(1),), (ValueError(True),)),
        ((partial(max, 1),), (partial(max, 2),)),
        (({1, 2},), (frozenset({1, 2}),)),
        (({1: x}.values(),), ({1: x + 1}.values(),)),
        ((ask_for(1),), (ask_for(2),)),
        (([1, 2].append,), ([1].append,)),
        ((np.ones(2),), (np.zeros(2),)),
    ):
        assert objects(*one).difference(objects(*one)) == ""
        assert objects(*one).difference(objects(*other))
    shared = [x]
    assert objects(shared, shared).difference(objects([x], [x]))
    assert objects(iter([1, 2])).text != objects(iter([1])).text
    ahead = enumerate([1, 2])
    assert objects(ahead).text == objects(ahead).text  # nothing was taken
    looped: list[object] = []
    looped.append(looped)
    assert objects(looped).text == "tuple(#0 list[#0])"
