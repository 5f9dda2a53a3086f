"""Products of a loop's iterations taken together: of what it goes over before it, of what it adds up behind it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from smelt.ir import Graph, parse, verify
from smelt.passes.base import PassContext
from smelt.passes.dce import dce
from smelt.passes.manager import observe
from smelt.passes.products.loop_products import loop_products

HEAD = "graph loop(%x: f32[6, 2, 3], %d: f32[6, 2, 5], %w: f32[4, 3], %b: f32[4], %g: f32[5, 3]) -> f32[{sizes}] {{\n"

OVER = (
    HEAD
    + """
  %first: f32[2, 4] = aten.zeros.default([2, 4])
  %all: f32[2, 4] = for %i: int in (0, {stop}, 1) with (%c: f32[2, 4] = %first) {{
    %j: int = py.sub({last}, %i)
    %row: f32[2, 3] = aten.select.int(%x, {dim}, {index})
    %1: f32[2, 4] = aten.linear.default(%row, %w, %b)
    %2: f32[2, 4] = aten.tanh.default(%c)
    %3: f32[2, 4] = aten.add.Tensor(%2, %1)
    yield %3
  }}
  return %all
}}
"""
)

SUMS = (
    HEAD
    + """
  %zero: f32[5, 3] = {first}
  %none: f32[5] = aten.zeros.default([5])
  %state: f32[2, 5], %all: f32[5, 3], %rows: f32[5] = for %k: int in (0, 6, 1) with (CARRIED) {{
    %j: int = py.sub({last}, %k)
    %row: f32[2, 3] = aten.select.int(%x, 0, {index})
    %a: f32[2, 5] = aten.select.int(%d, 0, %k)
    %m: f32[2, 5] = aten.mul.Tensor(%a, %h)
    %m2: f32[2, 5] = aten.tanh.default(%m)
    %turned: f32[5, 2]{{1, 5}} = aten.transpose.int(%m2, 0, 1)
    %p: f32[5, 3] = aten.mm.default(%turned, %row)
    %q: f32[5] = aten.sum.dim_IntList(%m2, [0])
    %s2: f32[5, 3] = aten.add.Tensor({left}, {right})
    %t2: f32[5] = aten.add.Tensor(%t, %q)
    yield %m2, %s2, %t2
  }}
  %wide: f32[5, 1] = aten.unsqueeze.default(%rows, 1)
  %sum: f32[5, 3] = aten.add.Tensor(%all, %wide)
  return %sum
}}
"""
).replace("CARRIED", "%h: f32[2, 5] = %h0, %s: f32[5, 3] = %zero, %t: f32[5] = %none")


def graph_of(text: str, **changes: Any) -> Graph:
    is_over = text is OVER
    usual = {"sizes": "2, 4" if is_over else "5, 3", "stop": 6, "last": 5, "dim": 0, "index": "%i" if is_over else "%k"}
    usual |= {"left": "%s", "right": "%p", "first": "aten.zeros_like.default(%g)"}
    found = (
        text.format(**{**usual, **changes})
        .replace("%h0", "%start")
        .replace("  %zero", "  %start: f32[2, 5] = aten.ones.default([2, 5])\n  %zero")
    )
    graph = parse(found)
    verify(graph)
    return graph


def inputs() -> list[torch.Tensor]:
    sizes = ((6, 2, 3), (6, 2, 5), (4, 3), (4,), (5, 3))
    return [torch.randn(*s, generator=torch.Generator().manual_seed(i)) for i, s in enumerate(sizes)]


def inner_ops(graph: Graph) -> Counter[str]:
    """Operators in the graph's loop, after the pass; all it computes is checked."""
    expected = observe(graph, inputs())
    loop_products.run(graph, PassContext())
    dce.run(graph, PassContext())
    verify(graph)
    for a, b in zip(observe(graph, inputs()).outputs, expected.outputs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    (loop,) = (node for node in graph.body if node.op == "for")
    return Counter(node.op for node in loop.regions[0])


@pytest.mark.parametrize("index", ["%i", "%j"])
def test_rows_that_a_loop_goes_over_are_multiplied_at_once(index: str) -> None:
    graph = graph_of(OVER, index=index)
    assert "aten.linear.default" not in inner_ops(graph)
    assert sum(node.op == "aten.linear.default" for node in graph.body) == 1


@pytest.mark.parametrize(
    "changes",
    [{"stop": 3, "last": 2}, {"index": "2"}, {"index": "%j", "last": 4, "stop": 5}],
    ids=["half of them", "one row", "five of six"],
)
def test_other_rows(changes: dict[str, Any]) -> None:
    stays = changes.get("stop") != 5
    assert ("aten.linear.default" in inner_ops(graph_of(OVER, **changes))) is stays


@pytest.mark.parametrize("index", ["%k", "%j"])
@pytest.mark.parametrize("first", ["aten.zeros_like.default(%g)", "aten.sin.default(%g)"])
def test_sums_are_taken_behind_the_loop(index: str, first: str) -> None:
    graph = graph_of(SUMS, index=index, first=first)
    found = inner_ops(graph)
    assert not found.keys() & {"aten.mm.default", "aten.sum.dim_IntList"}
    # What the loop goes over stands in one tensor already; products and sums share what is put aside besides.
    assert found["aten.select_scatter.default"] == (1 if index == "%k" else 2)


@pytest.mark.parametrize(
    "changes",
    [{"left": "%p", "right": "%p"}, {"left": "%s", "right": "%s"}],
    ids=["no sum of iterations", "doubled"],
)
def test_what_is_no_sum_of_products_stays(changes: dict[str, Any]) -> None:
    found = inner_ops(graph_of(SUMS, **changes))
    assert found["aten.mm.default"] == (changes["left"] == "%p")
    assert "aten.sum.dim_IntList" not in found
