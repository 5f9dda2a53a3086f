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


class Layer:
    """A cache that notes what its tensors are made of, as those of language models do."""

    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None

    def update(self, x: torch.Tensor) -> torch.Tensor:
        if self.keys is None:
            self.dtype, self.device = x.dtype, x.device
            self.keys = torch.tensor([], dtype=self.dtype, device=self.device)
        self.keys = torch.cat([self.keys, x], -1)
        return self.keys


class Result(dict):
    pass


def with_cache(x: torch.Tensor, scale: torch.Tensor | None = None) -> Result:
    cache = Layer()
    y = cache.update(x) * 2
    if x.numel() == 5:
        raise ValueError("no five")
    if scale is not None:
        return Result(out=y * scale, loss=y.sum(), layers=[cache])
    return Result(out=y if x.numel() > 3 else y + 1, loss=None, layers=[cache])


def test_a_result_that_holds_objects_with_dtypes_is_one_of_two_ways() -> None:
    program = smelt.script(with_cache)
    for x, scale in ((torch.ones(3), None), (torch.ones(4).double(), None), (torch.ones(2), torch.tensor(3.0))):
        want, got = with_cache(x, scale), program(x, scale)
        assert torch.equal(want["out"], got["out"]) and (want["loss"] is None) == (got["loss"] is None)
        assert type(got["layers"][0]) is Layer and torch.equal(got["layers"][0].keys, x)
        assert (got["layers"][0].dtype, got["layers"][0].device) == (x.dtype, x.device)
    with pytest.raises(ValueError, match="no five"):
        program(torch.ones(5))
