"""What people put around a model that is trained: optimizers, schedulers, averages, scalers, parametrizations, DDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.forked import training_forks
from tests.training.harness import is_compiled, pair, same_gradients

Tensor = torch.Tensor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.norm(torch.tanh(self.up(x))))


def _double() -> nn.Module:
    return Net().double()


def _input(step: int) -> Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(step)).double()


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw, one by one in hooks": lambda p: torch.optim.AdamW(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_and_schedulers(name: str) -> None:
    model, other, compiled = pair(_double)
    runs = []
    for run, m in ((model, model), (compiled, other)):
        optimizer = OPTIMIZERS[name](m.parameters())
        runs.append((run, m, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)))
    for step in range(4):
        losses = []
        for run, m, optimizer, scheduler in runs:

            def closure(run: Any = run, optimizer: Any = optimizer, step: int = step) -> Tensor:
                optimizer.zero_grad()
                loss: Tensor = run(_input(step)).square().mean()
                loss.backward()
                return loss

            losses.append(optimizer.step(closure))
            nn.utils.clip_grad_norm_(m.parameters(), 0.1)
            scheduler.step()
        torch.testing.assert_close(*losses)
        same_gradients(model, other)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q, p)
    assert is_compiled(compiled)


def test_steps_in_hooks_behind_each_gradient() -> None:
    """The optimizer of each parameter steps as soon as its gradient is there, and takes the gradient away."""
    model, other, compiled = pair(_double)
    for m in (model, other):
        for p in m.parameters():
            own = torch.optim.SGD([p], 0.01)

            def step(p: Tensor, own: Any = own) -> None:
                own.step()
                p.grad = None

            p.register_post_accumulate_grad_hook(step)
    for i in range(3):
        for run in (model, compiled):
            run(_input(i)).square().mean().backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q, p)
        assert q.grad is None
    assert is_compiled(compiled)


def test_averages_and_scaled_losses() -> None:
    model, other, compiled = pair(_double)
    averages = []
    for run, m in ((model, model), (compiled, other)):
        average, scaler = torch.optim.swa_utils.AveragedModel(m), torch.amp.GradScaler("cpu")
        optimizer = torch.optim.SGD(m.parameters(), 0.01)
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(run(_input(step)).square().mean()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            average.update_parameters(m)
        averages.append(average)
    for p, q in zip(*(a.parameters() for a in averages), strict=True):
        torch.testing.assert_close(q, p)
    assert is_compiled(compiled)


def test_parametrizations() -> None:
    def make() -> nn.Module:
        net = Net().double()
        parametrizations.weight_norm(net.up)
        parametrizations.spectral_norm(net.down)
        return net

    model, other, compiled = pair(make)
    for step in range(4):
        for run, m in ((model, model), (compiled, other)):
            m.zero_grad()
            run(_input(step)).square().mean().backward()
        same_gradients(model, other)
        for p, q in zip(model.buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(q, p)
    assert is_compiled(compiled)


_PARALLEL = """
import os, tempfile, warnings
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import smelt

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 4)).double()

def work(rank, place):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    found = []
    for wrap in (lambda m: m, smelt.compile):
        model = wrap(net())
        parallel = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(parallel.parameters(), 0.1)
        for step in range(4):
            x = torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * step + rank)).double()
            optimizer.zero_grad()
            if step == 2:
                with parallel.no_sync():
                    parallel(x * 2).square().mean().backward()
            parallel(x).square().mean().backward()
            optimizer.step()
        found.append([*parallel.parameters(), *(p.grad for p in parallel.parameters())])
    for a, b in zip(*found):
        torch.testing.assert_close(b, a)
    stats = model.stats()
    assert stats.builds == 1 and not stats.fallbacks, stats
    dist.destroy_process_group()

with tempfile.TemporaryDirectory() as folder:
    place = os.path.join(folder, "meet")
    child = os.fork()
    if not child:
        status = 1
        try:
            work(1, place)
            status = 0
        finally:
            os._exit(status)
    work(0, place)
    assert os.waitpid(child, 0)[1] == 0
print("parallel")
"""


def test_two_processes_train_together() -> None:
    assert "parallel" in training_forks().run(_PARALLEL)
