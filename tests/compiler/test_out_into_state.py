"""`out=` into a tensor without elements that is the program's state: a write of it, as in eager."""

from __future__ import annotations

import torch

import smelt


@torch.no_grad()
def test_an_empty_tensor_of_state_is_written() -> None:
    held = torch.empty(2, 0)

    def program(x: torch.Tensor) -> torch.Tensor:
        torch.mul(held, 2, out=held)
        return x + 1

    compiled = smelt.compile(program)
    for _ in range(3):
        before = held._version
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
        assert held._version == before + 1
