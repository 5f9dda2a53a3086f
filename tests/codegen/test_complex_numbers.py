"""Complex tensors that a program makes, beside Python's numbers of every kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import smelt

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "times an int": lambda z: z * 2,
    "over an int": lambda z: z / 3,
    "times a float": lambda z: z * 2.5,
    "times a bool": lambda z: z * True,
    "times a complex": lambda z: z * (1 + 2j),
    "from an int": lambda z: 3 - z,
    "is an int": lambda z: z == 1,
    "a power": lambda z: z**2,
    "to an int": lambda z: z.masked_fill(z.real > 0, 0),
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_beside_a_number(kind: str) -> None:
    def program(x: Tensor) -> Tensor:
        return PROGRAMS[kind](torch.complex(x, x.round()))

    x = torch.randn(3, 8)
    compiled = smelt.compile(program, options={"strict": True})
    for _ in range(3):
        torch.testing.assert_close(compiled(x), program(x))
