"""The norm of gradients over all ranks: that of the whole model, with each element counted once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.diag import SmeltError
from smelt.parallel.mesh import Mesh
from smelt.parallel.proving.simulate import World


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(12, 8), nn.LayerNorm(8)
        self.up, self.down, self.head = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 12, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.table(x)
        h = h + self.down(self.up(self.norm(h)).relu())
        return nn.functional.cross_entropy(self.head(h), y)


def _scheduled(mesh: str) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], smelt.Schedule]:
    torch.manual_seed(0)
    model, args = _Tied(), (torch.randint(12, (8,)), torch.randint(12, (8,)))
    s = smelt.schedule(model, args)
    if "tp" in mesh:
        s["up"].shard("weight", 0, "tp")
        s["up"].shard("bias", 0, "tp")
        s["down"].shard("weight", 1, "tp")
    if "dp" in mesh:
        s.data_parallel("dp")
        if "tp" not in mesh:
            s.shard_state("dp")
    if "pp" in mesh:
        s.pipeline(2, "pp", microbatches=2)
    return model, args, s


@pytest.mark.spread(2)
@pytest.mark.parametrize("mesh", ["tp=3", "dp=2", "pp=2", "dp=2,tp=2", "tp=2,pp=2"])
@pytest.mark.parametrize("order", [2.0, 1.0, float("inf")])
def test_the_norm_is_that_of_the_whole_model(mesh: str, order: float) -> None:
    model, (x, y), s = _scheduled(mesh)
    model(x, y).backward()
    wanted = nn.utils.clip_grad_norm_(model.parameters(), 0.05, order)
    axes = Mesh.of(mesh)

    def of_rank(rank: int) -> tuple[torch.Tensor, dict[str, Any]]:
        module, share = s.build(mesh=mesh, rank=rank), slice(None)
        if "dp" in mesh:
            half = axes.coordinates(rank)["dp"]
            share = slice(4 * half, 4 * half + 4)
        smelt.forward_backward(module, x[share], y[share])
        norm = smelt.clip_grad_norm_(module, 0.05, order)
        return norm, {name: p.grad for name, p in module.named_parameters()}

    whole = dict(model.named_parameters())
    for norm, grads in World(axes).run(of_rank):
        torch.testing.assert_close(norm, wanted)
        for name, grad in grads.items():
            if grad is not None and grad.shape == whole[name].shape:
                torch.testing.assert_close(grad, whole[name].grad)


def test_of_any_other_module_it_is_torchs() -> None:
    torch.manual_seed(0)
    model, (x, y), s = _scheduled("tp=2")
    model(x, y).backward()
    grads = [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]
    norm = smelt.clip_grad_norm_(model, 0.05)
    assert norm > 0.05
    assert all(
        torch.allclose(p.grad, g * 0.05 / norm, atol=1e-6)
        for p, g in zip(model.parameters(), grads, strict=True)  # type: ignore[arg-type]
    )
    with pytest.raises(SmeltError, match="no norm 0"):
        smelt.clip_grad_norm_(s.build(mesh="tp=2", rank=0), 1.0, 0.0)
