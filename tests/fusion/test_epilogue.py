"""Epilogues: what follows a product, as an expression over its element."""

from __future__ import annotations

import pytest

from smelt.codegen.fusion.epilogue import epilogue_expr, epilogue_nodes, in_eager_layout
from smelt.codegen.fusion.index import Unfusible
from smelt.codegen.kernels.nest import Nest, expr_text
from smelt.ir import Graph, parse


def _text(graph: Graph, column: int = -1) -> str:
    product = next(n for n in graph.body if "linear" in n.op or "conv" in n.op).result
    found = epilogue_expr(epilogue_nodes(product), product, in_eager_layout, column=column)
    return expr_text(Nest(found.buffers, (2, 2), (), ()), found.expr)


@pytest.mark.parametrize("has_onednns", [False, True])
def test_bias_activation_residual(monkeypatch: pytest.MonkeyPatch, has_onednns: bool) -> None:
    """Where eager takes oneDNN's GELU, infinity makes NaN."""
    monkeypatch.setattr("smelt.codegen.fusion.rules.activations._has_onednns_gelu", lambda: has_onednns)
    gelu = "fma(add(acc, %b[i1]), 0.0, gelu(add(acc, %b[i1])))" if has_onednns else "gelu(add(acc, %b[i1]))"
    graph = parse("""\
graph f(%x: f32[2, 3, 4], %w: f32[5, 4], %b: f32[5], %r: f32[2, 3, 5]) -> f32[2, 3, 5] {
  %0: f32[2, 3, 5] = aten.linear.default(%x, %w)
  %1: f32[2, 3, 5] = aten.add.Tensor(%0, %b)
  %2: f32[2, 3, 5] = aten.gelu.default(%1)
  %3: f32[2, 3, 5] = aten.add.Tensor(%2, %r)
  return %3
}""")
    assert _text(graph) == f"add({gelu}, %r[5*i0 + i1])"


def test_half_types_are_rounded_at_each_operator() -> None:
    graph = parse("""\
graph f(%x: bf16[3, 4], %w: bf16[5, 4], %r: bf16[3, 5]) -> bf16[3, 5] {
  %0: bf16[3, 5] = aten.linear.default(%x, %w)
  %1: bf16[3, 5] = aten.add.Tensor(%0, %r)
  return %1
}""")
    assert _text(graph) == "cast[bf16](add(cast[f32](cast[bf16](acc)), cast[f32](%r[5*i0 + i1])))"


def test_channels_are_columns() -> None:
    graph = parse("""\
graph f(%x: f32[1, 3, 6, 6], %w: f32[4, 3, 1, 1]) -> f32[1, 4, 6, 6]{144, 1, 24, 4} {
  %r: f32[1, 4, 6, 6]{144, 1, 24, 4} = param("r")
  %0: f32[1, 4, 6, 6]{144, 1, 24, 4} = aten.conv2d.default(%x, %w)
  %1: f32[1, 4, 6, 6]{144, 1, 24, 4} = aten.add.Tensor(%0, %r)
  %2: f32[1, 4, 6, 6]{144, 1, 24, 4} = aten.relu.default(%1)
  return %2
}""")
    assert _text(graph, column=1) == ("select(lt(add(acc, %r[4*i0 + i1]), 0.0), 0.0, add(acc, %r[4*i0 + i1]))")


def test_rows_apart_are_refused() -> None:
    graph = parse("""\
graph f(%x: f32[2, 3, 4], %w: f32[5, 4], %r: f32[2, 3, 5]{5, 10, 1}) -> f32[2, 3, 5] {
  %0: f32[2, 3, 5] = aten.linear.default(%x, %w)
  %1: f32[2, 3, 5] = aten.add.Tensor(%0, %r)
  return %1
}""")
    with pytest.raises(Unfusible, match="one dimension"):
        _text(graph)
