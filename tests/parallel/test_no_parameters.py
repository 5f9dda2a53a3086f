"""A stage of functions only: its rank trains, saves and loads as the others do, with the same lines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.parallel.mesh import Mesh
from smelt.parallel.proving.simulate import World
from tests.parallel.gloo import run


class Ends(nn.Module):
    """All that its second half has is a function."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.wave = nn.Linear(4, 8), nn.Linear(8, 4), Wave()

    def forward(self, x: Tensor) -> Tensor:
        return self.wave(self.down(self.up(x).relu()))


class Wave(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.sin() * x.softmax(-1)).square().mean()


def _scheduled() -> tuple[nn.Module, Tensor, smelt.Schedule]:
    torch.manual_seed(0)
    model, x = Ends(), torch.randn(4, 4)
    s = smelt.schedule(model, (x,))
    s["down"].cut()
    s.pipeline(2, "pp", microbatches=2)
    return model, x, s


@pytest.mark.parametrize("fused", [False, True])
def test_an_optimizer_of_no_parameters(fused: bool) -> None:
    model, x, s = _scheduled()

    def of_rank(rank: int) -> dict[str, Tensor]:
        module = s.build(mesh="pp=2", rank=rank)
        optimizer = torch.optim.AdamW((p for p in module.parameters() if p.requires_grad), 0.1, fused=fused)
        for _ in range(2):
            optimizer.zero_grad()
            smelt.forward_backward(module, x)
            smelt.clip_grad_norm_(module, 1.0)
            optimizer.step()
        return dict(module.named_parameters())

    first, second = World(Mesh.of("pp=2")).run(of_rank)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, fused=fused)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert second == {} and set(first) == {"up.weight", "up.bias", "down.weight", "down.bias"}
    torch.testing.assert_close(first, dict(model.named_parameters()), rtol=1e-5, atol=1e-6)
    assert s.verify(mesh="pp=2", optimizer=torch.optim.AdamW).error < 1e-5


_CHECKPOINT = """
from tests.parallel.test_no_parameters import _scheduled

def program(rank):
    _, x, s = _scheduled()
    losses = []
    for start in (0, 2):
        module = s.build(mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("pp",)))
        optimizer = torch.optim.AdamW(module.parameters(), 0.1)
        if start:
            smelt.load_checkpoint("folder", module, optimizer)
        for step in range(start, 4):
            optimizer.zero_grad()
            losses.append(smelt.forward_backward(module, x).item())
            optimizer.step()
            if step == 1:
                smelt.save_checkpoint("folder", module, optimizer)
    return losses

print(json.dumps(ranks(2, program)))
"""


def test_a_checkpoint_of_no_parameters(tmp_path: Path) -> None:
    first, second = run(_CHECKPOINT, tmp_path)
    assert first == second and first[2:4] == first[4:]  # type: ignore[index]
