"""Heads that a program copies before attention: the copies go, and results and their strides are eager's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from smelt.inspect.kernels import compiled_units
from tests.codegen.harness import rms_ratio


class _Attention(nn.Module):
    """Attention that copies its heads and what it gives, as Whisper's does."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        def heads(y: Tensor) -> Tensor:
            return y.view(*y.shape[:2], self.heads, -1).transpose(1, 2).contiguous()

        found = F.scaled_dot_product_attention(heads(self.q(x)), heads(self.k(states)), heads(self.v(states)))
        joined: Tensor = self.out(found.transpose(1, 2).reshape(x.shape).contiguous())
        return joined


def _copies(compiled: object) -> int:
    return sum(node.op == "aten.clone.default" for unit in compiled_units(compiled) for node in unit.optimized.walk())


@pytest.mark.parametrize(("rows", "keys"), [(5, 9), (1, 40), (33, 33)])
def test_copies_of_heads_go(rows: int, keys: int) -> None:
    model = _Attention().eval()
    x, states = torch.randn(2, rows, 32), torch.randn(2, keys, 32)
    compiled = smelt.compile(model, options={"measure": False})
    exact = copy.deepcopy(model).double()(x.double(), states.double())
    with torch.no_grad():
        mine, theirs = compiled(x, states), model(x, states)
        assert mine.stride() == theirs.stride() and rms_ratio(mine, theirs, exact) <= 1.5
        assert _copies(compiled) == 0
        for special in (torch.nan, torch.inf):
            states[1, 2, 3] = special
            torch.testing.assert_close(compiled(x, states), model(x, states), equal_nan=True)


def test_heads_that_are_written_afterwards_are_copies() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        k = x.transpose(1, 2).contiguous()
        found = F.scaled_dot_product_attention(y, k, k)
        x.add_(1.0)
        return found, F.scaled_dot_product_attention(y, k, k)

    compiled = smelt.compile(program, options={"measure": False})
    x, y = torch.randn(2, 9, 4, 8), torch.randn(2, 4, 5, 8)
    mine, theirs = compiled(x.clone(), y), program(x.clone(), y)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_a_copy_that_is_returned_is_the_callers_own() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        k = x.transpose(1, 2).contiguous()
        return F.scaled_dot_product_attention(k, k, k), k

    compiled = smelt.compile(program, options={"measure": False})
    x = torch.randn(2, 9, 4, 8)
    for _ in range(2):
        found, k = compiled(x)
        k.zero_()
        torch.testing.assert_close(found, program(x)[0])
        assert not torch.equal(x, torch.zeros_like(x)) and found.stride() == program(x)[0].stride()


def test_lengths_of_other_calls_and_gradients_are_eagers() -> None:
    model = _Attention()
    twin = copy.deepcopy(model)
    compiled = smelt.compile(twin, options={"measure": False})
    for rows, keys in ((5, 9), (7, 12), (20, 31)):
        x, states = torch.randn(2, rows, 32), torch.randn(2, keys, 32)
        mine, theirs = compiled(x, states), model(x, states)
        torch.testing.assert_close(mine, theirs)
        model.zero_grad()
        twin.zero_grad()
        mine.square().sum().backward()
        theirs.square().sum().backward()
        for a, b in zip(twin.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
