"""The text of an error that the program catches is eager's, with the numbers of the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

LAYER = torch.nn.Linear(3, 2)
OPERATORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "index": lambda x: x[9],
    "indices": lambda x: x.reshape(1, -1)[0, 9],
    "view": lambda x: x.view(7),
    "reshape": lambda x: x.reshape(2, 3, -1),
    "expand": lambda x: x.expand(2, 4),
    "matmul": lambda x: torch.ones(2, 9) @ x,
    "linear": lambda x: LAYER(x),
    "add": lambda x: x + torch.ones(2),
    "cat": lambda x: torch.cat([x[None], torch.ones(1, 2)]),
    "stack": lambda x: torch.stack([x, torch.ones(2)]),
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", OPERATORS)
def test_texts_of_sizes_that_are_free_otherwise(name: str) -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            return OPERATORS[name](x)
        except (RuntimeError, IndexError) as error:
            return str(error)

    compiled = smelt.compile(program, options={"measure": False})
    with torch.no_grad():
        for size in (10, 10, 3, 4, 4, 5, 6, 8, 12):
            found, want = compiled(torch.zeros(size)), program(torch.zeros(size))
            assert type(found) is type(want)
            assert found == want if isinstance(want, str) else torch.equal(found, want)
