"""Several questions on one line, one of which cannot be merged; `torch.tensor` of an element type that a run knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.ops.evaluate import evaluate


def none_behind_an_and(x: torch.Tensor) -> torch.Tensor | None:
    return x.sum() if x.numel() % 2 == 0 and x.numel() else None


def helper(x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor | None:
    return y if x.numel() > 4 else x


def merged_first_and_not_later(x: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return helper(x, x * 2), helper(x, None)


def appended_to_nothing(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.tensor([], dtype=x.dtype, device=x.device), x], -1)


def constants_of_its_type(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * torch.tensor([0.1], dtype=x.dtype), torch.tensor(3, dtype=x.dtype)


def results(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


@pytest.mark.parametrize(
    "f", [none_behind_an_and, merged_first_and_not_later, appended_to_nothing, constants_of_its_type]
)
def test_the_graph_gives_what_eager_gives(f: Callable[..., Any]) -> None:
    program = smelt.script(f)
    assert not any(node.op == "py.raise" for node in program.graph.walk())
    for n, dtype in ((3, torch.float32), (4, torch.bfloat16), (6, torch.float16), (0, torch.float64)):
        x = torch.randn(n).to(dtype)
        want = results(f(x))
        for got in (results(program(x)), list(evaluate(program.graph, program.inputs_for(x)))):
            for a, b in zip(want, got, strict=True):
                assert (a is None and b is None) or (a.dtype == b.dtype and torch.equal(a, b))
