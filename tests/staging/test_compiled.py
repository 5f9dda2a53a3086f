"""Compiled programs whose way depends on data: what their graph relies on, and what finding it may take."""

from __future__ import annotations

import pytest
import torch

import smelt
from smelt.capture.staging import stage as staging
from smelt.capture.staging.flow import paths


def test_the_budget_is_a_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is; what does not fit in it is captured by paths."""

    def steps(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = x + 1 if x.sum() > 0 else x - 1
        return x

    x = torch.ones(3)
    for budget, is_staged in ((6, False), (1000, True)):
        monkeypatch.setattr(staging, "_STEPS", budget)
        monkeypatch.setattr(staging, "_STEPS_EACH", 0)
        compiled = smelt.compile(steps)
        assert torch.equal(compiled(x), x + 6) and torch.equal(compiled(-x), -x - 6)
        entries = [row.entry for row in compiled.stats().rows if row.entry is not None]
        assert [entry.is_staged for entry in entries] == ([True] if is_staged else [False, False])
        assert is_staged or any("staging took too long" in entry.why_paths for entry in entries)


def test_arms_that_read_attributes_meet_in_one_branch() -> None:
    """What notes the reads is no state of the program's that an arm would leave changed."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = 2.0, [3.0]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            if x.sum() > 0:
                y = y * self.scale
            else:
                y = y - self.shift[0]
            return y.neg()

    net, x = Net(), torch.ones(3)
    compiled = smelt.compile(net)
    for change in ("", "scale", "shift"):
        if change == "scale":
            net.scale = 5.0
        elif change == "shift":
            net.shift[0] = 7.0
        for given in (x, -x, x):
            assert torch.equal(compiled(given), net(given)), change
        entry = compiled.stats().rows[-1].entry
        assert entry is not None and entry.is_staged
        assert [node.op for node in entry.graph.walk()].count("aten.neg.default") == 1


@pytest.mark.parametrize("most", [64, 8])
def test_short_loops_that_grow_know_all_sizes(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number of turns is a way of its own, where the ways are not too many."""

    def grow(x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(10):
            y = torch.cat([y, x + y[-1:]])
            if y.sum() > 20:
                break
        return y * 2

    monkeypatch.setattr(paths, "MOST_PATHS", most)
    compiled = smelt.compile(grow)
    for _ in range(3):
        for value in (3.0, 0.5, -1.0, 30.0):
            x = torch.full((1,), value)
            assert torch.equal(compiled(x), grow(x))
    (row,) = compiled.stats().rows
    assert row.entry is not None and row.entry.is_staged
    types = [r.type for node in row.entry.graph.walk() for r in node.results if node.op == "aten.cat.default"]
    assert all(type_.is_static for type_ in types) == (most == 64)
