"""Views that an operator gives as a list are of their operand's memory: what is written there is data in them, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


def _unpacked(v: Any) -> Any:
    first, *_ = v
    return first


PIECES: dict[str, Callable[[Any], Any]] = {
    "unpacked": _unpacked,
    "unbind": lambda v: v.unbind(0)[0],
    "split": lambda v: v.split(1)[0][0],
    "split of sizes": lambda v: v.split([1, 3])[0][0],
    "chunk": lambda v: v.chunk(4)[0][0],
    "tensor_split": lambda v: v.tensor_split(4)[0][0],
    "hsplit": lambda v: v.hsplit(2)[0][0],
}


@pytest.mark.spread(14)
@pytest.mark.parametrize("how", ["whole", "part", "piece"])
@pytest.mark.parametrize("name", PIECES)
@pytest.mark.parametrize("make", [smelt.compile, smelt.trace, smelt.script])
def test_a_branch_on_a_piece(make: Any, name: str, how: str) -> None:
    piece = PIECES[name]

    def program(x: torch.Tensor) -> Any:
        v = torch.zeros(4)
        first = piece(v)
        if how == "whole":
            v.add_(x[0])
        elif how == "part":
            v[:3].copy_(x)
        else:
            v.unbind(0)[0].copy_(x[0])
        if v[1] >= 0:
            assert first < 30
            if first < 12:
                return x + 1
        return x - 1

    xs = [torch.tensor(values) for values in ([1.0, 2.0, 3.0], [20.0, 2.0, 3.0], [20.0, -2.0, 3.0], [1.0, 2.0, 3.0])]
    try:
        made = make(program, (xs[0],)) if make is smelt.trace else make(program)
    except smelt.CaptureError:
        assert make is smelt.script
        return
    for x in xs:
        assert torch.equal(made(x), program(x))
    with pytest.raises(AssertionError):
        made(torch.tensor([40.0, 1.0, 1.0]))
