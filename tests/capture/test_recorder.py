"""What the recorder keeps, and what it must not."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import smelt
from smelt._torch.seen import dispatch
from smelt._torch.seen.dispatch import Level, levels, recording, suspended
from smelt.capture import capture
from smelt.capture.structure.roots import reachable


@pytest.mark.usefixtures("young_heap")
@pytest.mark.spread(3)
@pytest.mark.parametrize("level", levels())
def test_intermediate_tensors_die_as_in_eager(level: Level) -> None:
    alive: list[int] = []

    def fn(a):
        refs = []
        for _ in range(10):
            a = a + 1
            refs.append(weakref.ref(a))
        gc.collect()
        alive.append(sum(ref() is not None for ref in refs))
        return a

    with torch.no_grad():
        captured = capture(fn, (torch.ones(3),), level=level)
    assert captured.error is None and alive == [1]


@pytest.mark.parametrize("level", levels())
def test_an_identity_used_again_is_another_tensor(level: Level) -> None:
    def fn(a):
        total = a
        for i in range(200):
            total = total + (a * i) * (a - i)
        return total

    from .replay import check

    check(lambda: (fn, (torch.randn(3),), {}), level)


def test_levels_can_be_forced_and_unknown_ones_are_refused() -> None:
    assert levels()[-1] == "dispatch_mode"
    with pytest.raises(ValueError, match="nowhere"), recording(lambda op, a, k: op(*a, **k), "nowhere"):
        pass


@pytest.mark.parametrize(
    ("hidden", "left"),
    [("_HAS_ENTRY", ("below_autograd", "dispatch_mode")), ("_HAS_BELOW_AUTOGRAD", ("entry", "dispatch_mode"))],
)
def test_a_missing_name_falls_to_the_next_level(monkeypatch: pytest.MonkeyPatch, hidden: str, left: tuple) -> None:
    monkeypatch.setattr(dispatch, hidden, False)
    assert levels() == left
    captured = capture(nn.Linear(2, 2), (torch.ones(1, 2),))
    assert captured.level == left[0] and captured.error is None


@pytest.mark.parametrize("level", levels())
def test_suspended_operators_are_not_seen(level: Level) -> None:
    seen: list[str] = []

    def record(op, args, kwargs):
        seen.append(str(op))
        return op(*args, **kwargs)

    a = torch.ones(2)
    with recording(record, level):
        a = a + 1
        with suspended():
            assert not dispatch.is_live() and dispatch.is_recording()
            a = a * 2
        a = a - 1
    assert seen == ["aten.add.Tensor", "aten.sub.Tensor"] and a.tolist() == [3, 3]


def test_roots_of_functions_modules_and_containers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    table = {"k": [torch.ones(1)]}
    model.extra = (torch.ones(3),)

    def fn(a, default=torch.zeros(1)):  # noqa: B008
        return model(a) + table["k"][0] + default

    found = {(s.kind, s.path): s for s in reachable(fn)}
    assert ("param", "model.0.weight") in found and ("buffer", "model.1.running_mean") in found
    assert ("captured", "table['k'][0]") in found and ("captured", "model.extra[0]") in found
    assert any(s.path.endswith("__defaults__[0]") for s in found.values())
    entry = found["captured", "table['k'][0]"]
    table["k"][0] = torch.full((1,), 5.0)
    assert entry.current() is table["k"][0] and entry.tensor is not table["k"][0]
    model[0].weight = nn.Parameter(torch.zeros(2, 2))
    assert found["param", "model.0.weight"].current() is model[0].weight


def test_what_runs_tests_is_not_followed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request.config, "held", torch.ones(1), raising=False)
    monkeypatch.setattr(pytest, "held", torch.ones(2), raising=False)

    def fn(x, config=request.config):
        assert x.ndim > 1  # pytest makes of this a look at its own modules, which hold each test there is
        return x + pytest.held

    assert [s.path for s in reachable(fn)] == ["pytest.held"]
    assert torch.equal(smelt.trace(fn, (torch.ones(2, 2),))(torch.zeros(2, 2)), torch.ones(2, 2))


def test_module_paths_start_at_the_module() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    for program in (model, model.forward):
        assert {s.path for s in reachable(program)} == {"0.weight", "0.bias"}


def test_an_unread_parameter_is_not_part_of_the_graph() -> None:
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, a):
            return self.used(a)

    captured = capture(Partly(), (torch.ones(1, 2),))
    assert set(captured.state.entries) == {("param", "used.weight"), ("param", "used.bias")}
