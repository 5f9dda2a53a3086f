"""A graph of all ways that fails at run time gives way to paths; Python effects stay, at each call, in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt import SmeltWarning
from smelt.compiler import Unit

from .judge import agree


def overflows(x: Tensor) -> Tensor:
    """Native code has 64 bits."""
    n = int(x[0])
    while n < 10**6:
        n = n * n + 7
    return x * (n * n * n % 7) if n % 2 else x - 1


def draws_first(x: Tensor) -> Tensor:
    noise = torch.rand(3)
    n = int(x[0])
    while n < 10**6:
        n = n * n + 7
    return noise * (n * n * n % 7)


@pytest.mark.parametrize("program", [overflows, draws_first])
def test_a_number_beyond_64_bits(program: Any) -> None:
    calls = [(torch.full((3,), float(n)),) for n in (1, 1, 2, 1, 2, 1, 3, 2, 1)]
    compiled = smelt.compile(program)
    agree(compiled, program, calls)
    stats = compiled.stats()
    assert all(isinstance(row.entry, Unit) and row.entry.is_path for row in stats.rows) and len(stats.rows) == 3
    assert stats.builds == 4 and list(stats.fallbacks) == [why for why in stats.fallbacks if "beyond 64 bits" in why]
    causes = [row["why"] for row in smelt.explain(compiled).graphs]
    assert any("beyond 64 bits" in why for why in causes)
    agree(compiled, program, calls)
    assert compiled.stats().builds == 4
    with pytest.raises(smelt.SmeltError, match="beyond 64 bits"):
        strict = smelt.compile(program, options={"strict": True})
        agree(strict, program, calls[:1])
        strict(*calls[1])


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.log = 0, [0.0]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if x.sum() > 0:
            self.log.append(self.calls)
            return x * self.calls
        return x - len(self.log)


LOG: list[int] = []


def appends(x: Tensor) -> Tensor:
    if x.sum() < 0:
        return x * len(LOG)
    LOG.append(len(LOG))
    return x + len(LOG)


def test_python_effects_happen_at_each_call() -> None:
    model, twin = Counting(), Counting()
    compiled = smelt.compile(model)
    with pytest.warns(SmeltWarning, match=r"it changes Counting\.calls at .*test_failing\.py:\d+ in Counting\.forward"):
        for value in (1.0, -1.0, 1.0, 1.0, -1.0):
            x = torch.full((3,), value)
            with torch.no_grad():
                assert torch.equal(compiled(x), twin(x))
            assert (model.calls, model.log) == (twin.calls, twin.log)
    line = Counting.forward.__code__.co_firstlineno + 1
    assert [f":{line} " in row["why"] for row in smelt.explain(compiled).breaks if "entry" in row] == [True]


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_an_effect_of_a_way_not_taken_at_first() -> None:
    """The first calls change nothing: what the other way changes is seen when it is taken."""
    LOG.clear()
    compiled = smelt.compile(appends)
    expected: list[int] = []
    for value in (-1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0, 1.0):
        x = torch.full((3,), value)
        if value > 0:
            expected.append(len(expected))
        wanted = x + len(expected) if value > 0 else x * len(expected)
        assert torch.equal(compiled(x), wanted) and expected == LOG
