"""An arm of a branch that alone changes what outlives the call: the graph holds for all that goes the other way."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smelt
from smelt.diag import CaptureError
from tests.staging.programs import staged

X = torch.arange(12.0).reshape(4, 3) / 7


class Table(nn.Module):
    """A table of positions, made anew where more rows are left than it has."""

    def __init__(self, is_returned: bool) -> None:
        super().__init__()
        self.is_returned = is_returned
        self.table = nn.Buffer(self.made(torch.zeros(3, 1)), persistent=False)

    @staticmethod
    def made(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(x.size(0))[:, None] * torch.ones(1, 3)

    def extended(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        if table.size(0) >= x.size(0):
            return table
        return self.made(x)

    def forward(self, x: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
        rows = x[x[:, 0] > least]
        if self.is_returned:
            self.table = self.extended(rows, self.table)
        elif self.table.size(0) < rows.size(0):
            self.table = self.made(rows)
        if rows.sum() > 4:
            rows = rows * 2
        return rows + self.table[: rows.size(0)]


def least(*numbers: float) -> list[torch.Tensor]:
    return [torch.tensor(number) for number in numbers]


@pytest.mark.spread(2)
@pytest.mark.parametrize("is_returned", [False, True])
def test_the_graph_holds_for_what_goes_the_other_way(is_returned: bool) -> None:
    model = Table(is_returned)
    traced = smelt.trace(model, (X, least(0.5)[0]))
    for value in least(0.1, 0.5, 1.0, 9.0):
        torch.testing.assert_close(traced(X, value), model(X, value))
    with pytest.raises(CaptureError):
        traced(X, least(-1.0)[0])
    assert model.table.size(0) == 3


@pytest.mark.parametrize("is_returned", [False, True])
def test_what_goes_that_way_is_compiled_too(is_returned: bool) -> None:
    model, eager = Table(is_returned), Table(is_returned)
    compiled = smelt.compile(model)
    with torch.no_grad():
        for value in least(0.5, 0.5, 0.1, -1.0, -1.0, 0.5, 9.0):
            torch.testing.assert_close(compiled(X, value), eager(X, value))
            torch.testing.assert_close(compiled.table, eager.table)


def test_what_all_ways_change_is_left_to_the_paths() -> None:
    table = Table(False)

    def f(x: torch.Tensor) -> torch.Tensor:
        table.table = table.table * 2 if x.sum() > 0 else table.table * 3
        return x + 1

    found = staged(f, (X,))
    assert found.graph is None or not any(node.op == "expect" for node in found.graph.walk())
