"""`torch.utils.checkpoint` in a compiled model: what it covers is computed again, products too, and draws are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import smelt
from tests.training.harness import is_compiled, pair, same_gradients

Tensor = torch.Tensor


class Block(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.up, self.down, self.rate = nn.Linear(8, 64), nn.Linear(64, 8), rate

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return x + scale * self.down(F.dropout(F.gelu(self.up(x)), self.rate))


class Net(nn.Module):
    def __init__(self, is_covered: bool = True, rate: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(rate) for _ in range(3))
        self.is_covered = is_covered

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, scale=0.5, use_reentrant=False) if self.is_covered else block(x, scale=0.5)
        return x


def _saved(run: Any) -> int:
    sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(0 if isinstance(tensor, nn.Parameter) else tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run(torch.ones(6, 8, requires_grad=True))
    return sum(sizes)


@pytest.mark.spread(2)
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_what_is_covered_is_computed_again(rate: float) -> None:
    saved = []
    for is_covered in (True, False):
        model, other, compiled = pair(lambda covers=is_covered: Net(covers, rate))
        for step in range(3):
            after = []
            for run, m in ((model, model), (compiled, other)):
                m.zero_grad()
                torch.manual_seed(step)
                x = torch.randn(6, 8).requires_grad_()
                run(x).square().sum().backward()
                after.append((x.grad, torch.rand(2)))
            torch.testing.assert_close(*after, rtol=1e-4, atol=1e-5)
            same_gradients(model, other)
        assert is_compiled(compiled) and compiled.stats().builds == 1
        saved.append(_saved(compiled))
    assert saved[0] < 0.6 * saved[1], saved


def test_without_gradients() -> None:
    model, _, compiled = pair(Net)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(torch.ones(6, 8)), model(torch.ones(6, 8)))
    assert is_compiled(compiled)


def test_a_checkpoint_that_chooses_what_it_saves_is_left_to_eager() -> None:
    def contexts() -> Any:
        policy = torch.utils.checkpoint.CheckpointPolicy.PREFER_RECOMPUTE
        return torch.utils.checkpoint.create_selective_checkpoint_contexts(lambda *_, **__: policy)

    block = Block(0.0)
    compiled = smelt.compile(lambda x: checkpoint(block, x, use_reentrant=False, context_fn=contexts))
    with pytest.warns(smelt.SmeltWarning):
        for _ in range(3):
            grads = []
            for f in (block, compiled):
                x = torch.linspace(-1, 1, 48).reshape(6, 8).requires_grad_()
                f(x).square().sum().backward()
                grads.append(x.grad)
            torch.testing.assert_close(*grads)
