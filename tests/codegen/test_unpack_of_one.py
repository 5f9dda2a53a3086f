"""A tuple of one tensor, taken apart where Python runs the operator."""

from __future__ import annotations

import torch

import smelt


@torch.no_grad()
def test_the_indices_of_a_single_element() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.nonzero(x, as_tuple=True)

    compiled = smelt.compile(program)
    for value in (0.0, 0.0, 2.0, 2.0, 0.0):
        (found,), (wanted,) = compiled(torch.tensor(value)), program(torch.tensor(value))
        assert torch.equal(found, wanted)
