"""Results that are a new tensor on one way and a tensor from outside on another: the very tensor, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt

OUTSIDE = torch.arange(4.0)


def argument(x: Tensor, y: Tensor) -> Tensor:
    return x if x.sum() > 0 else x + 1


def several(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        return y
    if x.sum() < -5:
        return x[1:]
    return OUTSIDE


def either_way(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        x.add_(1)
        return y
    x.mul_(2)
    return y


def loop(x: Tensor, y: Tensor) -> Tensor:
    i = 0
    while x.sum() < 10 and i < 5:
        x = x + 1
        i += 1
    return x


def swapped(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(20):
        x, y = y, x * 1.5
        if x.sum() > 9:
            break
    return x


def view(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x if x.sum() > 0 else x + 1
    return z[1:], z


def each_other(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a = x + 1
    b = a if x.sum() > 0 else a * 2
    return a, b


def listed(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x, y.neg(), y] if x.sum() > 0 else [y, x, x.neg()]


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.weight if x.sum() > 0 else x * 2


def facts(results: Any, outside: list[Tensor]) -> list[Any]:
    """Of each result: its elements, which tensors it is, and in whose memory it lies."""
    found = list(results) if isinstance(results, tuple | list) else [results]
    all_ = [*outside, *found]
    return [
        (
            r.tolist(),
            [r is t for t in all_],
            [r.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for t in all_],
        )
        for r in found
    ]


@pytest.mark.parametrize("make", [lambda: argument, lambda: several, lambda: either_way, lambda: loop, lambda: swapped,
                                  lambda: view, lambda: each_other, lambda: listed, Weight])  # fmt: skip
def test_it_is_the_tensor_that_eager_returns(make: Callable[[], Any]) -> None:
    program = make()
    compiled = smelt.compile(program, options={"strict": True})
    state = list(program.parameters()) if isinstance(program, nn.Module) else []
    for scale in (1.0, -1.0, 3.0, -3.0, 1.0, -1.0, 3.0, -3.0, 0.1):
        args = (torch.full((4,), scale), torch.ones(4))
        outside = [*args, OUTSIDE, *state]
        assert facts(compiled(*args), outside) == facts(program(*args), outside), scale


def test_one_graph_gives_back_its_argument() -> None:
    compiled = smelt.compile(argument)
    for scale in (1.0, -1.0, 2.0, -2.0):
        compiled(torch.full((4,), scale), torch.ones(4))
    assert len(smelt.explain(compiled).to_dict()["graphs"]) == 1


def begun(x: Tensor, y: Tensor) -> Tensor:
    for i in range(20):
        x = x * 1.5 + i
        if x.sum() > 90:
            break
    return x


def test_a_loop_that_takes_a_turn_gives_a_new_tensor_without_asking() -> None:
    """Its first test follows from numbers, so its result is never what it began with."""
    compiled = smelt.compile(begun, options={"strict": True})
    for scale in (1.0, -1.0, 9.0, 100.0):
        x = torch.full((4,), scale)
        found, want = compiled(x, x), begun(x, x)
        assert torch.equal(found, want) and found is not x
    (graph,) = (row.entry for row in compiled.stats().rows)
    assert all(type(recipe).__name__ == "Fresh" for recipe in graph.lowered.outputs)
