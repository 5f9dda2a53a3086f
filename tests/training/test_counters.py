"""Step counts of an optimizer that hold one number are one number of the graph, and any number when they differ."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import smelt

Tensor = torch.Tensor
CALLS = 5


def stepped(parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> Callable[..., None]:
    def step(x: Tensor, without_last: bool = False) -> None:
        torch.stack([(p * x).sin().sum() for p in parameters[: -1 if without_last else None]]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Pair:
    """Parameters with an optimizer, and a copy of both that eager works on."""

    def __init__(self, name: str = "AdamW", parameters: int = 3) -> None:
        torch.manual_seed(0)
        self.ours = [nn.Parameter(torch.randn(4, 5)) for _ in range(parameters)]
        self.theirs = [copy.deepcopy(p) for p in self.ours]
        self.optimizers = [getattr(torch.optim, name)(ps, lr=0.01) for ps in (self.ours, self.theirs)]
        self.compiled = smelt.compile(stepped(self.ours, self.optimizers[0]), options={"adaptive": False})
        self.eager = stepped(self.theirs, self.optimizers[1])

    def run(self, calls: int = CALLS, **how: bool) -> None:
        """Calls of both, which leave the same."""
        for _ in range(calls):
            x = torch.randn(4, 5)
            self.compiled(x, **how)
            self.eager(x, **how)
            for one, other in zip(self.ours, self.theirs, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)
            states = [optimizer.state_dict()["state"] for optimizer in self.optimizers]
            torch.testing.assert_close(states[0], states[1], rtol=1e-5, atol=1e-5, equal_nan=True)

    def set(self, number: int, step: float) -> None:
        """Have the count of one parameter's steps be another, as a state that is put together by hand has it."""
        for parameters, optimizer in zip((self.ours, self.theirs), self.optimizers, strict=True):
            optimizer.state[parameters[number]]["step"].fill_(step)

    def graph(self, number: int = 0) -> str:
        return str(smelt.explain(self.compiled).to_dict()["graphs"][number]["captured"])


def test_what_is_computed_of_equal_counts_is_computed_once() -> None:
    pair = Pair()
    pair.run()
    graph = pair.graph()
    assert graph.count("aten.item.default") == 3
    assert graph.count("py.eq") == 2
    assert graph.count("py.pow(0.9, ") == 1
    assert graph.count("math.pow") == 1
    assert pair.compiled.stats().builds == 2  # the first call has no state yet


@pytest.mark.parametrize("name", ["AdamW", "NAdam", "RAdam", "Adamax", "Adagrad"])
def test_a_count_that_is_set_from_outside(name: str) -> None:
    pair = Pair(name)
    pair.run()
    pair.set(1, 40.0)
    pair.run(8)
    builds = pair.compiled.stats().builds
    pair.run(4)
    assert pair.compiled.stats().builds == builds
    pair.set(1, float(pair.optimizers[1].state[pair.theirs[0]]["step"]))
    pair.run(4)
    assert pair.compiled.stats().builds == builds


def test_counts_that_differ_when_they_are_recorded() -> None:
    pair = Pair(parameters=4)
    pair.run(1)
    pair.set(1, 7.0)
    pair.set(2, 7.0)
    pair.run()
    graph = pair.graph()
    assert graph.count("py.pow(0.9, ") == 2
    assert graph.count("py.eq") == 2
    assert pair.compiled.stats().builds == 2


def test_parameters_that_are_left_out_of_some_steps() -> None:
    pair = Pair()
    pair.run(3)
    for _ in range(4):
        pair.run(1, without_last=True)
        pair.run(2)
    builds = pair.compiled.stats().builds
    for _ in range(3):
        pair.run(1, without_last=True)
        pair.run(2)
    assert pair.compiled.stats().builds == builds


def advanced_otherwise(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x * a.item() + b.item() ** 2


def counting(a: Tensor, b: Tensor) -> Callable[[Tensor], Tensor]:
    def count(x: Tensor) -> Tensor:
        a.add_(1)
        b.add_(2)
        return advanced_otherwise(x, a, b)

    return count


def test_counters_that_are_advanced_otherwise_meet_by_chance() -> None:
    ours, theirs = ([torch.tensor(float(n)) for n in (2, 0)] for _ in range(2))
    compiled, eager = smelt.compile(counting(*ours), options={"adaptive": False}), counting(*theirs)
    for _ in range(CALLS):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), eager(x))
    assert compiled.stats().builds <= 2


def test_a_counter_that_is_no_number() -> None:
    pair = Pair()
    pair.run(1)
    for number in range(3):
        pair.set(number, float("nan"))
    pair.run()
