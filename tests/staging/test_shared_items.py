"""Items of lists that grow where data say so: what lies in one memory in eager does so in each call's answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import smelt

X, Y = torch.arange(3.0), torch.ones(2)


def rows_of_a_constant(x: Tensor, y: Tensor) -> list[Tensor]:
    items = list(torch.tensor([1.0, 2.0, 3.0]))
    if torch.equal(y, y):
        items += [x[0] * 2]
    return items


def views_of_what_is_known(x: Tensor, y: Tensor) -> list[Tensor]:
    _, *items = torch.stack([torch.ones([]), torch.full([], 2.0), torch.full([], 3.75)])
    turns = 0
    while items and turns < 2:
        turns += 1
        if torch.equal(y, y):
            items += [x[0] * 2]
    return items


def a_part_and_the_whole(x: Tensor, y: Tensor) -> list[Tensor]:
    whole = torch.arange(4.0)
    items = [whole, whole[:2]]
    for _ in range(int(y[0])):
        items.append(x * 2)
    return items


def one_twice(x: Tensor, y: Tensor) -> list[Tensor]:
    one = torch.tensor([1.0, 2.0])
    items = [one, one]
    for _ in range(int(y[0])):
        items.append(x * 2)
    return items


def one_at_each_turn(x: Tensor, y: Tensor) -> list[Tensor]:
    one = torch.ones(3)
    items = []
    for _ in range(int(y[0]) + 1):
        items.append(one)
    return items


def by_names(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    whole = torch.ones(3)
    items = {"a": whole, "b": whole[1:]}
    if torch.equal(y, y):
        items["c"] = whole
    return items


def pairs(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    whole = torch.ones(3)
    items = [(whole, whole[1:])]
    if torch.equal(y, y):
        items.append((whole, x * 2))
    return items


def of_data(x: Tensor, y: Tensor) -> list[Tensor]:
    whole = torch.stack([x, x + 1])
    items = [whole[0], whole[1], whole]
    if torch.equal(y, y):
        items.append(x * 2)
    return items


def leaves(result: Any) -> list[Tensor]:
    return pytree.tree_leaves(result)


def shares(items: list[Tensor]) -> list[int]:
    """For each item the first one whose memory it lies in."""
    memories = [item.untyped_storage().data_ptr() for item in items]
    return [memories.index(memory) for memory in memories]


def same(items: list[Tensor]) -> list[int]:
    """For each item the first one that it is."""
    return [next(i for i, other in enumerate(items) if other is item) for item in items]


@pytest.mark.spread(10)
@pytest.mark.parametrize("make", [smelt.compile, smelt.script])
@pytest.mark.parametrize(
    "program",
    [
        rows_of_a_constant,
        views_of_what_is_known,
        a_part_and_the_whole,
        one_twice,
        one_at_each_turn,
        by_names,
        pairs,
        of_data,
    ],
    ids=lambda program: program.__name__,
)
def test_items_share_as_in_eager(program: Callable[..., Any], make: Callable[..., Any]) -> None:
    made = make(program)
    earlier: list[Tensor] = []
    with torch.no_grad():
        for x in (X, X * 2, -X):
            expected, found = program(x, Y), made(x, Y)
            torch.testing.assert_close(found, expected)
            items = leaves(found)
            assert shares(items) == shares(leaves(expected))
            assert same(items) == same(leaves(expected))
            assert not {one.data_ptr() for one in items} & {one.data_ptr() for one in earlier}
            earlier = items
