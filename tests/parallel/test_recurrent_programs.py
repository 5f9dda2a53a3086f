"""Programs of the kind that tutorials of TorchScript have: gates on data inside of cells, loops over a sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

import smelt


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class GatedCell(nn.Module):
    """A gate on what a layer gives, once a step."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.linear, self.mix = Gate(), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[0])
        for t in range(x.size(0)):
            h = torch.tanh(self.gate(self.linear(x[t])) + self.mix(h))
        return h


class Every(nn.Module):
    """A cell, and something else at every second step; all outputs are put together."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.extra, self.head = nn.LSTMCell(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros_like(x[0])
        outputs = []
        for t in range(x.size(0)):
            h, c = self.cell(x[t], (h, c))
            if t % 2 == 0:
                h = h + self.extra(h).relu()
            outputs.append(self.head(h))
        return torch.stack(outputs)


class Weighted(nn.Module):
    """A sum over as many steps as the input says."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x[0]).relu()
        count = int((x[:, 0, 0] > -9).sum())
        for t in range(count):
            y = y + self.first(x[t]).tanh() / (t + 1)
        return self.second(y)


_PROGRAMS: Mapping[str, Callable[[], nn.Module]] = {"gated": GatedCell, "every": Every, "weighted": Weighted}
_MESHES = ("tp=2", "tp=4", "pp=2", "pp=4", "dp=2,tp=2")


def check(name: str, mesh: str) -> None:
    torch.manual_seed(0)
    model, x = _PROGRAMS[name]().double(), torch.randn(4, 6, 8, dtype=torch.float64)
    s, axes = smelt.schedule(model, (x,)), dict(one.split("=") for one in mesh.split(","))
    if "tp" in axes:
        smelt.schedules.tensor_parallel(s, ranks=int(axes["tp"]))
    if "dp" in axes:
        s.data_parallel("dp")
    if "pp" in axes:
        s.pipeline(int(axes["pp"]), "pp", microbatches=1)
    assert s.verify(mesh=mesh, steps=2).error < 1e-9


@pytest.mark.parametrize("name", _PROGRAMS)
def test_loops_over_a_sequence_in_two(name: str) -> None:
    check(name, "tp=2")


@pytest.mark.nightly
@pytest.mark.parametrize("mesh", _MESHES[1:])
@pytest.mark.parametrize("name", _PROGRAMS)
def test_loops_over_a_sequence_on_meshes(name: str, mesh: str) -> None:
    check(name, mesh)
