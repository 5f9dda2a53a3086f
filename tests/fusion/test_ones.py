"""One operator that works along a dimension behind another, where sizes are 1: a loop that is not there is no loop."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt

ALONG: dict[str, Callable[[Tensor], Tensor]] = {
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "softmax 0": lambda x: x.softmax(0),
    "softmax -1": lambda x: x.softmax(-1),
    "log_softmax 0": lambda x: x.log_softmax(0),
    "cumsum 0": lambda x: x.cumsum(0),
    "cumsum -1": lambda x: x.cumsum(-1),
    "cummax 0": lambda x: x.cummax(0)[0],
    "sum 0": lambda x: x.sum(0, keepdim=True),
    "sum -1": lambda x: x.sum(-1, keepdim=True),
    "prod 1": lambda x: x.prod(1, keepdim=True) + x,
    "mean": lambda x: x - x.mean((0, -1), keepdim=True),
    "var": lambda x: x / (1 + x.var(-1, keepdim=True, unbiased=False)),
    "amax 0": lambda x: x.amax(0, keepdim=True) + x,
    "argmax 0": lambda x: x.argmax(0, keepdim=True) + x,
    "norm 0": lambda x: x / (1 + x.norm(dim=0, keepdim=True)),
    "pool": lambda x: F.avg_pool1d(x.unsqueeze(0), 1).squeeze(0),
}
SHAPES = ((1, 4), (4, 1), (1, 1), (3, 4), (1, 1, 4), (1, 5, 1), (2, 1, 3), (1, 3, 2))
CASES = [
    (first, second, shape)
    for first, second, shape in itertools.product(ALONG, ALONG, SHAPES)
    if len(shape) == 2 or "pool" not in (first, second)
]


def check(first: str, second: str, shape: tuple[int, ...]) -> None:
    def program(x: Tensor) -> Any:
        return ALONG[second](ALONG[first](x) * 1.5)

    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    compiled = smelt.compile(program, dynamic=False)
    compiled(x)
    assert not compiled.stats().fallbacks
    torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.spread(15)
@pytest.mark.parametrize(
    ("first", "second", "shape"),
    [
        ("layer_norm", "cumsum 0", (1, 4)),
        ("layer_norm", "sum 0", (1, 4)),
        ("layer_norm", "softmax 0", (1, 4)),
        ("layer_norm", "amax 0", (1, 4)),
        ("softmax -1", "prod 1", (2, 1, 3)),
        ("sum -1", "cumsum -1", (2, 1, 3)),
        *random.Random(0).sample(CASES, 100),
    ],
)
def test_a_dimension_of_one(first: str, second: str, shape: tuple[int, ...]) -> None:
    check(first, second, shape)


@pytest.mark.parametrize("second", ["cumsum", "cumprod", "cummax"])
def test_what_runs_along_nothing_gives_what_it_is_given(second: str) -> None:
    def program(x: Tensor) -> Any:
        found = getattr(x.sum(), second)(0)
        return found if second != "cummax" else found[0]

    x = torch.randn(3, 5)
    torch.testing.assert_close(smelt.trace(program, (x,))(x), program(x))


@pytest.mark.nightly
@pytest.mark.parametrize("first", ALONG)
def test_all_of_them(first: str) -> None:
    for case in CASES:
        if case[0] == first:
            check(*case)


READS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index": lambda x, at: (x * 2)[at] + 1,
    "embedding": lambda x, at: F.embedding(at, x * 2) + 1,
    "index_select": lambda x, at: torch.index_select(x * 2, 0, at) + 1,
    "gather": lambda x, at: torch.gather(x * 2, 0, at[:1, None].expand(1, 3)) + 1,
    "select": lambda x, at: x.squeeze(0).unsqueeze(0)[int(at[1])] + 1,
}


@pytest.mark.parametrize("name", READS)
def test_positions_along_a_dimension_of_size_1_are_checked(name: str) -> None:
    def outcome(f: Callable[[Tensor, Tensor], Tensor], at: list[int]) -> Any:
        try:
            return f(torch.arange(3.0)[None], torch.tensor(at)).tolist()
        except (IndexError, RuntimeError) as error:
            return type(error), str(error)

    compiled = smelt.compile(READS[name])
    for at in ([0, 0], [-1, 0], [0, -1], [0, 5], [5, 5], [-2, -2]):
        assert outcome(compiled, at) == outcome(READS[name], at)
