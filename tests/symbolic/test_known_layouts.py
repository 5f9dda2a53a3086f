"""Operators that are called on operands that lie alike: fake tensors are asked once, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.capture.staging.fakes.fake_tensors import FakeRecorder


class Blocks(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(count))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            q = block(x).view(*x.shape[:-1], 2, 4).transpose(-2, -3)
            x = x + F.scaled_dot_product_attention(q, q, q).transpose(-2, -3).reshape(x.shape)
        return x


def kernels_asked(blocks: int, monkeypatch: pytest.MonkeyPatch) -> int:
    asked, run = [], FakeRecorder._run

    def counted(recorder: Any, overload: Any, *more: Any, **named: Any) -> Any:
        asked.append(overload)
        return run(recorder, overload, *more, **named)

    module = Blocks(blocks).eval()
    compiled = smelt.compile(module)
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(FakeRecorder, "_run", counted)
        for rows in (3, 5):
            x = torch.randn(2, rows, 8)
            torch.testing.assert_close(compiled(x), module(x))
    assert compiled.stats().builds == 2
    return len(asked)


def test_more_layers_ask_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels_asked(3, monkeypatch) == kernels_asked(1, monkeypatch) > 0


WEIGHT = torch.randn(4, 4)


def modes(x: Any) -> Any:
    first = F.linear(x, WEIGHT)
    with torch.autocast("cpu", torch.bfloat16):
        second = F.linear(x, WEIGHT)
    return first, second, F.linear(x, WEIGHT)


def equal_later(x: Any) -> Any:
    first = x.transpose(0, 1).contiguous()
    if x.shape[0] == x.shape[1]:
        return first + x, x.transpose(0, 1).contiguous() + x
    return first * 2, x.transpose(0, 1).contiguous() * 2


def apart(x: Any) -> Any:
    whole, part = x.transpose(0, 1), x[:, 1:].transpose(0, 1)
    part.add_(1)
    return whole.reshape(-1), x[1:].transpose(0, 1), x[:-1].transpose(0, 1), x


def kinds(x: Any) -> Any:
    return x.to(torch.float64) * 2, x.to(torch.int64) * 2, (x.to(torch.int64) * 2.0).dtype, torch.cat([x, x], 1)


@pytest.mark.spread(4)
@pytest.mark.parametrize("program", [modes, equal_later, apart, kinds], ids=lambda p: p.__name__)
def test_what_tells_calls_apart(program: Any) -> None:
    compiled = smelt.compile(program)
    for rows in (3, 5, 4, 7, 1, 4):
        x = torch.randn(rows, 4)
        y = x.clone()
        found, expected = compiled(x), program(y)
        assert torch.equal(x, y)
        for one, two in zip(found, expected, strict=True):
            if isinstance(two, torch.Tensor):
                assert one.dtype == two.dtype and one.stride() == two.stride()
                torch.testing.assert_close(one, two)
            else:
                assert one == two
