"""Tensors that a program holds and whose memory cannot be watched: the original runs."""

from __future__ import annotations

import pytest
import torch

import smelt


@pytest.mark.parametrize("kind", ["to_sparse", "to_mkldnn"])
def test_a_tensor_without_plain_memory_that_a_model_holds(kind: str) -> None:
    class Holding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", getattr(torch.randn(8, 4), kind)())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.w.to_dense().sum()

    model, x = Holding(), torch.randn(3)
    c = smelt.compile(model)
    with torch.no_grad():
        with pytest.warns(smelt.SmeltWarning, match="layout"):
            assert torch.equal(c(x), model(x))
        assert torch.equal(c(x), model(x))
        model.w = model.w.to_dense()
        for _ in range(3):
            assert torch.equal(c(x), x + model.w.sum())
        assert c.stats().rows[0].entry is not None
        with pytest.raises(smelt.CaptureError, match="layout"):
            smelt.compile(Holding(), fullgraph=True)(x)
