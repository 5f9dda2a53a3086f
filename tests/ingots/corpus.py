"""Small ingots of each format that there was, which every later reader reads: made once, never again.

    python -m tests.ingots.corpus 2         writes tests/ingots/corpus/2, when the format of that number is new

Each file holds what to call it with, and what the program gave, as an extra file.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import smelt

FOLDER = Path(__file__).parent / "corpus"
CALLS = "calls.json"


class Small(nn.Module):
    """A product with tied weights, an activation and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 6)
        self.down.weight = nn.Parameter(self.up.weight.detach().t().contiguous())

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.norm(self.up(x))))


class Packed(nn.Module):
    """Weights that products of many rows read, one of them under two names, and one that is read as it is, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.table = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 16)
        self.again = nn.Linear(32, 16)
        self.again.weight = self.second.weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.again(torch.relu(self.second(torch.relu(self.first(x))).repeat(1, 2)))
        return self.table(y) + self.table.weight.sum(0)


class Counting(nn.Module):
    """State that each call writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x)
        return self.total * 2


def halved(n: Tensor) -> Tensor:
    steps = torch.zeros((), dtype=torch.int64)
    while n > 1:
        n = torch.where(n % 2 == 0, n // 2, 3 * n + 1)
        steps = steps + 1
    return steps


def nested(x: dict[str, Any], *, scale: float = 2.0) -> Any:
    y = x["a"] * scale + 1
    return {"y": y, "all": [y.sum(), x["b"][0].bool()]}, 3


def training_step() -> tuple[Any, Tensor]:
    """A compiled step of an optimizer with state, after its first two calls; and what it is called with."""
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 6))
    optimizer = torch.optim.Adam([weight], lr=0.1)

    @smelt.compile
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (x @ weight - 1).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = torch.randn(2, 6)
    step(x)
    step(x)
    return step, x


def doubled(x: Tensor) -> Tensor:
    """Of any number of rows that is even."""
    return x.view(x.shape[0] // 2, 2, 3).sum(1) * x.shape[0]


class Rounded(nn.Module):
    """Operators that torch removed since, and a convolution with a norm that is folded."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        square = y.T @ y + torch.eye(16)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return torch.cholesky(square, True), *torch.qr(square[:, :3])


def programs() -> dict[str, tuple[Any, list[tuple[list[Any], dict[str, Any]]]]]:
    """By name, the captured program, and the calls that are kept with it, in their order."""
    torch.manual_seed(11)
    x, three = torch.randn(2, 6), torch.tensor([1.0, 2.0, 3.0])
    step, batch = training_step()
    many, image = torch.randn(24, 16), torch.randn(2, 3, 5, 5)
    rows = smelt.Dim("rows")
    given = {"a": three, "b": [torch.tensor([0, 4])]}
    with torch.no_grad():
        return {
            "small": (smelt.trace(Small().eval(), (x,)), [([x], {}), ([-x], {})]),
            "half": (smelt.trace(Small().eval().bfloat16(), (x.bfloat16(),)), [([x.bfloat16()], {})]),
            "removed": (smelt.trace(Rounded().eval(), (image,)), [([image], {}), ([-image], {})]),
            "packed": (smelt.trace(Packed().eval(), (many,)), [([many], {}), ([-many], {})]),
            "counting": (smelt.trace(Counting(), (three,)), [([three], {}), ([three + 1], {})]),
            "halved": (smelt.trace(halved, (torch.tensor(5),)), [([torch.tensor(n)], {}) for n in (1, 7, 27)]),
            "step": (step, [([batch], {}), ([batch + 1], {})]),
            "free": (
                smelt.trace(doubled, (torch.randn(4, 3),), dynamic_shapes={"x": {0: rows}}),
                [([torch.arange(n * 3.0).view(n, 3)], {}) for n in (4, 2, 6)],
            ),
            "nested": (smelt.trace(nested, (given,), {"scale": 0.5}), [([given], {"scale": 0.5})]),
        }


def to_data(value: Any) -> Any:
    """Tensors as dtype, sizes and elements, so that JSON holds them."""
    if isinstance(value, Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "data": value.double().tolist()}
    if isinstance(value, dict):
        return {"dict": {key: to_data(item) for key, item in value.items()}}
    return [to_data(item) for item in value] if isinstance(value, (list, tuple)) else value


def from_data(data: Any) -> Any:
    if isinstance(data, dict) and "dtype" in data:
        return torch.tensor(data["data"], dtype=torch.float64).to(getattr(torch, data["dtype"]))
    if isinstance(data, dict):
        return {key: from_data(item) for key, item in data["dict"].items()}
    return [from_data(item) for item in data] if isinstance(data, list) else data


def write(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, (program, calls) in programs().items():
        targets = ["avx2"] if name in ("small", "packed", "removed") else []
        smelt.save({"forward": program}, path := folder / f"{name}.ingot", targets=targets)
        with torch.set_grad_enabled(name == "step"):
            kept = [[to_data(args), to_data(kwargs), to_data(program(*args, **kwargs))] for args, kwargs in calls]
        smelt.load(path).save(path, extra_files={CALLS: json.dumps(kept).encode()})
    digests = {
        f"{p.parent.name}/{p.name}": hashlib.sha256(p.read_bytes()).hexdigest() for p in FOLDER.glob("*/*.ingot")
    }
    (FOLDER / "digests.json").write_text(json.dumps(dict(sorted(digests.items())), indent=1) + "\n")


if __name__ == "__main__":
    write(FOLDER / sys.argv[1])
