"""Modules and functions at numbers and keys that depend on data: an arm for each that it may be."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

import smelt
from tests.staging.programs import check

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0], [2.0, 0.0, -3.0], [-1.0, 1.0, 0.25]])


def of_ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


class Experts(nn.ModuleDict):
    """A router of experts that are found by name, asked only where a row chose them."""

    def __init__(self) -> None:
        super().__init__({f"expert_{i}": nn.Linear(3, 3) for i in range(3)})

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        hit = (nn.functional.one_hot(chosen, 3).sum(0) > 0).nonzero()
        for expert in hit:
            (rows,) = torch.where(chosen == expert)
            out.index_add_(0, rows, self[f"expert_{expert[0]}"](x[rows]))
        return out


def test_a_module_by_name() -> None:
    chosen = of_ints(0, 1, 2, 0), of_ints(1, 1, 1, 1), of_ints(2, 0, 2, 0)
    check(Experts().eval(), *[(X, c) for c in chosen], has=("for", "if", "py.raise"))


def test_a_module_by_name_in_a_program_that_goes_two_ways_afterwards() -> None:
    experts = Experts().eval()

    def f(x, chosen):
        x = experts(x, chosen)
        scale = None if x.sum() > 0 else x.abs().max()
        return x if scale is None else x / scale

    check(f, (X, of_ints(0, 1, 2, 0)), (-X, of_ints(2, 1, 2, 1)), (X * 0, of_ints(0, 0, 0, 0)))


def test_modules_and_functions_by_number() -> None:
    layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
    chain = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    functions = [torch.sin, torch.cos]
    table = {0: torch.exp, 5: torch.abs}

    def by_tensor(x, i):
        return layers[i[0]](x)

    def by_number(x, i):
        return chain[i[0].item()](x)

    def of_functions(x, i):
        return functions[i[0].item()](x) + table[i[1].item()](x)

    for f in (by_tensor, by_number):
        check(f, *[(X, of_ints(i)) for i in (0, 1, -1, -2, 3, -4)])
    check(of_functions, *[(X, of_ints(i, k)) for i, k in ((0, 0), (1, 5), (-2, 0), (2, 0), (0, 1))])


def test_a_list_with_items_of_its_own_is_asked_itself() -> None:
    class Wrapping(nn.ModuleList):
        def __getitem__(self, i: Any) -> Any:
            return super().__getitem__(i % len(self))

    layers = Wrapping([nn.Linear(3, 3), nn.Linear(3, 3)])

    def f(x, i):
        return layers[i[0].item()](x)

    compiled = smelt.compile(f)
    with torch.no_grad():
        for i in (0, 0, 1, 2, 5):
            torch.testing.assert_close(compiled(X, of_ints(i)), f(X, of_ints(i)))


def test_what_was_not_chosen_at_first_is_guarded_too() -> None:
    model = Experts().eval()
    compiled = smelt.compile(model)
    with torch.no_grad():
        for chosen in (of_ints(1, 1, 1, 1), of_ints(1, 1, 1, 1), of_ints(0, 1, 2, 0)):
            torch.testing.assert_close(compiled(X, chosen), model(X, chosen))
        model["expert_0"] = nn.Sequential(copy.deepcopy(model["expert_0"]), nn.ReLU())
        for _ in range(3):
            torch.testing.assert_close(compiled(X, of_ints(0, 1, 2, 0)), model(X, of_ints(0, 1, 2, 0)))
