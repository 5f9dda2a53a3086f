"""Sizes made of several numbers that depend on data: no chance of the examples makes them known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from tests.staging.programs import staged

X = torch.arange(12.0).reshape(6, 2)


def of_ints(*numbers: int) -> tuple[torch.Tensor]:
    return (torch.tensor(numbers),)


def first_less_second(a: torch.Tensor) -> torch.Tensor:
    return torch.ones(a[0].item() - a[1].item() + 3) * 2 + 1


def second_less_first(a: torch.Tensor) -> torch.Tensor:
    return torch.ones(a[1].item() - a[0].item()) * 2 + 1


def three(a: torch.Tensor) -> torch.Tensor:
    return torch.ones(a[0].item() - 2 * a[1].item() + a[2].item() + 3) * 2 + 1


def of_floats(a: torch.Tensor) -> torch.Tensor:
    x = a.float()
    return torch.ones(int(x[0].item() / 2 - x[1].item() / 2) + 3) * 2 + 1


def of_masks(a: torch.Tensor) -> torch.Tensor:
    first, second = a[a > 4], a[a > 5]
    return torch.ones(first.shape[0] - second.shape[0]) * 2 + 1


def of_branches(a: torch.Tensor) -> torch.Tensor:
    n = 2 if a[0] > 4 else 4
    m = 2 if a[1] > 4 else 4
    return torch.ones(n - m + 3) * 2 + 1


def of_truths(a: torch.Tensor) -> torch.Tensor:
    n, m = (a[0] > 4).item(), (a[1] > 4).item()
    return torch.ones(int(n) - int(m) + 3) * 2 + 1


def of_loops(a: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for i in range(a[0].item()):
        for k in range(a[1].item()):
            if i >= k:
                total = total + torch.ones(i - k + 1).sum()
    return total


def of_lists(a: torch.Tensor) -> torch.Tensor:
    first: list[torch.Tensor] = []
    second: list[torch.Tensor] = []
    for i in range(a[0].item()):
        first.append(X[0] + i)
    for i in range(a[1].item()):
        second.append(X[1] + i)
    return torch.ones(len(first) - len(second) + 3) * 2 + 1


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "program",
    [
        first_less_second, second_less_first, three, of_floats, of_masks, of_branches, of_truths, of_loops, of_lists,
    ],
)  # fmt: skip
@pytest.mark.parametrize("first", [(5, 5, 5), (4, 6, 8)])
def test_a_difference_of_two_numbers_is_no_known_size(program: Callable[..., Any], first: tuple[int, ...]) -> None:
    traced = smelt.trace(program, of_ints(*first), check=False)
    for numbers in ((5, 5, 5), (4, 6, 8), (5, 6, 9), (3, 4, 6), (4, 7, 10), (6, 7, 8)):
        assert torch.equal(traced(*of_ints(*numbers)), program(*of_ints(*numbers))), numbers


def test_one_number_is_the_same_wherever_it_is_used() -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        n = a[0].item()
        return torch.cat([X[:n], torch.zeros(6 - n, 2)]) + torch.ones(n - n + 6, 1)

    graph = staged(f, of_ints(4)).graph
    assert graph is not None and "-> f32[6, 2] {" in str(graph)


def of_a_truth_beside_a_membership(a: torch.Tensor) -> Any:
    is_even = int(a[0]) in range(0, 10, 2)
    return torch.zeros(3 - bool(a[0] > 1)), is_even


def test_the_truth_of_a_tensor_may_be_either() -> None:
    traced = smelt.trace(of_a_truth_beside_a_membership, (torch.zeros(2),), check=False)
    for numbers in ((-1, 0), (0, 0), (3, 9), (2, 1)):
        a = torch.tensor(numbers, dtype=torch.float32)
        got, want = traced(a), of_a_truth_beside_a_membership(a)
        assert torch.equal(got[0], want[0]) and got[1] is want[1], numbers
    assert traced.native_failure is None
