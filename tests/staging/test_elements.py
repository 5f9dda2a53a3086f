"""Numbers in tensors of one element: the same one wherever they are read, and in what is computed of them."""

from __future__ import annotations

from typing import Any

import torch

import smelt
from tests.staging.programs import check

X = torch.arange(24.0).reshape(2, 4, 3) / 7
MASKS = [torch.tensor(m) for m in ([[1, 0, 0], [1, 0, 1]], [[1, 1, 1], [1, 0, 1]], [[0, 0, 0], [0, 0, 0]])]


def test_what_is_put_in_front_is_cut_off_again() -> None:
    def f(x, m):
        most = m.sum(1).max()
        front = x.new_zeros(2, most, 3)
        y = torch.cat([front + 1, x], 1).softmax(1)
        behind = y.narrow(1, most, y.size(1) - most).contiguous()
        return behind.reshape(2, 2, 2, 3) + x.reshape(2, 2, 2, 3), y.narrow(1, 0, most) + front

    assert "-> f32[2, 2, 2, 3], f32[2, _, 3] {" in check(f, *[(X, m) for m in MASKS])


def test_a_number_is_the_same_however_often_it_is_taken() -> None:
    def f(x, m):
        lengths = m.sum(1)
        cut = torch.zeros(lengths[0].item() + 1, 3)
        other = torch.zeros((lengths[0] + 1).item(), 3)
        half = torch.zeros(int((lengths[1].float() * 0.5).floor().item()), 3)
        return torch.cat([cut.sin() + other, half])

    check(f, *[(X, m) for m in MASKS])


def test_numbers_of_a_tensor_that_was_written_in_between_differ() -> None:
    def f(x, m):
        n = m.sum()
        first = torch.ones(n.item())
        n += m[0, 0] * 2
        return torch.ones(n.item() - first.shape[0] + 3) * 2

    for door in (lambda f: f, smelt.compile, lambda f: smelt.trace(f, (X, MASKS[2]), check=False)):
        program: Any = door(f)
        for m in (MASKS[2], MASKS[2], *MASKS):
            assert torch.equal(program(X, m.clone()), f(X, m.clone()))


def test_numbers_of_two_items_differ() -> None:
    def f(x, m):
        lengths = m.sum(1)
        return torch.ones(lengths[0].item() - lengths[1].item() + 3) * 2

    traced = smelt.trace(f, (X, MASKS[2]), check=False)
    for m in MASKS:
        assert torch.equal(traced(X, m), f(X, m))
