"""A traced program does at each call what its run left in arguments and attributes, or tells the line it left out."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch

import smelt
from tests.state.twins import Base, rows, same


class Keeping(Base):
    def init(self) -> None:
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, held: dict[str, Any], items: list[Any]) -> torch.Tensor:
        y = self.f(x)
        self.last = y
        held["mean"] = y.mean()
        items.append(y.sum())
        return y * 2


class KeepingOnData(Base):
    def init(self) -> None:
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, held: dict[str, Any], items: list[Any]) -> torch.Tensor:
        self.last = x.sin()
        if x.sum() > 0:
            held["mean"] = x + 1
        else:
            held["mean"] = x - 1
        return self.f(x)


def arguments(number: int) -> tuple[torch.Tensor, dict[str, Any], list[Any]]:
    return (*rows(number), {"mean": None}, [1])


@pytest.mark.parametrize("cls", [Keeping, KeepingOnData])
@pytest.mark.parametrize("how", ["traced", "copied", "pickled"])
def test_what_is_left_is_left_at_each_call(cls: type[Base], how: str) -> None:
    eager, source = cls(), cls()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        given = arguments(0)
        program = smelt.trace(source, given)
        again = arguments(0)
        eager(*again)
        same([given[1], given[2], source.last], [again[1], again[2], eager.last], "the run itself")
        if how == "copied":
            program = copy.deepcopy(program)
        if how == "pickled":
            program = pickle.loads(pickle.dumps(program))
        source = program._source
        for number in range(1, 5):
            mine, yours = arguments(number), arguments(number)
            same(program(*mine), eager(*yours), f"call {number}: result")
            same([*mine[1:], source.last], [*yours[1:], eager.last], f"call {number}: what is left")


def test_what_is_not_repeated_is_told_at_its_line() -> None:
    class Counting(Base):
        def init(self) -> None:
            self.n = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n += 1  # the line
            return self.f(x)

    with torch.no_grad(), pytest.warns(smelt.SmeltWarning, match="does not repeat") as caught:
        smelt.trace(Counting(), rows(0))
    with open(__file__, encoding="utf-8") as file:
        line = next(number for number, text in enumerate(file, 1) if "self.n += 1  # the line" in text)
    assert [(found.filename, found.lineno) for found in caught] == [(__file__, line)]
