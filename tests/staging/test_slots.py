"""Objects that keep what they hold in slots: branches and loops change them as they change attributes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import smelt


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


class Particle:
    __slots__ = ("place", "speed", "turns")

    def __init__(self, place: Tensor, speed: float = 1.0) -> None:
        self.place, self.speed, self.turns = place, speed, 0


class Bounced(Particle):
    """Slots of a base, one of its own with a private name, and attributes beside them."""

    __slots__ = ("__dict__", "__seen")

    def see(self, x: Tensor) -> Any:
        self.__seen = x
        self.last = x.sum()
        return self.__seen


@dataclasses.dataclass(slots=True)
class Kept:
    found: list[Tensor]
    best: Any = None


OUTER = Particle(torch.ones(2))


def steps(x: Tensor, p: Particle) -> Any:
    for _ in range(3):
        p.place = p.place + x * p.speed
        p.turns += 1
        if p.place.abs().sum() > 4:
            p.speed = p.speed * -0.5
    return p.place, p.speed, p.turns


def in_one_arm(x: Tensor, p: Particle) -> Any:
    if x.sum() > 0:
        p.place = x
    return p.place * 2


def of_objects_made_here(x: Tensor) -> Any:
    q = Particle(x)
    if x.sum() > 0:
        q.place, q.turns = x * 2, 5
    return q.place + q.turns


def while_data_say(x: Tensor, p: Particle) -> Any:
    while p.place.abs().sum() < 9:
        p.place = p.place * 2
        p.turns += 1
    return p.turns, p.place


def outside(x: Tensor, p: Particle) -> Any:
    if x.sum() > 0:
        OUTER.place = OUTER.place + x
    OUTER.turns += 1
    return OUTER.place * OUTER.turns


def deleted(x: Tensor, p: Particle) -> Any:
    if x.sum() > 0:
        del p.speed
    return x * (2 if hasattr(p, "speed") else 3)


def inherited(x: Tensor) -> Any:
    q = Bounced(x)
    if x.sum() > 0:
        return q.see(x * 2) + q.last
    q.see(x)
    q.speed = 3.0
    return q.last * q.speed


def grown(x: Tensor) -> Any:
    kept = Kept([x])
    while kept.found[-1].abs().sum() < 9:
        kept.found.append(kept.found[-1] * 2)
        if kept.best is None or kept.best.sum() < x.sum():
            kept.best = x
    return torch.stack(kept.found).sum(0)


OF_ARGUMENTS = [steps, in_one_arm, while_data_say, outside, deleted]
OF_THEIR_OWN = [of_objects_made_here, inherited, grown]


def _calls() -> list[tuple[Tensor, Particle]]:
    values = ([1.0, 2.0], [-1.0, -2.0], [0.5, 0.25], [-3.0, 1.0], [2.0, 2.0], [-0.5, -0.5])
    return [(torch.tensor(v), Particle(torch.tensor(v) * 2, 1.0 + i)) for i, v in enumerate(values)]


def _state(p: Particle) -> Any:
    return [(name, getattr(p, name)) for name in Particle.__slots__ if hasattr(p, name)]


def _run(program: Callable[..., Any], with_argument: bool = True) -> list[Any]:
    """What each call gives, and leaves in its argument and outside."""
    OUTER.place, OUTER.speed, OUTER.turns = torch.ones(2), 1.0, 0
    found = []
    for x, p in _calls():
        result = program(x, p) if with_argument else program(x)
        found.append(copy.deepcopy((result, _state(p), _state(OUTER))))
    return found


@pytest.mark.parametrize("program", OF_ARGUMENTS, ids=lambda p: p.__name__)
def test_of_arguments_and_outside(program: Callable[..., Any]) -> None:
    expected = _run(program)
    given = smelt.compile(program)
    for _ in range(2):
        _assert_same(_run(given), expected)


@pytest.mark.spread(2)
@pytest.mark.parametrize("program", OF_THEIR_OWN, ids=lambda p: p.__name__)
@pytest.mark.parametrize("way", [smelt.compile, smelt.script], ids=["compile", "script"])
def test_made_by_the_program(program: Callable[..., Any], way: Callable[..., Any]) -> None:
    expected = _run(program, with_argument=False)
    given = way(program)
    for _ in range(2):
        _assert_same(_run(given, with_argument=False), expected)


def test_one_graph_serves_all_ways() -> None:
    given = smelt.compile(steps)
    _run(given)
    # The second is of any speed.
    assert [graph["calls"] for graph in smelt.explain(given).graphs] == [1, 5]


def _assert_same(got: Any, expected: Any) -> None:
    ours, theirs = pytree.tree_flatten(got), pytree.tree_flatten(expected)
    assert ours[1] == theirs[1]
    for mine, other in zip(ours[0], theirs[0], strict=True):
        assert type(mine) is type(other)
        assert torch.equal(mine, other) if isinstance(other, Tensor) else mine == other


class Beside(Particle):
    """Attributes beside the slots of its base."""


def _answered(x: Tensor) -> Any:
    return Beside(x, 1.0) if x.sum() > 0 else Beside(x * 2, 2.0)


def test_what_either_arm_answers_has_its_slots() -> None:
    given = smelt.compile(_answered)
    for first in (1.0, -1.0, 2.0, -2.0):
        got, expected = given(torch.full((2,), first)), _answered(torch.full((2,), first))
        _assert_same([got.place, got.speed, got.turns], [expected.place, expected.speed, expected.turns])
