"""Tensors split by numbers that depend on data: how long all parts are together is known, how long each is is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from tests.staging.programs import check

X = torch.arange(24.0).reshape(8, 3) / 7


def of_ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


class Experts(nn.Module):
    """Rows sorted by expert, each expert on its own rows, and put back."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, 3))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        sizes = F.one_hot(chosen, 3).sum(0).tolist()
        order = chosen.argsort(stable=True)
        parts = x[order].split(sizes, dim=0)
        rows = torch.cat([F.linear(parts[i], self.weight[i]) for i in range(3)], dim=0)
        return torch.zeros_like(x).index_add(0, order, rows * x[:, :1])


def test_what_is_split_and_joined_again_is_as_long_as_before() -> None:
    model = Experts()
    chosen = of_ints(0, 1, 2, 0, 1, 2, 0, 1), of_ints(2, 2, 2, 2, 2, 2, 2, 2), of_ints(1, 0, 0, 0, 1, 0, 0, 0)
    assert "-> f32[8, 3] {" in check(model, *[(X, c) for c in chosen])
    traced = smelt.trace(model, (X, chosen[0]))
    with torch.no_grad():
        for c in chosen:
            torch.testing.assert_close(traced(X, c), model(X, c))


def test_sizes_that_do_not_make_up_the_whole_raise() -> None:
    def f(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        first, second, third = torch.split(x, [sizes[0].item(), 2, sizes[1].item()])
        return torch.cat([third + 1, second, first]) + x

    traced = smelt.trace(f, (X, of_ints(3, 3)))
    for sizes in (of_ints(3, 3), of_ints(6, 0), of_ints(0, 6)):
        assert torch.equal(traced(X, sizes), f(X, sizes))
    for sizes in (of_ints(3, 4), of_ints(0, 0), of_ints(-1, 7)):
        with pytest.raises(RuntimeError):
            f(X, sizes)
        with pytest.raises(RuntimeError):
            traced(X, sizes)


def test_a_part_beside_known_ones_is_known() -> None:
    def f(x, n):
        return x.split([3, n.item(), 4])[1] + x[:1]

    assert "-> f32[1, 3] {" in check(f, (X, torch.tensor(1)))


def some(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    first, _, third = x.split(sizes.tolist())
    return torch.cat([first, third]) * 2 + 1


def of_two_splits(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    parts, others = x.split(sizes.tolist()), x.split(sizes.flip(0).tolist())
    return torch.ones(parts[0].shape[0] - others[0].shape[0] + 8) * 2


def of_views(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    parts = x.t().clone().split(sizes.tolist(), dim=-1)
    parts[1].mul_(2)
    return torch.cat([parts[1], parts[0], parts[2]], -1).t() + x


@pytest.mark.parametrize("program", [some, of_two_splits, of_views])
def test_the_length_of_some_parts_is_not_known(program: Any) -> None:
    traced = smelt.trace(program, (X, of_ints(3, 2, 3)), check=False)
    for sizes in (of_ints(3, 2, 3), of_ints(2, 3, 3), of_ints(0, 8, 0), of_ints(8, 0, 0), of_ints(1, 0, 7)):
        assert torch.equal(traced(X, sizes), program(X, sizes)), sizes


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
def test_few_rows(rows: int) -> None:
    sizes = {0: [(0, 0, 0)], 1: [(0, 1, 0), (1, 0, 0)], 2: [(1, 0, 1), (0, 2, 0)], 3: [(1, 1, 1), (0, 1, 2)]}[rows]
    compiled = smelt.compile(some)
    with torch.no_grad():
        for given in (sizes[0], *sizes):
            assert torch.equal(compiled(X[:rows], of_ints(*given)), some(X[:rows], of_ints(*given)))
