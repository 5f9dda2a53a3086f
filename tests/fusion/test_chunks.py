"""Reductions to few elements as partial results and their combination."""

from __future__ import annotations

import pytest
import torch

from smelt.codegen.fusion.chunks import stages
from smelt.codegen.kernels.evaluate import evaluate_nest
from smelt.ir import parse
from smelt.ops.convert import dtype_to_torch
from smelt.ops.evaluate import evaluate
from tests.fusion.harness import nest_of


@pytest.mark.spread(2)
@pytest.mark.parametrize("sizes", ["1048576", "1000003", "3, 70001", "700, 300"])
@pytest.mark.parametrize("op", ["sum.default", "amax.default", "any.default", "prod.default", "mean.default"])
def test_two_stages_equal_one(op: str, sizes: str) -> None:
    result = "bool" if "any" in op else "f32"
    graph = parse(f"""\
graph f(%x: f32[{sizes}], %y: f32[{sizes}]) -> {result}[] {{
  %0: f32[{sizes}] = aten.mul.Tensor(%x, %y)
  %1: {result}[] = aten.{op}(%0)
  return %1
}}""")
    shape = tuple(int(s) for s in sizes.split(","))
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(shape, generator=generator) * 0.2 + 0.9 for _ in range(2))
    if "amax" in op:
        # All below the zeros that a cut chunk is filled up with.
        y = -y
    if "prod" in op:
        # A product that neither vanishes nor overflows: ones with some powers of two, 8 in all.
        places = torch.randperm(x.numel(), generator=generator)
        x, y = torch.ones(shape), torch.ones(shape)
        x.view(-1)[places[:60]], y.view(-1)[places[40:97]] = 2.0, 0.5
    built = nest_of(graph)
    found = stages(built.nest)
    assert len(found) == 2
    out = torch.empty((), dtype=dtype_to_torch(graph.outputs[0].type.dtype))
    tensors = [{"%x": x, "%y": y}.get(b.name, out) for b in built.nest.buffers]
    partials = [torch.empty(n, dtype=dtype_to_torch(d)) for n, d in found[0].partials]
    for stage in found:
        memory = [tensors[n] if n >= 0 else partials[-1 - n] for n in stage.buffers]
        assert evaluate_nest(stage.nest, memory) == 0
    torch.testing.assert_close(out, evaluate(graph, [x, y])[0], rtol=2e-4, atol=1e-6)
