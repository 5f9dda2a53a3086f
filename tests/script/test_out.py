"""`out=` gives an empty tensor the result's size, in the types, too."""

from __future__ import annotations

import pytest
import torch

from tests.script.checking import agrees

X = torch.linspace(-2, 2, 12).reshape(3, 4)


def added(x):
    out = torch.empty(0)
    torch.add(x.sum(0), 1, out=out)
    return out + 1, out[3]


def chosen(x):
    out = torch.empty(0)
    y = x.sum(0)
    z = y if y[0] > 0 else torch.zeros([4])
    torch.mul(z, 2, out=out)
    return out.clamp(max=1)


@pytest.mark.parametrize("program", [added, chosen])
def test_typed(program):
    scripted = agrees(program, (X,), (-X,), example_inputs=(X,))
    assert str(scripted.graph.body.yields[0].type) == "f32[4]"
