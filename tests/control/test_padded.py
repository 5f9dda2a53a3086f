"""Sizes that follow data: tensors as long as they can get, with counts, against eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import smelt
from smelt.codegen.lower.unknown import padded
from smelt.ops.evaluate import evaluate
from smelt.runtime.plan import PyCall


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def rows(count: int = 7, width: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def masks(count: int = 7) -> list[Tensor]:
    """None, all, one, some."""
    some = torch.arange(count) % 3 != 1
    return [some, torch.zeros(count) > 0, torch.ones(count) > 0, torch.arange(count) == count - 1]


# --- programs of (x, mask); each takes all masks


def chain(x: Tensor, m: Tensor) -> Tensor:
    return x[m].sin() * 2 + 1


def two_masks(x: Tensor, m: Tensor) -> Tensor:
    kept = x[m]
    return kept[kept[:, 0] > 0] * 3


def places(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    found = m.nonzero()
    return found, found[:, 0] * 2


def matrix_mask(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    row, column = torch.where(x > 0.2)
    return x[x > 0.2], row, column + m.sum()


def columns_of_rows(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    kept = x[m]
    return kept, kept[:, 1:3], kept[:, 0]


def selected(x: Tensor, m: Tensor) -> Tensor:
    return torch.masked_select(x, x > 0.3).exp()


def of_numbers(x: Tensor, m: Tensor) -> Tensor:
    return (x * 2).round().nonzero()


def reductions(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    kept = x[m]
    return kept.sum(), kept.sum(0), kept.sum(1), kept.mean(1), (kept > 0).any(0), (kept > -9).all(), kept.prod(0)


def means(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    return x[m].mean(), x[m].mean(0, keepdim=True)


def along_rows(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    kept = x[m]
    best, where = kept.max(1)
    return kept.softmax(-1), F.layer_norm(kept, (4,)), best, where, kept.topk(2, -1).values, kept.sort(-1).values


def products(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    weight = torch.arange(12.0).view(3, 4) / 7
    return F.linear(x[m], weight, torch.ones(3)), x[m] @ weight.t()


def put_rows(x: Tensor, m: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[m] = x[m].tanh()
    return out


def put_number(x: Tensor, m: Tensor) -> Tensor:
    out = x.clone()
    out[m] = -1.0
    out[out > 1] = 1.0
    return out


def put_row(x: Tensor, m: Tensor) -> Tensor:
    out = x.clone()
    out[m] = torch.arange(4.0)
    return out


def added(x: Tensor, m: Tensor) -> Tensor:
    (index,) = torch.where(m)
    out = torch.zeros_like(x).neg()
    out.index_add_(0, index // 2, x[index] * 2)
    return out


def looked_up(x: Tensor, m: Tensor) -> Tensor:
    return F.embedding(m.nonzero()[:, 0] % 3, x)


def shaped(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    kept = x[m]
    return kept.view(-1, 2, 2).transpose(1, 2), kept.unsqueeze(1).expand(-1, 3, 4), kept.t()


def joined(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    kept = x[m]
    return torch.cat([kept, kept * 2], 1), torch.stack([kept, kept.neg()], 1)


def of_counts(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor, int]:
    kept = x[m]
    number = kept.shape[0]
    return torch.arange(number) * 2, torch.zeros(number, 4) + kept, number * 2 + kept.numel()


def cuts(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    number = int(m.sum())
    return x[:number] * 2, x[1:number] + 1, x[:, : min(number, 4)].exp(), (x * 2)[: number - 3]


def columns(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    number = int(m.sum()) % 5
    return x[:, :number].exp(), (x * 2)[:, :number]


def cut_of_kept(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    kept = x[m]
    return kept[1:].abs(), kept[:2].sin()


def divided(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    index = m.nonzero()[:, 0]
    return (index + 5) // (index + 1), index % 3


def first_if_any(x: Tensor, m: Tensor) -> Tensor:
    kept = x[m]
    if kept.shape[0] > 0:
        return kept[0] * 2
    return x[0]


def branch_sizes(x: Tensor, m: Tensor) -> Tensor:
    kept = x[m]
    if kept.sum() > 0:
        return kept * 2
    return x[~m].sin()


def shrinking(x: Tensor, m: Tensor) -> tuple[Tensor, int]:
    left, turns = x[m], 0
    while left.shape[0] > 1:
        left = left[1:]
        left = left[left[:, 0] > left[0, 0] - 1] * 0.9
        turns += 1
    return left.sum(), turns


def collected(x: Tensor, m: Tensor) -> Tensor:
    order, kept = x[:, 0].argsort(), []
    while order.numel() > 0:
        kept.append(order[0])
        order = order[1:]
        order = order[x[order, 1] > 0]
    return torch.stack(kept) + m.sum()


def in_a_counted_loop(x: Tensor, m: Tensor) -> Tensor:
    total = torch.zeros(())
    for turn in range(12):
        kept = x[m & (torch.arange(7) >= turn // 2)]
        total = total + kept.sum() * turn
    return total


NATIVE = [
    chain, two_masks, matrix_mask, columns_of_rows, selected, reductions, means, along_rows, products, put_rows,
    put_number, put_row, added, looked_up, joined, of_counts, columns, cut_of_kept, first_if_any, branch_sizes,
    shrinking, collected, in_a_counted_loop,
]  # fmt: skip


# --- programs that are partly left to exact tensors


def growing(x: Tensor, m: Tensor) -> Tensor:
    kept = x[m]
    for _ in range(3):
        kept = torch.cat([kept, kept[:1] * 2])
    return kept


def across(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    kept = x[m]
    return kept.cumsum(0), kept.sort(0).values, torch.cat([kept, x]), kept.flip(0)


def from_the_end(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    kept = x[m]
    return kept[-2:], x[int(m.sum()) :]


def flat(x: Tensor, m: Tensor) -> Tensor:
    return x[m].flatten().unique()


def broadcast(x: Tensor, m: Tensor) -> Tensor:
    kept = x[m]
    return kept[:, None] - kept[None]


def scattered(x: Tensor, m: Tensor) -> Tensor:
    index = m.nonzero()[:, 0]
    out = x.clone()
    out[index, 1] = 5.0
    return out


def by_lists(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    kept, n = x[m], int(m.sum())
    return kept[:, [0, 2]].mean(-1), kept[: n - 1, [1, -1]] + 1, x[:n, [[3, 0], [1, 1]]]


def written(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    kept = x[m] * 2
    kept[..., 0] = -5.0
    kept[:, 1:3] += kept[:, :1]
    kept[..., -1] = kept.sum(1)
    turned = x[m].t()
    turned[1] *= 3
    return kept, kept[:, 1:] - kept[:, :-1], turned + 1


PARTLY = [
    places, of_numbers, cuts, shaped, divided, growing, across, from_the_end, flat, broadcast, scattered, written,
    by_lists,
]  # fmt: skip


def same(got: Any, expected: Any) -> None:
    ours, spec = pytree.tree_flatten(got)
    theirs, wanted = pytree.tree_flatten(expected)
    assert spec == wanted
    for mine, other in zip(ours, theirs, strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-5, equal_nan=True)
            assert mine.dtype is other.dtype and (mine.stride() == other.stride() or 0 in other.shape)
        else:
            assert type(mine) is type(other) and mine == other


@pytest.mark.spread(10)
@pytest.mark.parametrize("program", [*NATIVE, *PARTLY])
def test_as_in_eager(program: Callable[..., Any]) -> None:
    compiled = smelt.compile(program)
    calls = [(rows(seed=seed), m) for seed in range(2) for m in masks()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for args in (*calls, *calls[::-1]):
            same(compiled(*args), program(*args))
    assert not compiled.stats().fallbacks


@pytest.mark.spread(10)
@pytest.mark.parametrize("program", [*NATIVE, *PARTLY])
def test_the_evaluator_says_the_same_of_both_graphs(program: Callable[..., Any]) -> None:
    graph = smelt.trace(program, (rows(), masks()[0])).graph
    made = padded(graph)
    for m in masks():
        for mine, other in zip(evaluate(made, [rows(), m]), evaluate(graph, [rows(), m]), strict=True):
            same(mine, other)


@pytest.mark.spread(15)
@pytest.mark.parametrize("program", NATIVE)
def test_nothing_goes_through_python(program: Callable[..., Any]) -> None:
    compiled = smelt.compile(program)
    compiled(rows(), masks()[0])
    (row,) = compiled.stats().rows
    assert row.entry is not None
    assert not [i for i in row.entry.lowered.plan.instructions if isinstance(i, PyCall)]


def refused(x: Tensor, m: Tensor) -> Tensor:
    if x[m].max() >= 5:
        _ = x + 1
    return x * 2


def test_sizes_that_an_operator_refuses_are_refused_each_time() -> None:
    compiled = smelt.compile(refused)
    x, some, none = rows(), masks()[0], masks()[1]
    for m in (some, none, none, some, none, none):
        if m is none:
            with pytest.raises(RuntimeError, match="max"):
                compiled(x, m)
        else:
            same(compiled(x, m), refused(x, m))
