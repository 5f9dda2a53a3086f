"""`map` and `filter` in a script give an item when it is asked for, as Python's do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import smelt


def mapped_then_changed(xs: list[torch.Tensor], c: torch.Tensor) -> Any:
    made = [xs[0], c * 3]
    doubled = map(lambda v: v * 2, made)  # noqa: C417
    made[0:1] = [c, c + 1]
    return list(doubled), made


def filtered_then_changed(xs: list[torch.Tensor], c: torch.Tensor) -> Any:
    made = [xs[0], c * 3]
    kept = filter(lambda v: v.dim() > 0, made)
    made.append(c.sum())
    made[0] = c - 1
    return list(kept), made


def changed_in_it(xs: list[torch.Tensor], c: torch.Tensor) -> Any:
    made = [c, c * 3]
    found = []
    for v in map(lambda v: v + 1, made):  # noqa: C417
        if len(made) < 4:
            made.append(v)
        found.append(v)
    return found


def one_by_one(xs: list[torch.Tensor], c: torch.Tensor) -> Any:
    halves = map(lambda v: v / 2 if v.sum() > 0 else v, [c, -c, c * 3])  # noqa: C417
    first = next(halves)
    kept = filter(None, [0, 4, 5])
    return first, next(kept), list(halves), list(kept), next(halves, c)


@pytest.mark.parametrize("program", [mapped_then_changed, filtered_then_changed, changed_in_it, one_by_one])
def test_as_they_are_asked(program: Any) -> None:
    scripted = smelt.script(program)
    for c in (torch.tensor([1.0, 2.0]), torch.tensor([-1.0, -2.0])):
        xs = [c + 7, c]
        assert str(scripted(xs, c)) == str(program(xs, c))


def test_on_one_path_only() -> None:
    def program(x: torch.Tensor) -> Any:
        doubled = map(lambda v: v * 2, [x, x + 1])  # noqa: C417
        if x.sum() > 0:
            next(doubled)
        return list(doubled)

    with pytest.raises(smelt.CaptureError, match="an iterator is advanced on one path only"):
        smelt.script(program)
