"""Tensors that are made of free sizes and numbers: one program for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


def of_sizes(x, n, s):
    return torch.tensor([x.shape[0], 2]), torch.tensor(x.shape), torch.as_tensor([[n, 1], [2, len(x)]])


def of_numbers(x, n, s):
    return torch.tensor([s, 0.5]), torch.tensor([n, s]), torch.tensor((n, 2), dtype=torch.float64)


def of_the_kind_of_another(x, n, s):
    return x.new_tensor([s, n]), x.new_tensor([n], dtype=torch.int32), torch.LongTensor([n]), torch.FloatTensor([s, n])


def one_of_them(x, n, s):
    return (x * torch.tensor([n, n + 1, 2])[0],)


def of_a_list(x, n, s):
    return (torch.tensor([s, *([1.0, 2.0])]) * x[0, 0],)


@pytest.mark.parametrize("f", [of_sizes, of_numbers, of_the_kind_of_another, one_of_them, of_a_list])
def test_one_program_for_all_numbers(f: Callable[..., Any]) -> None:
    compiled = smelt.compile(f)
    for rows, n, s in ((3, 2, 0.5), (4, 5, 0.7), (5, 6, 1e9), (6, 7, -3.0), (7, -4, 0.25), (9, 1 << 30, 2.0)):
        x = torch.randn(rows, 2)
        for found, expected in zip(compiled(x, n, s), f(x, n, s), strict=True):
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected)
    assert compiled.stats().builds <= 2
