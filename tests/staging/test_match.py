"""`match` on what depends on data: True and False in a pattern are compared by identity, however deep they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@dataclass
class Found:
    is_high: Any
    last: Any


def in_a_sequence(x: Tensor) -> Any:
    match (bool(x.sum() > 0), 1):
        case (True, n):
            return x * n
        case (False, n):
            return x - n
        case _:
            return x * 9


def in_a_mapping(x: Tensor) -> Any:
    match {"high": bool(x.sum() > 0), "n": 3}:
        case {"high": False, **rest}:
            return x - rest["n"]
        case {"high": True}:
            return x + 1
        case _:
            return x * 9


def in_a_class(x: Tensor) -> Any:
    match Found(bool(x.sum() > 0), None):
        case Found(True, None):
            return x + 1
        case Found(is_high=False, last=None):
            return x - 1
        case _:
            return x * 9


def alternatives(x: Tensor) -> Any:
    match [bool(x.sum() > 0), bool(x[0] > 1)]:
        case [True | 5, False]:
            return x + 1
        case [False as was, bool() as other] if not other:
            return x - 1, was
        case [_, True as other]:
            return x * 2, other
        case _:
            return x * 9


def names_are_bound_by_what_matched(x: Tensor) -> Any:
    n = -1
    match (bool(x.sum() > 0), 7):
        case (True, n) if n > 9:
            return x
        case (False, n):
            x = x + n
    return x * n, n


PROGRAMS = [in_a_sequence, in_a_mapping, in_a_class, alternatives, names_are_bound_by_what_matched]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_in_eager(program: Callable[..., Any]) -> None:
    calls = [torch.tensor(v) for v in ([2.0, 1.0], [-2.0, 1.0], [0.5, 0.25], [3.0, -9.0], [0.5, -1.0])]
    expected = [str(program(x)) for x in calls]
    compiled = smelt.compile(program)
    for _ in range(2):
        assert [str(compiled(x)) for x in calls] == expected


def test_one_graph() -> None:
    compiled = smelt.compile(in_a_sequence)
    for sign in (1.0, -1.0, 1.0):
        compiled(torch.tensor([sign, sign]))
    assert len(smelt.explain(compiled).graphs) == 1
