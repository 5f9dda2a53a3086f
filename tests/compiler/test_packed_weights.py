"""Weights that were packed when the program was compiled: any change to them reaches the next call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import smelt


def _assign(layer: nn.Linear) -> None:
    layer.weight = nn.Parameter(layer.weight.detach() * 2)


CHANGES: dict[str, Callable[[nn.Linear], object]] = {
    "in place": lambda layer: layer.weight.zero_(),
    "one element": lambda layer: layer.weight[3, 5].add_(100.0),
    "data replaced": lambda layer: setattr(layer.weight, "data", layer.weight.data * 2),
    "data in place": lambda layer: layer.weight.data.mul_(2),
    "assigned": _assign,
    "loaded": lambda layer: layer.load_state_dict({k: v * 2 for k, v in layer.state_dict().items()}),
}


@pytest.mark.spread(12)
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_weight_is_seen(change: str, background: bool) -> None:
    torch.manual_seed(0)
    # Large enough that a product with packed weights is chosen.
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).eval()
    compiled = smelt.compile(model, background=background, options={"cache_dir": "", "deterministic": True})
    x = torch.randn(256, 256)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        for layer in (model[0], model[2]):
            CHANGES[change](layer)
            for _ in range(2):
                torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
