"""Products of pieces as pieces of a product: the same answers whatever the pieces are and whoever uses them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import smelt
from smelt.capture import capture
from smelt.passes.base import PassContext
from smelt.passes.dce import dce
from smelt.passes.manager import compare as difference
from smelt.passes.manager import observe, run_passes
from smelt.passes.mutation.functionalize import functionalize
from smelt.passes.products.hoist_products import hoist_products


def products(fn: torch.nn.Module, *args: Tensor) -> int:
    """How many products are left, after comparing all that a run leaves behind."""
    with torch.no_grad():
        captured = capture(fn, args)
    assert captured.graph is not None and captured.signature is not None
    graph, lookup = captured.graph, captured.state.lookup
    tensors = captured.signature.flatten(args)
    run_passes(graph, (functionalize,))
    expected = observe(graph, tensors, lookup)
    run_passes(graph, (hoist_products, dce), PassContext(lookup))
    found = observe(graph, tensors, lookup)
    assert not difference(found, expected, 1e-5, 1e-5)
    assert found.sharing == expected.sharing
    return sum(node.op == "aten.linear.default" for node in graph.walk())


class Pieces(torch.nn.Module):
    """Products of pieces of x, each in its own way: used, given out, written."""

    def __init__(self, pieces: list[tuple[str, int, int]], ends: list[str], bias: bool) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 5, bias=bias).requires_grad_(False)
        self.pieces, self.ends = pieces, ends

    def forward(self, x: Tensor) -> list[Tensor]:
        given = []
        for (kind, dim, at), end in zip(self.pieces, self.ends, strict=True):
            made = self.layer(x.select(dim, at) if kind == "select" else x.narrow(dim, at, 1))
            if end == "written":
                made.add_(1.0)
            given.append(made if end == "given" else made.flatten().cos() if end == "flat" else made.tanh())
        return given


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_pieces_keep_the_answer(data: st.DataObject) -> None:
    sizes = data.draw(st.sampled_from([(3, 1, 6), (2, 2, 6), (2, 3, 2, 6), (4, 6)]))
    kind = data.draw(st.sampled_from(["select", "narrow"]))
    dim = data.draw(st.integers(0, len(sizes) - 2))
    places = data.draw(st.permutations(range(sizes[dim])))[: data.draw(st.integers(1, sizes[dim]))]
    ends = [data.draw(st.sampled_from(["used", "used", "used", "given", "written", "flat"])) for _ in places]
    x = torch.randn(sizes, generator=torch.Generator().manual_seed(7))
    if data.draw(st.booleans()):
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    torch.manual_seed(3)
    products(Pieces([(kind, dim, at) for at in places], ends, data.draw(st.booleans())), x)


def test_one_product_for_all_steps() -> None:
    torch.manual_seed(3)
    module = Pieces([("select", 0, at) for at in range(4)], ["used"] * 4, bias=True)
    assert products(module, torch.randn(4, 1, 6)) == 1


def test_a_write_between_two_pieces_keeps_them_apart() -> None:
    class Writes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(6, 5).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            y = x.clone()
            first = self.layer(y[0]).tanh()
            y[1].copy_(first.sum())
            return first + self.layer(y[1]).tanh()

    torch.manual_seed(3)
    assert products(Writes(), torch.randn(2, 1, 6)) == 2


@pytest.mark.parametrize("numerics", ["default", "eager-library"])
def test_a_recurrent_cell(numerics: str) -> None:
    torch.manual_seed(3)
    cell = torch.nn.LSTMCell(6, 5).requires_grad_(False)

    def run(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        for step in x.unbind():
            h, c = cell(step, (h, c))
        return h, c

    args = torch.randn(7, 2, 6), torch.randn(2, 5), torch.randn(2, 5)
    with torch.no_grad():
        found = smelt.compile(run, options={"numerics": numerics})(*args)
        torch.testing.assert_close(found, run(*args))
