"""Functions that somebody sets on torch's own classes and modules are seen, whoever calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


class Named(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).tanh()


def negative(first: Any, *args: Any, **kwargs: Any) -> Tensor:
    x = first if isinstance(first, Tensor) else args[0]
    return x * -3  # type: ignore[no-any-return]


CASES: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "a function that a layer calls": (lambda: nn.Linear(2, 2), F, "linear"),
    "a function that an activation calls": (lambda: nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), F, "relu"),
    "a function that the program calls": (Named, F, "relu"),
    "a method of tensors": (lambda: lambda x: x.tanh() + 1, Tensor, "tanh"),
    "a method of tensors in a module": (Named, Tensor, "tanh"),
    "the call of a class": (lambda: nn.Sequential(nn.Linear(2, 2)), nn.Linear, "__call__"),
}


@pytest.mark.parametrize(("make", "owner", "name"), CASES.values(), ids=CASES)
def test_what_is_set_is_called(make: Any, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    program, x = make(), torch.randn(3, 2)
    compiled = smelt.compile(program)
    before = program(x)
    for _ in range(3):
        assert torch.allclose(compiled(x), before)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, negative, raising=False)
        for _ in range(2):
            assert torch.allclose(compiled(x), program(x))
        assert not torch.allclose(compiled(x), before)
    assert torch.allclose(compiled(x), before)


def test_a_method_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    scales = [3.0]
    monkeypatch.setattr(Tensor, "scaled", lambda x: x * scales[0], raising=False)

    def program(x: Tensor) -> Tensor:
        return x.scaled() + 1  # type: ignore[attr-defined,no-any-return]

    compiled, x = smelt.compile(program), torch.ones(2)
    for _ in range(3):
        assert torch.equal(compiled(x), program(x))
    assert compiled.stats().builds == 1
    scales[0] = 4.0
    assert torch.equal(compiled(x), x * 5)
    scales = [7.0]
    assert torch.equal(compiled(x), x * 8)
    monkeypatch.setattr(Tensor, "scaled", lambda x: x * 9)
    assert torch.equal(compiled(x), x * 10)
