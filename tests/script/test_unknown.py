"""Tensors and numbers of which a run knows even the kind."""

from __future__ import annotations

import pytest
import torch

import smelt
from smelt.ir import DType
from tests.script.checking import agrees

X = torch.tensor([1.5, 0.5, 2.5, -1.0])


def rows(x, i):
    total = x[i % 4].sum()
    total += torch.zeros(3).prod()
    return total, x.gather(0, i)


def kept(x, i):
    return torch.where(i > 0, x, -x) + torch.embedding(x[:, None], i)[:, 0]


@pytest.mark.parametrize("program", [rows, kept])
def test_positions_tell_nothing_of_what_they_choose_from(program):
    scripted = agrees(program, (X, torch.tensor([0, 2, 1, 3])), (X.double(), torch.tensor([0, 2, 1, 3])))
    assert all(y.type.dtype == DType.UNKNOWN for y in scripted.graph.body.yields)


def test_types_that_do_not_follow_from_unknown_ones_are_known():
    def f(x, i):
        return x > i, x.argmax(), x.sort()[1], x.sum(dtype=torch.float32)

    kinds = [y.type.dtype for y in smelt.script(f).graph.body.yields]
    assert kinds == [DType.BOOL, DType.I64, DType.I64, DType.F32]


def test_an_element_of_unknown_kind_stays_one_beside_a_number():
    def f(x):
        total = x.sum()
        return total + 1, total * 2.0, (total - 1).item()

    scripted = agrees(f, (X,), (X.double(),), (torch.tensor([1, 2]),))
    plus, times, item = (y.type for y in scripted.graph.body.yields)
    assert plus.dtype == times.dtype == DType.UNKNOWN and str(item) == "any"


def test_whether_a_tensor_has_an_attribute_asks_for_no_size():
    def f(y):
        return y + hasattr(y, "shape")

    scripted = agrees(f, (X,), (torch.tensor(2.0),))
    assert "sym_size" not in str(scripted.graph)


def highest(x, f: float):
    for one in x:
        if one > f:
            f = max(-32.0, min(32.0, one.item()))
    return f


def lowest(x, f: float):
    for one in x:
        if f >= one:
            f = max(-32.0, min(32.0, one.item()))
    return f, x == f, f != x


@pytest.mark.parametrize("program", [highest, lowest])
def test_numbers_of_unknown_kind_are_compared_with_tensors(program):
    agrees(program, (X, 0.5), (X, 10.5), (X.int(), 0.5))
