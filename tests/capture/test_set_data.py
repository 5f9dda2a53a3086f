"""`tensor.data = other`: nothing to capture where `other` is the tensor itself, an error otherwise."""

from __future__ import annotations

import pytest
import torch

import smelt


class Cast(torch.nn.Module):
    """As a router of `switch_transformers`: casts a part of itself in each call."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.part = torch.nn.Linear(4, 4)
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.part = self.part.to(self.dtype)
        return self.part(x.to(self.dtype)).float()


@torch.no_grad()
def test_a_cast_to_the_dtype_that_is_there() -> None:
    module = Cast(torch.float32)
    program = smelt.trace(module, (torch.randn(2, 4),))
    compiled = smelt.compile(module, options={"measure": False})
    for _ in range(3):
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(x), module(x))
        torch.testing.assert_close(program(x), module(x))
        module.part.weight.mul_(2)
    assert compiled.stats().fallbacks == {}
    module.part.weight.data = torch.zeros(4, 4)
    torch.testing.assert_close(compiled(x), module(x))


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_a_cast_that_changes_the_parameters() -> None:
    module = Cast(torch.float64)
    compiled = smelt.compile(module, options={"measure": False})
    for _ in range(3):
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(x), module(x))
    module = Cast(torch.float32)
    compiled = smelt.compile(module, options={"measure": False})
    compiled(x), compiled(x)
    module.dtype = torch.float64
    torch.testing.assert_close(compiled(x), module(x))
    assert module.part.weight.dtype == torch.float64


HELD: dict[str, torch.Tensor] = {}


@pytest.mark.filterwarnings("ignore")  # one that is an error would end the run on fake tensors
def test_a_tensor_from_outside_that_is_written_first() -> None:
    """A run on fake tensors, which the branch needs, leaves the user's tensor alone."""

    def program(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        ten = HELD["ten"]
        ten.add_(x * 2)
        if int(c[0]) == 1:
            x = x + 1
        ten.data = x * 2
        ten.add_(x + 1)
        return ten

    sides = []
    for run in (program, smelt.compile(program, options={"adaptive": False})):
        HELD["ten"] = torch.zeros(3)
        for c in (0.0, 0.0, 1.0):
            result = run(torch.ones(3).requires_grad_() * 1, torch.tensor([c]))
            assert result is HELD["ten"] and result.device.type == "cpu"
            sides.append(result.detach().clone())
    torch.testing.assert_close(sides[3:], sides[:3])
