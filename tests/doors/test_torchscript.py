"""TorchScript archives as Programs: what torch's interpreter gives, for all data, and saved in turn."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt


class Steps(nn.Module):
    """Branches, loops with and without a count, lists, optional arguments, state that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(1))
        self.rounds = 3

    def forward(self, x: Tensor, h: Tensor | None = None, limit: float = 10.0) -> tuple[Tensor, list[Tensor]]:
        if h is None:
            h = torch.zeros_like(x)
        found: list[Tensor] = []
        for i in range(self.rounds):
            h = torch.tanh(self.fc(x) + h) + i
            found.append(h)
        if h.sum() > 0:
            h = h * 2
        else:
            h = torch.relu(h) - 1
        turns = 0
        while bool(h.abs().max() < limit) and turns < 20:
            h = h * 1.5
            turns += 1
        for row in range(h.size(0)):
            if h[row, 0] > 12.0:
                break
            h = h + 0.25
        self.calls.add_(1)
        h = self.norm(self.drop(h))
        return torch.cat(found, 1) + h.mean().to(torch.float32) + turns, [h, x[:, 1:3]]


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)])
        self.layers[2].weight = self.layers[0].weight

    def forward(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        y = x["a"].to(torch.float64).to(torch.float32)
        for layer in self.layers:
            y = layer(y)
        sizes = [n * 2 for n in x["a"].shape]
        return {"y": y, "b": torch.full([sizes[0]], float(len(sizes)), dtype=torch.float64)}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y, (h, _) = self.lstm(x)
        return self.out(y[:, -1]) + h.sum()


def saved(script: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.jit.save(script, buffer)
    buffer.seek(0)
    return buffer


def flat(value: Any) -> list[Tensor]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in flat(item)]
    return [leaf for item in value for leaf in flat(item)] if isinstance(value, (list, tuple)) else [value]


def agree(found: Any, wanted: Any) -> None:
    for a, b in zip(flat(found), flat(wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-5)


def test_control_flow_is_part_of_the_graph(tmp_path: Path) -> None:
    torch.manual_seed(0)
    script = torch.jit.script(Steps().eval())
    x = torch.randn(3, 4)
    with torch.no_grad():
        program = smelt.from_torchscript(saved(script), (x,))
        assert {"if", "while"} <= {node.op for node in program.graph.walk()}
        program.save(tmp_path / "steps.ingot")
        loaded = smelt.load(tmp_path / "steps.ingot")
        assert list(loaded.state_dict()) == list(script.state_dict())
        for given in (x, -x - 1, x * 5, torch.zeros(3, 4)):
            wanted = script(given)
            agree(program(given), wanted)
            agree(loaded(given), wanted)
    with torch.no_grad():
        again = smelt.from_torchscript(script, (x, x + 1), {"limit": 3.0})
        agree(again(-x, x, limit=3.0), script(-x, x, limit=3.0))


@pytest.mark.parametrize(
    ("make", "args"),
    [
        (lambda: torch.jit.script(Named()), ({"a": torch.randn(2, 4)},)),
        (lambda: torch.jit.script(Recurrent()), (torch.randn(2, 5, 4),)),
        (lambda: torch.jit.trace(Recurrent(), (torch.randn(2, 5, 4),)), (torch.randn(2, 5, 4),)),
        (
            lambda: torch.jit.trace(
                nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (torch.ones(1, 3, 8),), check_trace=False
            ),
            (torch.randn(1, 3, 8),),
        ),
        (
            lambda: torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval())),
            (torch.randn(1, 3, 8, 8),),
        ),
    ],
    ids=["scripted", "lstm", "traced lstm", "traced transformer", "frozen"],
)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_modules_of_each_kind(make: Any, args: tuple[Any, ...]) -> None:
    torch.manual_seed(1)
    script = make()
    program = smelt.from_torchscript(saved(script), args)
    wanted = script(*args)
    agree(program(*args), wanted)
    assert list(program.state_dict()) == list(script.state_dict())
    if not any(tensor.requires_grad for tensor in flat(wanted)):
        return
    sum(t.sum() for t in flat(program(*args))).backward()
    sum(t.sum() for t in flat(wanted)).backward()
    grads = {name: p.grad for name, p in script.named_parameters()}
    for name, parameter in program.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, grads[name])


def test_ties_stay() -> None:
    program = smelt.from_torchscript(torch.jit.script(Named()), ({"a": torch.randn(2, 4)},))
    named = dict(program.named_parameters(remove_duplicate=False))
    assert named["layers.0.weight"] is named["layers.2.weight"]


def test_what_has_no_form_is_named() -> None:
    def scattered(x: Tensor) -> Tensor:
        future = torch.jit.fork(torch.relu, x)
        return torch.jit.wait(future)

    class Forked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return scattered(x)

    with pytest.raises(smelt.CaptureError, match="prim::fork"):
        smelt.from_torchscript(torch.jit.script(Forked()), (torch.ones(2),))


def test_what_raises_raises() -> None:
    class Checked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.dim() != 2:
                raise ValueError(f"two dimensions, not {x.dim()}")
            return x + 1

    script = torch.jit.script(Checked())
    with pytest.raises(Exception, match="two dimensions, not 1"):
        smelt.from_torchscript(script, (torch.ones(2),))
    agree(smelt.from_torchscript(script, (torch.ones(2, 2),))(torch.ones(2, 2)), torch.full((2, 2), 2.0))
