"""Tensors that a program was built from are their owner's to resize: torch forbids that once NumPy has their memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import smelt


def test_what_a_program_reads_can_be_resized() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    scale = torch.ones(2, 4)

    def program(x: Tensor) -> Tensor:
        return model(x) * scale[0] * scale.shape[0]

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        compiled = smelt.compile(program)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), program(x))
        assert all(t.untyped_storage().resizable() for t in (x, scale, *model.state_dict().values()))
        scale.resize_(5, 4).fill_(3.0)
        torch.testing.assert_close(compiled(x), program(x))
        scale.resize_(1, 4)
        torch.testing.assert_close(compiled(x), program(x))


def test_what_is_packed_can_be_resized() -> None:
    model = nn.Linear(8, 8).eval()
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        traced = smelt.trace(model, (x,))
        torch.testing.assert_close(traced(x), model(x))
        assert model.weight.untyped_storage().resizable()
        model.weight.zero_()
        torch.testing.assert_close(traced(x), model(x))
