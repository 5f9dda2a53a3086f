"""Calls that end in an error: state, results and random numbers are as in eager, and no call is recorded in vain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.state.twins import Base, compare


class Beyond(Base):
    """An index that data lead out of range, behind writes and random numbers."""

    def init(self) -> None:
        self.n = 0
        self.register_buffer("b", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        self.b.add_(torch.rand(6))
        which = (x.sum() > 0).long() * 6
        y = self.f(x) + torch.rand(6)
        return torch.index_select(y, 1, which) + self.b.sum() + torch.rand(6)


class Written(Base):
    """The same without Python's own state."""

    def init(self) -> None:
        self.register_buffer("b", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.b.add_(torch.rand(6))
        return torch.linalg.cholesky(torch.eye(6) * -x.sum()) + torch.rand(6)


class Raised(Base):
    """The program's own error, behind both."""

    def init(self) -> None:
        self.n, self.t = 0, torch.zeros(6)
        self.register_buffer("b", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        self.b.add_(1)
        self.t = self.t + torch.rand(6)
        if x.sum() > 0:
            self.n += 10
            raise ValueError("too much")
        return self.f(x) + self.t + torch.rand(6)


def those(raising: Sequence[int]) -> Callable[[int], tuple[torch.Tensor]]:
    """Arguments with which these calls raise."""

    def arguments(number: int) -> tuple[torch.Tensor]:
        generator = torch.Generator().manual_seed(number)
        return (torch.randn(4, 6, generator=generator) * 0.1 + (1 if number in raising else -1),)

    return arguments


def twin(cls: type[Base]) -> Callable[[], tuple[Any, Callable[[], Any]]]:
    def make() -> tuple[Any, Callable[[], Any]]:
        module = cls()
        return module, lambda: module

    return make


@pytest.mark.spread(6)
@pytest.mark.parametrize("cls", [Beyond, Written, Raised])
@pytest.mark.parametrize("raising", [(5, 6, 8), (0, 5, 7, 9)])
def test_random_numbers_and_state_before_an_error(cls: type[Base], raising: Sequence[int]) -> None:
    compiled = compare(twin(cls), calls=11, arguments=those(raising))
    assert any(row.entry is not None and row.hits for row in compiled.stats().rows)
    assert compiled.stats().builds <= 2


def test_a_call_that_raises_is_not_built_again_and_again() -> None:
    compiled = compare(twin(Raised), calls=40, arguments=those(range(30)))
    assert compiled.stats().builds <= 2
    assert any(row.entry is not None for row in compiled.stats().rows)
