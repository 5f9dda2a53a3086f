"""Numbers that a graph takes beside products, convolutions, attention, reductions, norms, views and writes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from smelt.codegen.lower import lower
from smelt.ir import parse
from smelt.ops.evaluate import evaluate
from tests.codegen.harness import executables, lookup_in
from tests.control.harness import OWN

PROGRAMS = {
    "linear": """\
graph f(%x: f32[12, 32], %n: int, %s: float) -> f32[12, 48] {
  %w: f32[48, 32] = param("w")
  %b: f32[48] = param("b")
  %0: f32[12, 48] = aten.linear.default(%x, %w, %b)
  %1: f32[12, 48] = aten.mul.Tensor(%0, %s)
  %2: f32[12, 48] = aten.clamp_min.default(%1, %n)
  return %2
}""",
    "one row": """\
graph f(%x: f32[1, 32], %n: int, %s: float) -> f32[1, 48] {
  %w: f32[48, 32] = param("w")
  %0: f32[1, 48] = aten.linear.default(%x, %w)
  %1: f32[1, 48] = aten.add.Tensor(%0, %n)
  %2: f32[1, 48] = aten.tanh.default(%1)
  %3: f32[1, 48] = aten.mul.Tensor(%2, %s)
  return %3
}""",
    "matmul": """\
graph f(%x: f32[3, 8, 16], %n: int, %s: float) -> f32[3, 8, 8] {
  %t: f32[3, 16, 8]{128, 1, 16} = aten.transpose.int(%x, 1, 2)
  %0: f32[3, 8, 8] = aten.matmul.default(%x, %t)
  %1: f32[3, 8, 8] = aten.mul.Tensor(%0, %s)
  %2: f32[3, 8, 8] = aten.softmax.int(%1, -1)
  %3: f32[3, 8, 8] = aten.mul.Tensor(%2, %n)
  return %3
}""",
    "convolution": """\
graph f(%x: f32[2, 8, 10, 10], %n: int, %s: float) -> f32[2, 16, 10, 10] {
  %k: f32[16, 8, 3, 3] = param("k")
  %0: f32[2, 16, 10, 10] = aten.conv2d.default(%x, %k, None, [1, 1], [1, 1])
  %1: f32[2, 16, 10, 10] = aten.mul.Tensor(%0, %s)
  %2: f32[2, 16, 10, 10] = aten.add.Tensor(%1, %n)
  return %2
}""",
    "attention": """\
graph f(%x: f32[2, 4, 16, 8], %n: int, %s: float) -> f32[2, 4, 16, 8] {
  %0: f32[2, 4, 16, 8] = aten.mul.Tensor(%x, %s)
  %1: f32[2, 4, 16, 8] = aten.scaled_dot_product_attention.default(%0, %x, %x)
  %2: f32[2, 4, 16, 8] = aten.mul.Tensor(%1, %n)
  return %2
}""",
    "reduction": """\
graph f(%x: f32[300000], %n: int, %s: float) -> f32[] {
  %0: f32[300000] = aten.mul.Tensor(%x, %s)
  %1: f32[300000] = aten.clamp.default(%0, %n)
  %2: f32[] = aten.sum.default(%1)
  %3: f32[] = aten.mul.Tensor(%2, %s)
  return %3
}""",
    "norm": """\
graph f(%x: f32[40, 64], %n: int, %s: float) -> f32[40, 64] {
  %0: f32[40, 64] = aten.mul.Tensor(%x, %s)
  %1: f32[40, 64] = aten.add.Tensor(%0, %x, alpha=%n)
  %2: f32[40, 64] = aten.layer_norm.default(%1, [64])
  %3: f32[40, 64] = aten.pow.Tensor_Scalar(%2, %n)
  %4: f32[40, 64] = aten.lerp.Scalar(%3, %2, %s)
  return %4
}""",
    "views": """\
graph f(%x: f32[6, 8], %n: int, %s: float) -> f32[8, 6] {
  %0: f32[6, 8] = aten.mul.Tensor(%x, %s)
  %1: f32[8, 6]{1, 8} = aten.t.default(%0)
  %2: f32[8, 6]{1, 8} = aten.masked_fill.Scalar(%1, %1, %n)
  %3: f32[8, 6] = aten.contiguous.default(%2)
  return %3
}""",
    "integers": """\
graph f(%x: f32[7], %n: int, %s: float) -> i64[7], f32[7], bool[7] {
  %0: i64[7] = aten.to.dtype(%x, i64)
  %1: i64[7] = aten.mul.Tensor(%0, %n)
  %2: f32[7] = aten.mul.Tensor(%0, %s)
  %3: bool[7] = aten.gt.Scalar(%1, %s)
  return %1, %2, %3
}""",
}
PROGRAMS["views"] = (
    PROGRAMS["views"]
    .replace("(%1, %1, %n)", "(%1, %c, %n)")
    .replace("  %2:", "  %c: bool[8, 6]{1, 8} = aten.gt.Scalar(%1, %s)\n  %2:")
)


def _inputs(name: str) -> torch.Tensor:
    shape = next(v.type for v in parse(PROGRAMS[name]).inputs if v.name == "x").sizes  # type: ignore[union-attr]
    return torch.randn(shape)


@pytest.mark.parametrize("name", PROGRAMS)
def test_beside(name: str) -> None:
    torch.manual_seed(0)
    state = {"w": torch.randn(48, 32), "b": torch.randn(48), "k": torch.randn(16, 8, 3, 3) / 8}
    graph, x = parse(PROGRAMS[name]), _inputs(name)
    made = lower(graph, lookup_in(state), OWN)
    assert made.report.counts.get("python", 0) == 0, made.report.python_nodes
    wide = {key: value.double() for key, value in state.items()}
    for executable in executables(made.plan):
        for n, s in ((0, 0.5), (2, -1.25), (-3, 0.1), (1, 1.0), (3, math.inf)):
            inputs: list[Any] = [x.clone(), n, s]
            found = made.rebuild(executable.run(inputs), inputs, lookup_in(state))
            eager = evaluate(graph, list(inputs), lookup_in(state))
            exact = evaluate(graph, [x.double(), n, s], lookup_in(wide)) if name != "integers" else eager
            for a, b, c in zip(found, eager, exact, strict=True):
                assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
                if name == "integers" or not torch.isfinite(c).all():
                    torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-4, atol=1e-4)
                    continue
                scale = c.abs().max().double().item() + 1e-30
                ours, theirs = ((t.double() - c.double()).abs().max().item() / scale for t in (a, b))
                assert ours <= 4 * theirs + 1e-6, (n, s, ours, theirs)


def test_a_write_of_what_a_number_makes() -> None:
    text = """\
graph f(%x: f32[5], %n: int) -> f32[5] {
  %0: f32[5] = aten.add.Tensor(%x, %n)
  %1: f32[5] = write(%x, %0)
  return %1
}"""
    graph = parse(text)
    made = lower(graph, lookup_in({}), OWN)
    for executable in executables(made.plan):
        x = torch.arange(5.0)
        for n in (1, 5, -2):
            before = x.clone()
            (found,) = made.rebuild(executable.run([x, n]), [x, n], lookup_in({}))
            assert torch.equal(x, before + n) and found.data_ptr() == x.data_ptr()
