"""Tensors that are laid out anew between kernels: by kernels of our own, where rows become columns, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

import smelt
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.lower.memory.relaying import relay
from smelt.inspect.kernels import compiled_units
from smelt.ir import Graph
from smelt.ops.evaluate import no_state
from smelt.runtime.plan import Copy, Instruction, Launch

_Strides = tuple[int, ...]
_REORDERED: tuple[tuple[tuple[int, ...], _Strides, _Strides], ...] = (
    ((1, 256, 32, 32), (262144, 1024, 32, 1), (262144, 1, 8192, 256)),
    ((2, 7, 9, 11), (693, 99, 11, 1), (693, 1, 77, 7)),
    ((3, 40, 50), (2000, 1, 40), (2000, 50, 1)),
    ((17, 65), (1, 17), (65, 1)),
    ((4, 5, 6, 13), (1, 4, 20, 120), (390, 78, 13, 1)),
)
_LEFT: tuple[tuple[tuple[int, ...], _Strides, _Strides], ...] = (
    ((8, 8), (1, 8), (8, 1)),  # few elements
    ((64, 64), (0, 1), (64, 1)),  # one row for all
    ((64, 64), (1, 65), (64, 1)),  # gaps
    ((64, 64), (64, 1), (64, 1)),  # the same order
    ((64, 1, 64), (64, 9, 1), (64, 64, 1)),
)


def _emitted(dtype: torch.dtype, sizes: tuple[int, ...], of: _Strides, into: _Strides) -> Sequence[Instruction]:
    """What lays a tensor out anew."""
    ctx = Context(Graph("relaid"), no_state, smelt.Options())
    source, target = (ctx.builder.arena(Geometry(sizes, strides), dtype) for strides in (of, into))
    relay(ctx, Place(target, target.base), Place(source, source.base))
    return ctx.builder.instructions


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("number", range(len(_REORDERED)))
def test_rows_that_become_columns_are_a_launch(number: int, dtype: torch.dtype) -> None:
    sizes, of, into = _REORDERED[number]
    launches = [i for i in _emitted(dtype, sizes, of, into) if isinstance(i, Launch)]
    assert [i.label for i in launches] == ["layout"] and launches[0].writes == (1,)


@pytest.mark.parametrize("number", range(len(_LEFT)))
def test_what_gains_nothing_is_left_to_the_library(number: int) -> None:
    assert not any(isinstance(i, Launch) for i in _emitted(torch.float32, *_LEFT[number]))
    assert not any(isinstance(i, Launch) for i in _emitted(torch.int64, *_REORDERED[0]))


class _Turned(nn.Module):
    """A convolution, whose kernel reads channels side by side, of an image whose rows lie so."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 1, bias=False)
        nn.init.dirac_(self.conv.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x * 2.0)


@pytest.mark.parametrize("sizes", [(1, 64, 32, 32), (2, 24, 9, 11), (1, 48, 1, 129)], ids=str)
def test_every_element_comes_where_it_belongs(sizes: tuple[int, ...]) -> None:
    model = _Turned(sizes[1]).eval()
    x = torch.arange(torch.tensor(sizes).prod().item(), dtype=torch.float32).view(sizes)
    compiled = smelt.compile(model, options={"measure": False})
    with torch.no_grad():
        assert torch.equal(compiled(x), 2.0 * x)
    (unit,) = compiled_units(compiled)
    assert unit.lowered is not None
    plan = unit.lowered.plan.instructions
    assert any(isinstance(i, Launch) and i.label == "layout" for i in plan)
    assert not any(isinstance(i, Copy) for i in plan)
