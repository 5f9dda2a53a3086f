"""How results of advanced indexing lie: as in eager, of each layout of `x` and of its indices."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import smelt
from smelt.ops.shapes.indexing import index_strides
from smelt.ops.shapes.views import Layout
from tests.symbolic.indices import call

Tensor = torch.Tensor


class _Indexings(TorchDispatchMode):
    """Notes the strides of each index's result, and what they should be."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.index.Tensor:
            indices = [at for index in args[1] for at in _layouts(index)]
            self.seen.append((result.stride(), index_strides(*_layouts(args[0]), indices)))
        return result


def _layouts(tensor: Tensor | None) -> list[Any]:
    """Of an operand; of a mask, those of the places of its true elements along each of its dimensions."""
    if tensor is None or tensor.dtype is not torch.bool:
        return [tensor if tensor is None else Layout(tuple(tensor.shape), tensor.stride())]
    return [Layout((int(tensor.sum()),), (1,))] * tensor.dim()


def _check_rule(seeds: range) -> None:
    with _Indexings() as mode:
        for seed in seeds:
            x, key = call(Random(seed))
            x[key]
            assert mode.seen[-1][0] == mode.seen[-1][1], seed


def test_the_rule() -> None:
    _check_rule(range(600))


@pytest.mark.nightly
def test_the_rule_on_many() -> None:
    _check_rule(range(1000, 30_000))


def _by_way(t: Tensor, key: Any) -> Any:
    if t.sum() > 0:
        t = t + 1
    y = t[key]
    return y.is_contiguous(), y.stride(), y.reshape(-1), y


def _check_staged(seeds: range) -> None:
    for seed in seeds:
        x, key = call(Random(seed))
        for make in (_compiled, _traced):
            staged = make(_by_way, x, key)
            for t in (x, -x - 1, x):
                found, wanted = staged(t, key), _by_way(t, key)
                assert str(found) == str(wanted) and found[-1].stride() == wanted[-1].stride(), seed


def _traced(program: Any, *args: Any) -> Any:
    return smelt.trace(program, args)


def _compiled(program: Any, *args: Any) -> Any:
    return smelt.compile(program)


def test_staged_programs() -> None:
    _check_staged(range(6))


@pytest.mark.nightly
def test_many_staged_programs() -> None:
    _check_staged(range(100, 500))


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_transposed_index(dynamic: bool | None) -> None:
    def program(t: Tensor, i: Tensor) -> Any:
        if t.sum() > 0:
            t = t + 1
        y = t[i]
        return y.is_contiguous(), y.stride(), y._version, y.as_strided((8,), (1,)), t.t()[:, i].stride()

    compiled = smelt.compile(program, dynamic=dynamic)
    for n in (3, 3, 4, 5):
        t, i = torch.arange(n * 2.0).reshape(n, 2), torch.tensor([[0, 1], [2, 1]]).mT
        assert str(compiled(t, i)) == str(program(t, i))


def test_results_that_are_row_major_whatever_their_operands_are() -> None:
    def program(x: Tensor) -> Any:
        if x.sum() > 0:
            x = x + 1
        y = x.t()
        return torch.isin(y, torch.ones(1)).stride(), torch.nn.functional.one_hot(y.long(), 5).stride()

    compiled = smelt.compile(program)
    x = torch.arange(4.0).repeat(3, 1)
    for _ in range(3):
        assert compiled(x - 0) == program(x - 0)
