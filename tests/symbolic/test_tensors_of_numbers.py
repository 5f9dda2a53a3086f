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


def by_themselves(x, n, s):
    return torch.tensor(n), torch.as_tensor(s), x.new_tensor(n), torch.tensor(n) + 1


def of_the_default_kind(x, n, s):
    return torch.scalar_tensor(n), x.new_tensor([n]), torch.scalar_tensor(s, dtype=torch.float64)


def elements_set(x, n, s):
    x, v = x.clone(), torch.zeros(3)
    x[0, 1], v[0], x[1], v[torch.tensor(2)] = n, s, n, n * 1.5
    return x, v


FORMS = (
    of_sizes, of_numbers, of_the_kind_of_another, one_of_them, of_a_list, by_themselves, of_the_default_kind,
    elements_set,
)  # fmt: skip


@pytest.mark.spread(3)
@pytest.mark.parametrize("f", FORMS)
def test_one_program_for_all_numbers(f: Callable[..., Any]) -> None:
    compiled = smelt.compile(f)
    for rows, n, s in ((3, 2, 0.5), (4, 5, 0.7), (5, 6, 1e9), (6, 7, -3.0), (7, -4, 0.25), (9, 1 << 30, 2.0)):
        x = torch.randn(rows, 2)
        for found, expected in zip(compiled(x, n, s), f(x, n, s), strict=True):
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected)
    assert compiled.stats().builds <= 2


@pytest.mark.parametrize("f", [by_themselves, of_the_default_kind, elements_set])
def test_traced(f: Callable[..., Any]) -> None:
    x = torch.randn(3, 2)
    program = smelt.trace(f, (x, 2, 0.5), dynamic_shapes={"x": None, "n": "n", "s": "s"})
    for n, s in ((2, 0.5), (-4, 3.0)):
        for found, expected in zip(program(x, n, s), f(x, n, s), strict=True):
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected)
