"""What a whole step keeps for its backward pass: what the smallest cut keeps, not all that forward computes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.runtime.plan import Blit, Copy

Tensor = torch.Tensor


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def _blocks(count: int = 8) -> tuple[nn.Module, Tensor]:
    return nn.Sequential(*(Block(64) for _ in range(count))), torch.randn(1024, 64)


def _few_blocks() -> tuple[nn.Module, Tensor]:
    return _blocks(3)


def _convolutions() -> tuple[nn.Module, Tensor]:
    layers = [m for _ in range(3) for m in (nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(8, 8, 32, 32)


def _stack() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(128, 128), nn.Tanh())]), torch.randn(256, 128)


def _step(model: nn.Module) -> Callable[[Tensor], Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _run(made: Callable[[], tuple[nn.Module, Tensor]], **options: Any) -> tuple[Any, nn.Module, nn.Module]:
    """What serves the later calls, the compiled model and eager's, after four steps each."""
    torch.manual_seed(0)
    model, x = made()
    eager = copy.deepcopy(model)
    compiled, plain = smelt.compile(_step(model), options={"adaptive": False, **options}), _step(eager)
    for _ in range(4):
        torch.testing.assert_close(compiled(x), plain(x))
    (row,) = [row for row in compiled.stats().rows if row.entry is not None and row.hits]
    return row.entry, model, eager


def _kept_by_eager(model: nn.Module, x: Tensor) -> int:
    """Bytes that eager keeps between forward and backward, parameters left out."""
    found: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = model(x).square().mean()
    del kept
    return sum(found.values())


def _peak_of_eager(model: nn.Module, x: Tensor) -> int:
    """Most bytes that one of eager's later steps has at once, old gradients left out, new ones counted."""
    step = _step(model)
    for _ in range(2):
        step(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step(x)
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most


@pytest.mark.parametrize("made", [_convolutions, _blocks, _stack], ids=["convolutions", "blocks", "stack"])
def test_a_step_needs_no_more_memory_than_eagers(made: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    unit, _, eager = _run(made)
    gradients = sum(p.grad.nbytes for p in eager.parameters() if p.grad is not None)
    assert unit.lowered.plan.arena_nbytes + gradients <= _peak_of_eager(eager, made()[1])


def test_activations_and_norms_are_computed_again() -> None:
    unit, model, eager = _run(_blocks)
    plan = unit.lowered.plan
    assert any(report.name == "recompute" and report.changed for report in unit.passes)
    # Of each block: its input, and what goes into gelu; then what the block that is gone back through needs.
    assert plan.arena_nbytes < 0.75 * _kept_by_eager(eager, _blocks()[1])
    for name, found in model.named_parameters():
        wanted = eager.get_parameter(name)
        assert found.grad is not None
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-3, atol=1e-6)


def test_a_budget_computes_products_again() -> None:
    sizes = []
    for budget in (1.0, 0.3):
        unit, model, eager = _run(_few_blocks, memory_budget=budget)
        sizes.append(unit.lowered.plan.arena_nbytes)
        for name, found in model.named_parameters():
            torch.testing.assert_close(found.grad, eager.get_parameter(name).grad, rtol=1e-3, atol=1e-6)
    assert sizes[1] < 0.8 * sizes[0]


@pytest.mark.parametrize("made", [_convolutions, _few_blocks], ids=["convolutions", "blocks"])
def test_updates_are_written_where_they_belong(made: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    unit, _, _ = _run(made)
    assert unit.executable.counts.python == 0
    held = {slot for slot, _ in unit.lowered.plan.held}
    assert not [i for i in unit.lowered.plan.instructions if isinstance(i, Copy) and i.dst in held]
    nbytes = [i.nbytes for i in unit.lowered.plan.instructions if isinstance(i, Blit)]
    assert all(n <= 32 for n in nbytes), nbytes  # counts of steps; weights have some kilobytes


def test_plans_with_gradients_of_convolutions_are_kept(tmp_path: Any) -> None:
    unit, _, _ = _run(_convolutions, cache_dir=str(tmp_path))
    assert not unit.why_not_kept
