"""Equal things are computed once, and outputs that are separate in eager stay separate."""

from __future__ import annotations

import torch

import smelt
from smelt.ir import parse
from smelt.ops.evaluate import evaluate
from smelt.passes.base import PassContext
from smelt.passes.cse import cse


def test_an_output_that_took_the_place_of_another_is_an_output() -> None:
    """%2 is merged into %1, which is returned from then on; %3 must not be merged into it, too."""
    graph = parse(
        "graph f(%x: f32[2]) -> f32[2], f32[2], f32[2] {\n"
        "  %1: f32[2] = aten.cat.default([%x])\n"
        "  %2: f32[2] = aten.cat.default([%x])\n"
        "  %3: f32[2] = aten.cat.default([%x])\n"
        "  %4: f32[2] = aten.sin.default(%1)\n"
        "  return %2, %3, %4\n"
        "}"
    )
    cse.run(graph, PassContext())
    x = torch.tensor([1.0, 2.0])
    first, second, third = evaluate(graph, [x])
    assert torch.equal(first, x) and torch.equal(second, x) and torch.equal(third, x.sin())
    assert len({t.untyped_storage().data_ptr() for t in (x, first, second, third)}) == 4
    assert sum(node.op == "aten.cat.default" for node in graph.walk()) == 2


def test_a_compiled_program_returns_as_many_tensors_as_eager() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        a, b, c = (torch.cat([x, -x]) for _ in range(3))
        return a.cos(), b, c

    compiled = smelt.compile(f, options={"measure": False})
    x = torch.randn(3)
    for _ in range(2):
        _, b, c = compiled(x)
        b.zero_()
        assert torch.equal(c, torch.cat([x, -x]))
