"""Programs that change the containers they are given: calls are like earlier ones as these came, not as they left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt

Program = Callable[[Tensor, Any], Any]


def stacked(x: Tensor, items: list[Tensor]) -> Any:
    if x.sum() > 0:
        items.append(x * 2)
    return torch.stack(items).sum(), len(items)


def counted_before(x: Tensor, items: list[Tensor]) -> Any:
    n = len(items)
    if x.sum() > 0:
        items.append(x * n)
    return x * n


def nothing_or(x: Tensor, items: list[Tensor]) -> Any:
    if x.sum() > 0:
        items.append(x)
        return None
    return x * len(items)


def popped(x: Tensor, items: list[Tensor]) -> Any:
    if x.sum() > 0:
        items.pop()
    return x * len(items)


def put_in_place(x: Tensor, items: list[Tensor]) -> Any:
    if x.sum() > 0:
        items[0] = torch.cat([x, x]).double()
    return items[0] * items[0].shape[0]


def keyed(x: Tensor, items: dict[int, Tensor]) -> Any:
    if x.sum() > 0:
        items[len(items)] = x
    return x * len(items)


def listed(n: int) -> Any:
    return [torch.ones(2) * i for i in range(n)]


def entered(n: int) -> Any:
    return dict(enumerate(listed(n)))


def same(a: Any, b: Any) -> bool:
    if isinstance(b, Tensor):
        return isinstance(a, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(b, dict):
        return list(a) == list(b) and same(list(a.values()), list(b.values()))
    if isinstance(b, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.spread(20)
@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("program", [stacked, counted_before, nothing_or, popped, put_in_place, keyed])
def test_lengths_that_a_call_leaves_behind(program: Program, dynamic: bool | None) -> None:
    compiled = smelt.compile(program, dynamic=dynamic)
    make = entered if program is keyed else listed
    for sign in (1.0, -1.0, 1.0):
        for n in (2, 2, 2, 3, 3, 3, 4, 1, 2, 3):
            x, given, wanted = torch.ones(2) * sign, make(n), make(n)
            assert same(compiled(x, given), program(x, wanted)), n
            assert same(given, wanted), n


def test_such_calls_come_to_run_natively() -> None:
    compiled = smelt.compile(stacked)
    for _ in range(4):
        compiled(torch.ones(2), listed(2))
    (entry,) = compiled.stats().entries
    assert compiled.stats().builds == 1 and entry.native is not None
