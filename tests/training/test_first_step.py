"""What the first compiled step of a training loop does once, however many parameters it updates."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.capture.staging.fakes.fake_tensors import FakeRecorder
from smelt.capture.staging.stage import _Run
from smelt.compiler import unit
from smelt.compiler.pipeline import functional_graph
from tests.forked import smelt_forks


class Net(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


def trained(model: Net, x: Any, compiles: bool) -> tuple[Any, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = smelt.compile(step) if compiles else step
    return [run(x) for _ in range(4)], list(model.parameters())


def asked(layers: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often operators of updates are tried on fake tensors, and how often the program runs on these."""
    counts = {"updates": 0, "runs": 0}
    run, once = FakeRecorder._run, _Run._once

    def counted(recorder: Any, overload: Any, *more: Any, **named: Any) -> Any:
        counts["updates"] += str(overload) in ("aten.lerp_.Scalar", "aten.addcdiv_.default", "aten.sqrt.default")
        return run(recorder, overload, *more, **named)

    def counted_once(self: Any, *args: Any) -> Any:
        counts["runs"] += 1
        return once(self, *args)

    torch.manual_seed(0)
    model, x = Net(layers), torch.randn(3, 4)
    other = copy.deepcopy(model)
    with monkeypatch.context() as patch:
        patch.setattr(FakeRecorder, "_run", counted)
        patch.setattr(_Run, "_once", counted_once)
        found = trained(model, x, True)
    torch.testing.assert_close(found, trained(other, x, False))
    return counts


def test_more_parameters_are_no_more_to_find_out(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = asked(1, monkeypatch), asked(3, monkeypatch)
    assert few == many
    # Weight and bias, three operators each; what asks for the number of steps is known from the recorded run.
    assert few == {"updates": 6, "runs": 1}


FIRST = """
import torch, smelt
from smelt.diag import events
assert not events.native.is_known
f = smelt.compile(lambda x: x.sin() + 1, options={"cache_dir": CACHE})
x = torch.ones(3)
f(x)
print(events.native.profiler is not None)
"""


def test_the_first_recording_of_a_machine_is_watched_natively(tmp_path: Any) -> None:
    assert smelt_forks().run(FIRST.replace("CACHE", repr(str(tmp_path)))).split() == ["True"]


def test_a_run_that_makes_the_state_of_an_optimizer_gives_no_functional_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not replayed, so nothing is made of what it recorded; the next run is compiled."""
    names: list[str] = []

    def counted(graph: Any, *more: Any) -> Any:
        names.append(graph.name)
        return functional_graph(graph, *more)

    monkeypatch.setattr(unit, "functional_graph", counted)
    results = []
    for compiles in (False, True):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(3)) for _ in range(2)]
        optimizer = torch.optim.AdamW(parameters, lr=0.1)
        step = smelt.compile(optimizer.step) if compiles else optimizer.step
        for number in range(3):
            for p in parameters:
                p.grad = torch.ones(3)
            step()
            assert bool(names) == (compiles and number > 0)
        results.append(parameters)
    for ours, eager in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, eager)
