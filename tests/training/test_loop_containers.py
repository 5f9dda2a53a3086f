"""Containers that loops fill and read, in training: every gradient is eager's, whichever of them are graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from tests.autodiff.gradient_harness import compare

Tensor = torch.Tensor


def cell(w: Tensor, i: int, h: Tensor) -> Tensor:
    return torch.tanh(h @ w[:4] + i * 0.01)


def tuples(x: Tensor, w: Tensor) -> Tensor:
    h, items = x[:, :4], []
    for i in range(40):
        h = cell(w, i, h)
        items.append((h, h * 2))
    return torch.stack([a + b for a, b in items]).square().sum()


def dicts(x: Tensor, w: Tensor) -> Tensor:
    h, d = x[:, :4], {}
    for i in range(40):
        h = cell(w, i, h)
        d[i] = h
    return torch.stack(list(d.values())).square().sum()


def until_small(x: Tensor, w: Tensor) -> Tensor:
    h, items, i = x[:, :4], [], 0
    while h.abs().sum() > 0.5 and i < 50:
        h = cell(w, i, h) * 0.9
        items.append(h)
        i += 1
    return torch.stack(items).square().sum()


def of_either_arm(x: Tensor, w: Tensor) -> Tensor:
    h, items = x[:, :4], []
    for i in range(40):
        h = cell(w, i, h)
        if h.sum() > 0:
            items.append(h)
        else:
            items.append(h * 2)
    return torch.stack(items).square().sum()


def of_one_arm(x: Tensor, w: Tensor) -> Tensor:
    h, items = x[:, :4], [x[:, :4]]
    for i in range(40):
        h = cell(w, i, h)
        if h.sum() > 0:
            items.append(h)
    return torch.stack(items).square().sum()


def not_empty_before(x: Tensor, w: Tensor) -> Tensor:
    h, items = x[:, :4], [x[:, 1:5]]
    for i in range(40):
        h = cell(w, i, h)
        items.append(h)
    return torch.stack(items).square().sum()


def two_lists(x: Tensor, w: Tensor) -> Tensor:
    h, items, m = x[:, :4], [], []
    for i in range(40):
        h = cell(w, i, h)
        items.append(h)
        m.append(h.sum())
    return torch.stack(items).square().sum() * torch.stack(m).sum()


def read_meanwhile(x: Tensor, w: Tensor) -> Tensor:
    h, items = x[:, :4], [x[:, 1:5]]
    for i in range(40):
        h = cell(w, i, h + items[-1])
        items.append(h)
    return items[-1].sum() + items[0].sum()


def carried_tuple(x: Tensor, w: Tensor) -> Tensor:
    s = (x[:, :4], x[:, 1:5])
    for i in range(40):
        s = (cell(w, i, s[0]) + s[1], torch.sin(s[1]))
    return s[0].sum() + s[1].sum()


def set_items(x: Tensor, w: Tensor) -> Tensor:
    items = [x[:, :4]] * 3
    for i in range(40):
        items[i % 3] = cell(w, i, items[(i + 1) % 3])
    return torch.stack(items).square().sum()


def nested(x: Tensor, w: Tensor) -> Tensor:
    h, items = x[:, :4], []
    for i in range(20):
        m = []
        for j in range(20):
            h = cell(w, i + j, h)
            m.append(h.sum())
        items.append(torch.stack(m).sum())
    return torch.stack(items).square().sum()


def filled_tensor(x: Tensor, w: Tensor) -> Tensor:
    o = x.new_zeros(40, 3, 4)
    h = x[:, :4]
    for i in range(40):
        h = cell(w, i, h)
        o[i] = h
    return o.square().sum()


def optional(x: Tensor, w: Tensor) -> Tensor:
    h, best = x[:, :4], None
    for i in range(40):
        h = cell(w, i, h)
        if best is None or h.sum() > best.sum():
            best = h
    return best.sum()


def split(x: Tensor, w: Tensor) -> Tensor:
    h = x[:, :4]
    for _ in range(40):
        a, b = (h @ w[:4]).chunk(2, 1)
        h = torch.cat([torch.tanh(b), torch.sin(a)], 1)
    return h.sum()


def outer_tuple(x: Tensor, w: Tensor) -> Tensor:
    p = w[:4].chunk(2, 1)
    h = x[:, :4]
    for _ in range(40):
        h = torch.tanh(torch.cat([h @ p[0], h @ p[1]], 1) * 0.9)
    return h.sum()


def maximum(x: Tensor, w: Tensor) -> Tensor:
    h, items = x[:, :4], []
    for i in range(40):
        h = cell(w, i, h)
        items.append(h.sum())
    return max(items) + min(items)


PROGRAMS: tuple[Callable[..., Any], ...] = (
    tuples,
    dicts,
    until_small,
    of_either_arm,
    of_one_arm,
    not_empty_before,
    two_lists,
    read_meanwhile,
    carried_tuple,
    set_items,
    nested,
    filled_tensor,
    optional,
    split,
    outer_tuple,
    maximum,
)


@pytest.mark.spread(8)
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")  # of what falls back to eager, as is said with its reason
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("is_step", [False, True], ids=["node", "step"])
def test_gradients_are_eagers(program: Callable[..., Any], is_step: bool) -> None:
    torch.manual_seed(0)
    x, w = (torch.nn.Parameter(torch.randn(*sizes, dtype=torch.float64)) for sizes in ((3, 5), (5, 4)))
    expected = torch.autograd.grad(program(x, w), (x, w))

    def step() -> Tensor:
        x.grad = w.grad = None
        loss = program(x, w)
        loss.backward()
        return loss.detach()

    compiled = smelt.compile(step if is_step else program, options={"adaptive": False})
    for _ in range(3):
        if is_step:
            compiled()
        found = (x.grad, w.grad) if is_step else torch.autograd.grad(compiled(x, w), (x, w))
        compare(found, expected, 1e-9)
