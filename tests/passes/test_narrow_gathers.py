"""Scores by distance: the product of the distances that are read, and of no others, with eager's results."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.inspect.kernels import compiled_units
from tests.codegen.harness import rms_ratio

_DISTANCES = 64


class _Relative(nn.Module):
    """Scores of queries by their distances to keys, and of keys by theirs to queries, as DeBERTa adds them."""

    def __init__(self, heads: int = 3, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.keys = nn.Parameter(torch.randn(heads, _DISTANCES, width))
        self.queries = nn.Parameter(torch.randn(heads, _DISTANCES, width))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        heads, n, m = q.shape[0], q.shape[1], k.shape[1]
        half = _DISTANCES // 2
        distance = torch.arange(n)[:, None] - torch.arange(m)[None, :]
        there = torch.clamp(distance + half, 0, _DISTANCES - 1).expand(heads, n, m)
        back = torch.clamp(half - distance.T, 0, _DISTANCES - 1).expand(heads, m, n)
        by_query = torch.gather(torch.bmm(q, self.keys.transpose(1, 2)), -1, there)
        by_key = torch.gather(torch.bmm(k, self.queries.transpose(1, 2)), -1, back).transpose(1, 2)
        return torch.softmax(by_query / 4 + by_key / 4, -1)


def _given(n: int, m: int) -> tuple[Tensor, Tensor]:
    return torch.randn(3, n, 16), torch.randn(3, m, 16)


def _ops(compiled: object) -> list[str]:
    return [node.op for unit in compiled_units(compiled) for node in unit.optimized.walk()]


@pytest.mark.parametrize(("n", "m"), [(20, 20), (24, 9), (9, 24), (2, 2)])
def test_distances_along_diagonals_need_no_index(n: int, m: int) -> None:
    model, (q, k) = _Relative().eval(), _given(n, m)
    compiled = smelt.compile(model, options={"measure": False})
    exact = copy.deepcopy(model).double()(q.double(), k.double())
    with torch.no_grad():
        mine, theirs = compiled(q, k), model(q, k)
    assert mine.stride() == theirs.stride() and rms_ratio(mine, theirs, exact) <= 1.5
    assert "aten.gather.default" not in _ops(compiled)


def test_distances_beyond_the_last_one_are_gathered() -> None:
    model, (q, k) = _Relative().eval(), _given(40, 40)
    compiled = smelt.compile(model, options={"measure": False})
    with torch.no_grad():
        torch.testing.assert_close(compiled(q, k), model(q, k))
    assert "aten.gather.default" in _ops(compiled)


@pytest.mark.parametrize(("row", "special"), [(0, torch.nan), (13, torch.inf), (32, torch.nan), (51, -torch.inf)])
def test_a_number_that_is_none_reaches_the_scores_that_read_it(row: int, special: float) -> None:
    model, (q, k) = _Relative().eval(), _given(20, 20)
    with torch.no_grad():
        model.keys[1, row, 3] = special  # of which 13 to 51 are read
        compiled = smelt.compile(model, options={"measure": False})
        torch.testing.assert_close(compiled(q, k), model(q, k), equal_nan=True)
        q[2, 5, 7] = special
        torch.testing.assert_close(compiled(q, k), model(q, k), equal_nan=True)


def test_lengths_of_other_calls_and_gradients_are_eagers() -> None:
    model = _Relative()
    twin = copy.deepcopy(model)
    compiled = smelt.compile(twin, options={"measure": False})
    for n, m in ((20, 20), (12, 12), (17, 17), (31, 8)):
        q, k = _given(n, m)
        mine, theirs = compiled(q, k), model(q, k)
        torch.testing.assert_close(mine, theirs)
        weights = torch.randn_like(theirs)
        model.zero_grad()
        twin.zero_grad()
        (mine * weights).sum().backward()
        (theirs * weights).sum().backward()
        torch.testing.assert_close(twin.keys.grad, model.keys.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(twin.queries.grad, model.queries.grad, rtol=1e-4, atol=1e-5)
