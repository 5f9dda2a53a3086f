"""einops' functions and layers: one graph for all sizes, branches included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from einops import einsum, pack, parse_shape, rearrange, reduce, repeat, unpack
from einops.layers.torch import EinMix, Rearrange, Reduce

import smelt
from smelt.compiler.object.compiled import dispatcher_of


def packed(x: torch.Tensor) -> torch.Tensor:
    joined, shapes = pack([x, x[:, 0]], "b * c")
    rows, first = unpack(joined * 2, shapes, "b * c")
    return rows.sum(1) + first


def branching(x: torch.Tensor) -> torch.Tensor:
    y = rearrange(x, "b t (h c) -> b h t c", h=3)
    y = repeat(y, "b h t c -> b h (r t) c", r=2) if y.sum() > 0 else -y
    return reduce(y, "b h t c -> b c", "sum")


PROGRAMS: dict[str, Callable[..., Any]] = {
    "rearrange": lambda x: rearrange(x, "b t (h c) -> (b h) t c", h=2),
    "reduce": lambda x: reduce(x, "b t (c two) -> b t c", "max", two=2),
    "repeat": lambda x: repeat(x, "b t c -> b t c r", r=3),
    "einsum": lambda x: einsum(x, x, "b i c, b j c -> b i j"),
    "list": lambda x: rearrange([x, x + 1], "k b t c -> b t (k c)"),
    "ellipsis": lambda x: rearrange(x, "b ... c -> b c ..."),
    "parse_shape": lambda x: x * parse_shape(x, "b t _")["t"],
    "pack": packed,
    "branching": branching,
    "layers": torch.nn.Sequential(Rearrange("b t (h c) -> b h t c", h=2), Reduce("b h t c -> b t h", "mean")),
    "mix": EinMix("b t c -> b t d", weight_shape="c d", bias_shape="d", c=6, d=8),
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_einops_is_one_graph_for_all_sizes(name: str) -> None:
    program = PROGRAMS[name]
    compiled = smelt.compile(program)
    with torch.no_grad():
        for batch, length in ((2, 3), (3, 5), (4, 4), (5, 7), (2, 6), (6, 2), (3, 9)):
            x = torch.randn(batch, length, 6)
            expected, found = program(x), compiled(x)
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()
    stats = dispatcher_of(compiled).stats()
    # In the first call of a process einops imports what it knows of torch; that one may be left to eager.
    assert stats.builds <= 4 and sum(stats.fallbacks.values()) <= 1, (stats.builds, stats.fallbacks)
