"""Results of which no graph holds both ways (a tensor or None), by numbers that data give: a graph for each answer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.diag import CaptureError, SmeltWarning
from tests.state.twins import plain, same

X = torch.ones(3)


def or_none(x: Tensor) -> Any:
    k = x.sum().item()
    return x * 2 if k > 0 else None


def of_three_kinds(x: Tensor) -> Any:
    k = x.sum().item()
    if k > 0:
        return x * k
    if x[0].item() > 0:
        return "negative"
    return [x, k]


def of_other_keys(x: Tensor, n: float) -> Any:
    k = x.sum().item()
    if k > n:
        return {"a": x * k}
    return {"b": x * n, "k": k}


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        k = x.mean().item()
        if k > 0.1:
            return None
        return x * self.calls, k


def rows(number: int) -> Tensor:
    return torch.randn(3 + number % 5, generator=torch.Generator().manual_seed(number))


@pytest.mark.parametrize(("program", "most"), [(or_none, 4), (of_three_kinds, 7)])
def test_a_build_for_each_answer(program: Callable[..., Any], most: int) -> None:
    compiled = smelt.compile(program)
    with torch.no_grad():
        for number in range(40):
            same(plain(compiled(rows(number))), plain(program(rows(number))), f"call {number}")
        compiled(torch.full((3,), float("nan")))
    assert compiled.stats().builds <= most


def test_numbers_stay_free() -> None:
    compiled = smelt.compile(of_other_keys)
    with torch.no_grad():
        for number in range(30):
            x, n = rows(number), number / 7 - 2
            same(plain(compiled(x, n)), plain(of_other_keys(x, n)), f"call {number}")
    assert compiled.stats().builds <= 5


def test_state_stays_free() -> None:
    eager = Counting()
    other = copy.deepcopy(eager)
    compiled = smelt.compile(other)
    with torch.no_grad():
        for number in range(40):
            same(plain(compiled(rows(number))), plain(eager(rows(number))), f"call {number}")
            assert other.calls == eager.calls
    assert compiled.stats().builds <= 6


def test_a_trace_holds_for_one_answer_and_says_so() -> None:
    with pytest.warns(SmeltWarning, match="holds for one path: a test of what data gave was True"):
        traced = smelt.trace(or_none, (X,))
    for x in (X, X * 5):
        torch.testing.assert_close(traced(x), x * 2)
    with pytest.raises(CaptureError, match="a test of what data gave was True when") as caught:
        traced(-X)
    assert caught.value.code == "S0101"
    with pytest.raises(CaptureError):
        smelt.trace(or_none, (X,), options={"strict": True})


def asked_of_tensors_too(x: Tensor) -> Any:
    """What `bool` gives of a tensor is another value at each place, although they stand in one line."""
    match [bool(x.sum() > 0), bool(x[0] > 1)]:
        case [True, False]:
            return x + 1
        case [False, _]:
            return None
        case _:
            return [x * 9]


def test_what_is_read_of_tensors_in_one_line() -> None:
    compiled = smelt.compile(asked_of_tensors_too)
    with torch.no_grad():
        for values in ([2.0, 2.0], [0.5, 0.5], [-1.0, -1.0], [2.0, -1.0], [0.5, 0.7], [3.0, -9.0]) * 3:
            x = torch.tensor(values)
            same(plain(compiled(x)), plain(asked_of_tensors_too(x)), str(values))
