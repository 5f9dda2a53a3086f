"""`torch.vmap` inside a program: the plain operators below it are the graph, autograd functions' included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

import smelt
from tests.passes.test_functionalize import check


class Doubled(torch.autograd.Function):
    """One whose rule for batches torch makes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, rows: list[Tensor]) -> Tensor:  # type: ignore[override]
        return x.sin() * 2 + rows[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass


class Summed(torch.autograd.Function):
    """One with a rule of its own."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:  # type: ignore[override]
        return x.exp().sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, int]:
        return Summed.apply(x.movedim(in_dims[0] or 0, 0)), 0


def products(x: Tensor, w: Tensor) -> Tensor:
    return torch.vmap(lambda row: (row @ w).relu() + row.sum())(x)


def functions(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    doubled = torch.vmap(lambda row, more: Doubled.apply(row, [more]))(x, x.cos())
    return doubled, torch.vmap(torch.vmap(Summed.apply), in_dims=1)(torch.stack([x, x + 1]))


def masks(x: Tensor, w: Tensor) -> Tensor:
    """As `flex_attention` and libraries of models write them: a rule for one element, over all."""
    padding = x > 0

    def rule(row: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return padding[row, j] & (j <= i)

    places = torch.arange(4)
    every = torch.vmap(torch.vmap(torch.vmap(rule, (None, None, 0)), (None, 0, None)), (0, None, None))
    with TransformGetItemToIndex():
        return torch.where(every(torch.arange(3), places, places), w[:4, :4].sum(), 0.0)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def jacobians(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Gradients of a batch, with numbers that torch keeps as tensors for them."""

    def inner(row: Tensor) -> Tensor:
        return (row * 2 @ w).sin() / 3

    rows = torch.func.vjp(inner, x[0])[1]
    return torch.func.jacrev(inner)(x[0]), torch.vmap(torch.func.jacrev(inner))(x), *torch.vmap(rows)(torch.eye(5))


@pytest.mark.spread(2)
@pytest.mark.parametrize("program", [products, functions, masks, jacobians])
def test_one_graph_of_plain_operators(program: Callable[..., Any]) -> None:
    compiled, w = smelt.compile(program), torch.linspace(-1, 1, 20).reshape(4, 5)
    inputs = [torch.linspace(-1, 2, 12).reshape(3, 4) * sign for sign in (1, -1, 3)]
    traced = smelt.trace(program, (inputs[0], w))
    for x in (*inputs, *inputs):
        for answer in (compiled(x, w), traced(x, w)):
            torch.testing.assert_close(answer, program(x, w))
    assert compiled.stats().builds == 1 and not compiled.stats().fallbacks and traced.native_failure is None


def test_what_the_run_made_and_squeezed_in_place_is_a_view() -> None:
    text = check(
        """graph f(%x: f32[3, 1], %c: bool[]) -> f32[3], f32[1, 3] {
          %a: f32[3, 1] = aten.add.Tensor(%x, 1)
          %b: f32[3] = aten.squeeze_.dim(%a, 1)
          %s: f32[3] = aten.mul_.Tensor(%b, 2)
          %d: f32[1, 3] = if %c {
            %e: f32[3, 1] = aten.sin.default(%x)
            %g: f32[1, 3] = aten.t_.default(%e)
            yield %g
          } else {
            %h: f32[1, 3] = aten.unsqueeze.default(%b, 0)
            yield %h
          }
          return %b, %d
        }""",
        torch.arange(3.0)[:, None],
        torch.tensor(True),
    )
    assert "squeeze_" not in text and "t_" not in text


@pytest.mark.filterwarnings("ignore:.*falls back to eager")
def test_an_argument_that_is_squeezed_in_place_is_squeezed() -> None:
    compiled = smelt.compile(lambda x: x.squeeze_(1) * 2)
    for _ in range(3):
        given = torch.ones(3, 1)
        assert torch.equal(compiled(given), torch.full((3,), 2.0)) and given.shape == (3,)
