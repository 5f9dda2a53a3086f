"""Stagings that came to nothing are not begun again for each build."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import smelt


def members(x: torch.Tensor) -> torch.Tensor:
    return x * len(set(x.flatten().tolist()))


def some(x: torch.Tensor, is_plain: bool) -> torch.Tensor:
    if is_plain:
        return x * 2 if x.sum() > 0 else x - 1
    return members(x)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One item for each staging."""
    found: list[Any] = []
    build = sys.modules["smelt.compiler.build"]
    staged = build.staged_unit

    def counted(*args: Any, **kwargs: Any) -> Any:
        found.append(args)
        return staged(*args, **kwargs)

    monkeypatch.setattr(build, "staged_unit", counted)
    return found


def _sizes(count: int) -> list[tuple[int, int]]:
    return [(2 + n % 5, 3 + n) for n in range(count)]


def test_a_reason_that_came_twice_is_enough(begun: list[Any]) -> None:
    compiled = smelt.compile(members)
    counts = []
    for size in _sizes(6):
        x = torch.ones(size)
        torch.testing.assert_close(compiled(x), members(x))
        counts.append(len(begun))
    assert compiled.stats().builds == 6
    assert counts[3:] == counts[3:4] * 3
    assert all(row.entry is not None and row.entry.why_paths for row in compiled.stats().rows)


def test_calls_of_another_kind_are_attempted(begun: list[Any]) -> None:
    compiled = smelt.compile(some)
    for size in _sizes(3):
        compiled(torch.ones(size), False)
    for sign in (1, -1):
        x = sign * torch.ones(2, 3)
        torch.testing.assert_close(compiled(x, True), some(x, True))
    rows = [row for row in compiled.stats().rows if row.entry is not None and row.entry.is_staged]
    assert len(rows) == 1
