"""Epilogues: what follows a product, as an expression over its element."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.codegen.fusion.epilogue import epilogue_expr, epilogue_nodes, in_eager_layout, leave_last_out
from smelt.codegen.fusion.index import Unfusible
from smelt.codegen.kernels.nest import Nest, expr_text
from smelt.inspect.kernels import compiled_units
from smelt.ir import Graph, parse
from smelt.runtime.plan import Launch
from tests.codegen.harness import rms_ratio


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


_MEETING = """\
graph f(%x: f32[3, 4], %w: f32[5, 4], %r: f32[3, 5]) -> f32[3, 5] {
  %0: f32[3, 5] = aten.linear.default(%x, %w)
  %1: f32[3, 5] = aten.relu.default(%0)
  %2: f32[3, 5] = aten.sigmoid.default(%1)
  %3: f32[3, 5] = aten.tanh.default(%r)
  %4: f32[3, 5] = aten.neg.default(%1)
  %5: f32[3, 5] = aten.mul.Tensor(%2, %4)
  %6: f32[3, 5] = aten.add.Tensor(%5, %3)
  return %6
}"""


def test_uses_that_meet_are_taken_together() -> None:
    graph = parse(_MEETING)
    product = next(n for n in graph.body if "linear" in n.op).result
    nodes = epilogue_nodes(product, meeting=True)
    assert [n.result.name for n in nodes] == ["1", "2", "4", "5", "6"]
    assert [n.result.name for n in epilogue_nodes(product)] == ["1"]
    left: list[list[str]] = []
    while nodes:
        leave_last_out(nodes, product)
        left.append([n.result.name for n in nodes])
    assert left == [["1", "2", "4", "5"], ["1"], []]


@pytest.mark.parametrize(
    "line",
    [
        "%4: f32[3] = aten.sum.dim_IntList(%1, [1])",
        "%4: f32[5, 3]{1, 5} = aten.transpose.int(%1, 0, 1)",
        "%4: f32[3, 5] = aten.softmax.int(%1, -1)",
    ],
)
def test_a_use_of_another_kind_ends_an_epilogue(line: str) -> None:
    type_ = line.split(": ")[1].split(" =")[0]
    graph = parse(f"""\
graph f(%x: f32[3, 4], %w: f32[5, 4]) -> f32[3, 5], {type_} {{
  %0: f32[3, 5] = aten.linear.default(%x, %w)
  %1: f32[3, 5] = aten.relu.default(%0)
  %2: f32[3, 5] = aten.sigmoid.default(%1)
  {line}
  %5: f32[3, 5] = aten.mul.Tensor(%2, %1)
  return %5, %4
}}""")
    product = next(n for n in graph.body if "linear" in n.op).result
    assert [n.result.name for n in epilogue_nodes(product, meeting=True)] == ["1"]


_WRITTEN: dict[str, Callable[[Tensor], Tensor]] = {
    "swish": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu by a power": lambda x: 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0)))),
    "gelu by products": lambda x: x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))),
    "a path around": lambda x: torch.relu(x) * torch.relu(x) - x,
    "used otherwise, too": lambda x: x * torch.sigmoid(x) + x.mean(),
}


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["linear", "convolution", "product"])
@pytest.mark.parametrize("name", _WRITTEN)
def test_activations_that_are_written_out(name: str, kind: str, dtype: torch.dtype) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner: nn.Module = nn.Conv2d(8, 40, 3) if kind == "convolution" else nn.Linear(16, 40, bias=False)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return _WRITTEN[name](x @ y if kind == "product" else self.inner(x))

    torch.manual_seed(0)
    model, x = Layer().to(dtype).eval(), torch.randn(2, 8, 12, 16, dtype=dtype) * 3
    y = torch.randn(2, 8, 16, 20, dtype=dtype)
    compiled = smelt.compile(model, options={"measure": False})
    mine, theirs = compiled(x, y), model(x, y)
    exact = copy.deepcopy(model).double()(x.double(), y.double())
    assert mine.stride() == theirs.stride() and rms_ratio(mine, theirs, exact) <= 1.5
    if dtype is torch.float32 and name != "used otherwise, too":
        (unit,) = compiled_units(compiled)
        assert unit.lowered is not None
        labels = [i.label for i in unit.lowered.plan.instructions if isinstance(i, Launch)]
        assert all(label.split()[0] in ("product", "convolution", "layout") for label in labels)
    for special in (torch.inf, -torch.inf, torch.nan):
        x[1, 2, 3, 4] = special
        torch.testing.assert_close(compiled(x, y), model(x, y), equal_nan=True)
