"""Small programs whose way depends on data, each with inputs for its ways."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

P, N, Z = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, -2.0, -4.0]), torch.tensor([0.0, -1.0, 1.0])
I1, I2 = torch.tensor([2, 0, 1]), torch.tensor([1, 1, 0])


def branch(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    return x - 1


def elif_chain(x: Tensor) -> Tensor:
    s = x.sum()
    if s > 2:
        y = x * 2
    elif s < -2:
        y = x * 3
    else:
        y = x * 5
    return y + 1


def item_value(x: Tensor) -> Tensor:
    return x * x[0].item()


def int_loop(x: Tensor) -> Tensor:
    for i in range(int(x.abs().max())):
        x = x + i
    return x


def while_loop(x: Tensor) -> Tensor:
    while x.abs().sum() > 1:
        x = x / 2
    return x


def break_loop(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for row in x:
        if row < 0:
            break
        total = total + row
    else:
        total = total * 10
    return total


def early_return(x: Tensor) -> tuple[Tensor, Tensor | None]:
    if x[0] > 0:
        return x, None
    y = x.exp()
    if y[1] > 0.2:
        return y, x
    return x, y


def boolean(x: Tensor) -> Tensor:
    return x + 1 if (x > 0).all() or not (x < 0).any() else x - 1


def chain(x: Tensor) -> Tensor:
    return x + 1 if -1 <= x[0] < 1 else x * 2


def asserting(x: Tensor) -> Tensor:
    assert x.sum() > 0, "not positive"
    return x.sqrt()


def raising(x: Tensor) -> Tensor:
    x.add_(1)
    if (x < 0).any():
        raise ValueError(f"negative: {x.min().item()}")
    return x.sqrt()


def write_before(x: Tensor) -> Tensor:
    x.mul_(2)
    return x + 1 if x.sum() > 0 else x - 1


def write_after(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x.add_(1)
    else:
        x.mul_(3)
    return x


def write_between(x: Tensor) -> Tensor:
    x[0] = 7
    y = x + 1 if x.sum() > 5 else x - 1
    x[1:] += 1
    return y * 2 if x[1] > 0 else y


def view_write(x: Tensor) -> Tensor:
    v = x[1:]
    if v.sum() > 0:
        v.fill_(9)
    return x.clone()


def draws_before(x: Tensor) -> Tensor:
    noise = torch.rand(3)
    return x + noise if x.sum() > 0 else x - noise


def draws_decide(x: Tensor) -> Tensor:
    return x + 1 if torch.rand(()) > 0.5 else x - torch.rand(3)


def draws_on_one(x: Tensor) -> Tensor:
    return x + torch.randn(3) if x.sum() > 0 else x


def masked(x: Tensor) -> Tensor:
    return x[x > 0] * 2


def nonzero(x: Tensor) -> Tensor:
    return torch.ones(len(x.nonzero()))


def unique(x: Tensor) -> tuple[Tensor, Tensor]:
    values, counts = torch.unique(x.sign(), return_counts=True)
    return values, counts


def listed(x: Tensor) -> Tensor:
    return torch.tensor([v * 2 for v in x.tolist() if v > 0]) + x.sum()


def numpy_read(x: Tensor) -> Tensor:
    return x * float(x.numpy()[0])


def formatted(x: Tensor) -> dict[str, Tensor]:
    return {f"{x[0].item():.1f}": x + 1}


def equal(x: Tensor) -> Tensor:
    return x + 1 if torch.equal(x, x.abs()) else x - 1


def close(x: Tensor) -> Tensor:
    return x + 1 if torch.allclose(x, x.abs()) else x - 1


def contains(x: Tensor) -> Tensor:
    return x + 1 if 2 in x else x


def indexed(x: Tensor, i: Tensor) -> Tensor:
    return x[: i[0]] * 2 if i[1] else x[i[2] :] + torch.zeros(int(i[0]))


def sized(x: Tensor, i: Tensor) -> Tensor:
    return torch.zeros(i[0], i[1] + 1) + x.sum()


def repeats(x: Tensor, i: Tensor) -> Tensor:
    return torch.repeat_interleave(x, i)


def scalar_math(x: Tensor) -> Tensor:
    return x * math.floor(x[0]) + (1 if math.isnan(x[1]) else 2)


def extremes(x: Tensor) -> Tensor:
    return max(x[0], x[1]) * min(x[1], x[2])


def grown(x: Tensor) -> Tensor:
    rows = []
    for v in x:
        if v > 0:
            rows.append(v * 2)
        else:
            rows += [v, -v]
    return torch.stack(rows)


def caught(x: Tensor) -> Tensor:
    try:
        if x[0] > 0:
            raise KeyError("k")
        return x * 2
    except KeyError:
        return x * 3


def recursive(x: Tensor) -> Tensor:
    return x if x.abs().sum() < 1 else recursive(x / 2) + 1


def unpacked(x: Tensor) -> Tensor:
    a, b, c = (v.item() for v in x)
    return torch.tensor([c, b, a]) + x if a < b else x


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        if self.training and x.sum() > 0:
            return self.lin(x)
        return self.lin(-x) if self.seen > 4 else x


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Inner(), Inner()
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        y = self.norm(torch.stack([z, z.sin(), 1 - z, z * x]))
        if y.abs().max() > 1:
            y = self.drop(y)
        return self.second(y[0])


class Counted(nn.Module):
    """Writes a buffer on one way only, before the other condition."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hits", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        if x[0] > 0:
            self.hits[0] += 1
        if x[1] > 0:
            self.hits[1] += x[1]
            return x * self.hits.sum()
        return x


VECTORS: tuple[tuple[Tensor, ...], ...] = ((P,), (N,), (Z,))
INDICES: tuple[tuple[Tensor, ...], ...] = ((P, I1), (P, I2), (N, I1))
PROGRAMS: dict[str, tuple[Callable[[], Any], tuple[tuple[Tensor, ...], ...]]] = {
    **{f.__name__: ((lambda f=f: f), VECTORS) for f in (
        branch, elif_chain, item_value, int_loop, while_loop, break_loop, early_return, boolean, chain, asserting,
        raising, write_before, write_after, write_between, view_write, draws_before, draws_decide, draws_on_one, masked,
        nonzero, unique, listed, numpy_read, formatted, equal, close, contains, scalar_math, extremes, grown, caught,
        recursive, unpacked,
    )},
    **{f.__name__: ((lambda f=f: f), INDICES) for f in (indexed, sized, repeats)},
    "nested": (Nested, VECTORS), "counted": (Counted, VECTORS),
}  # fmt: skip
