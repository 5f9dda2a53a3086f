"""A bit of everything, in a minute: what is run first on each torch and Python that Smelt is made for."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt


class Block(nn.Module):
    """A transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.query, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.query(self.norm(x)).chunk(3, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Convolved(nn.Module):
    """Pictures to numbers, with a buffer that each call writes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return F.adaptive_avg_pool2d(F.relu(self.norm(self.conv(x))), 1).flatten(1).softmax(-1)


def branches(x: torch.Tensor) -> torch.Tensor:
    """Its way depends on its data."""
    rows = []
    for row in x:
        if row.sum() > 0:
            rows.append(row.relu())
        else:
            rows.append(row.abs() * 2)
    total = torch.stack(rows)
    while total.amax() > 4:
        total = total / 2
    return total


def containers(x: torch.Tensor, scale: float = 2.0) -> dict[str, Any]:
    """Python's own types around tensors."""
    parts = dict(zip("abc", x.split(1), strict=False))
    return {"whole": [part * scale for part in parts.values()], "shape": tuple(x.shape), "first": x[0].clone()}


def in_place(x: torch.Tensor) -> torch.Tensor:
    """Writes to its argument."""
    x[1:].mul_(2)
    return x.add_(1).T


@torch.no_grad()
def decorated(x: torch.Tensor) -> torch.Tensor:
    """Behind a wrapper of torch's."""
    return sum(part.exp() for part in x) + x.data


PROGRAMS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "block": lambda: (Block(), (torch.randn(2, 5, 16),)),
    "convolved": lambda: (Convolved().eval(), (torch.randn(2, 3, 8, 8),)),
    "recurrent": lambda: (nn.LSTM(4, 6, batch_first=True), (torch.randn(2, 3, 4),)),
    "encoder": lambda: (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (torch.randn(2, 3, 8),)),
    "branches": lambda: (branches, (torch.randn(4, 5) * 4,)),
    "containers": lambda: (containers, (torch.randn(3, 2),)),
    "in place": lambda: (in_place, (torch.randn(3, 2),)),
    "decorated": lambda: (decorated, (torch.randn(3, 2),)),
    "attention of rank 3": lambda: (
        lambda q, k: F.scaled_dot_product_attention(q, k, k),
        (torch.randn(4, 3, 8), torch.randn(4, 5, 8)),
    ),
    "integers": lambda: (lambda x: (x // 3, x % 3, x.bincount().cumsum(0)), (torch.arange(12),)),
}


def _told(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.shape, value.stride(), value.detach().clone())
    if isinstance(value, dict):
        return [(key, _told(item)) for key, item in value.items()]
    return [_told(item) for item in value] if isinstance(value, list | tuple) else value


def _agree(found: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for pair in zip(found, wanted, strict=True):
            _agree(*pair)
    else:
        assert found == wanted


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("door", [smelt.compile, smelt.trace], ids=["compile", "trace"])
def test_same_as_eager(door: Any, name: str) -> None:
    torch.manual_seed(0)
    program, args = PROGRAMS[name]()
    torch.manual_seed(0)
    twin, _ = PROGRAMS[name]()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        own = [arg.clone() for arg in args]
        served = door(program) if door is smelt.compile else door(program, tuple(arg.clone() for arg in args))
        if door is smelt.trace and isinstance(twin, nn.Module):
            twin.load_state_dict(program.state_dict())
        for _ in range(3):
            mine = [arg.clone() for arg in args]
            wanted, found = twin(*own), served(*mine)
            _agree(_told(found), _told(wanted))
            _agree(_told(mine), _told(own))
            own = [arg.clone() for arg in args]
    if isinstance(twin, nn.Module):
        _agree(_told(list(program.buffers())), _told(list(twin.buffers())))


def test_script() -> None:
    @smelt.script
    def program(x: smelt.f32[2, 3], n: int) -> torch.Tensor:
        for i in range(n):
            x = x * 2 if x.sum() > i else x + 1
        return torch.relu(x)

    for n in (0, 1, 4):
        for x in (torch.ones(2, 3), -torch.ones(2, 3)):
            wanted = x
            for i in range(n):
                wanted = wanted * 2 if wanted.sum() > i else wanted + 1
            assert torch.equal(program(x, n), torch.relu(wanted))


def test_guards_see_what_changes() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.scale, self.names = nn.Linear(3, 3), 2.0, {"a": 1}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.scale * self.names["a"]

    module, x = Scaled(), torch.randn(2, 3)
    compiled = smelt.compile(module)
    steps: list[Callable[[], Any]] = [
        lambda: None,
        lambda: setattr(module, "scale", 3.0),
        lambda: module.names.update(a=5),
        lambda: module.linear.weight.data.mul_(2),
        lambda: setattr(module.linear, "bias", nn.Parameter(torch.ones(3))),
        lambda: setattr(module, "linear", nn.Linear(3, 3)),
        lambda: setattr(module, "forward", lambda x: x + 1),
    ]
    with torch.no_grad():
        for step in steps:
            compiled(x)
            step()
            torch.testing.assert_close(compiled(x), module(x))
            torch.testing.assert_close(compiled(x), module(x))


def test_free_sizes() -> None:
    compiled = smelt.compile(lambda x: (x @ x.mT).softmax(-1) + x.shape[0])
    with torch.no_grad():
        for n in (2, 3, 5, 8):
            x = torch.randn(n, 4)
            torch.testing.assert_close(compiled(x), (x @ x.mT).softmax(-1) + n)
    assert len(compiled.stats().rows) <= 2


def test_gradients_are_those_of_the_torch_that_runs() -> None:
    """At a bound of `clamp`, where two are equal, releases differ."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x.clamp(0, 1) + torch.maximum(x, torch.ones_like(x)) + x.amax()).sum()

    x = torch.tensor([0.0, 1.0, 1.0, 0.5])
    found, wanted = x.clone().requires_grad_(), x.clone().requires_grad_()
    smelt.trace(program, (x,))(found).backward()
    program(wanted).backward()
    assert torch.equal(found.grad, wanted.grad)


def test_warnings_are_those_of_the_torch_that_runs() -> None:
    """TorchScript's are visible from 2.14 on: a program that uses it warns as in eager, and Smelt adds none."""

    def said(run: Callable[[], Any]) -> set[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run()
        return {str(one.message) for one in caught if not isinstance(one.message, smelt.SmeltWarning)}

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.jit.trace(torch.relu, (x,), check_trace=False)(x)

    x = torch.ones(2)
    with torch.no_grad():
        assert said(lambda: smelt.compile(program)(x)) == said(lambda: program(x))
        assert said(lambda: smelt.compile(Block())(torch.ones(1, 2, 16))) == set()


def test_torchs_own_compiler_beside_it() -> None:
    code = (
        "import torch, smelt\n"
        "f = smelt.compile(lambda x: x.sin() + 1); x = torch.ones(3)\n"
        "with torch.no_grad():\n"
        "    for _ in range(2): assert torch.equal(f(x), x.sin() + 1)\n"
        "    g = torch.compile(lambda x: x.cos() + 1, backend='smelt')\n"
        "    for _ in range(2): assert torch.allclose(g(x), x.cos() + 1)\n"
        "    h = torch.compile(lambda x: x.cos() - 1, backend='eager')\n"
        "    assert torch.equal(h(x), x.cos() - 1)\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
