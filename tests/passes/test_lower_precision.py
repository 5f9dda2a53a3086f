"""Products in bf16: which, with which casts around them, and what must stay as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smelt.capture import capture
from smelt.ir import DType, Graph, Node, TensorType, verify
from smelt.ops.evaluate import evaluate
from smelt.passes.base import PassContext
from smelt.passes.cse import cse
from smelt.passes.dce import dce
from smelt.passes.manager import run_passes
from smelt.passes.mutation.functionalize import functionalize
from smelt.passes.products.lower_precision import lower_precision
from smelt.passes.products.spell_linear import spell_linear

TO = "aten.to.dtype"
LINEAR = "aten.linear.default"


def narrowed(
    fn: Callable[..., Any], *args: Tensor, pays: Callable[[Node], bool] = lambda node: True
) -> tuple[Graph, list[Tensor], list[Tensor]]:
    """The graph after the pass, its outputs, and eager's."""
    with torch.no_grad():
        captured = capture(fn, args)
        assert captured.graph is not None
        graph = captured.graph.clone()
        lookup = captured.state.lookup
        passes = (functionalize, spell_linear, lower_precision, cse, dce)
        run_passes(graph, passes, PassContext(lookup, narrowing_pays=pays))
        verify(graph)
        found = evaluate(graph, args, lookup)
        expected = fn(*args)
    return graph, found, list(expected) if isinstance(expected, tuple) else [expected]


def ops(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.walk())


def in_bf16(graph: Graph, op: str) -> int:
    types = [n.result.type for n in graph.walk() if n.op == op]
    return sum(isinstance(t, TensorType) and t.dtype is DType.BF16 for t in types)


def assert_near(found: list[Tensor], expected: list[Tensor], bound: float = 1e-2) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert (a.double() - b.double()).square().mean().sqrt() <= bound * b.double().square().mean().sqrt()


class Block(nn.Module):
    """Norm, two linears with an activation between them, and a residual sum."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = F.gelu) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.activation(self.up(self.norm(x))))


@pytest.mark.parametrize("activation", [F.gelu, F.silu, torch.tanh, torch.sigmoid])
def test_an_activation_between_two_products_has_no_casts_around_it(activation: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    graph, found, expected = narrowed(Block(activation).eval(), torch.randn(8, 16))
    assert in_bf16(graph, LINEAR) == 2
    # The input of the first, the result of the second, and two weights with their biases.
    assert ops(graph)[TO] == 6
    assert in_bf16(graph, "aten.layer_norm.default") == in_bf16(graph, "aten.add.Tensor") == 0
    assert_near(found, expected)


def test_a_gate_between_products_is_bf16_and_exact() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((16, 32), (16, 32), (32, 16)))

        def forward(self, x: Tensor) -> Tensor:
            return self.down(F.silu(self.gate(x)) * self.up(x))

    torch.manual_seed(0)
    graph, found, expected = narrowed(Gated(), torch.randn(4, 16))
    assert in_bf16(graph, "aten.mul.Tensor") == 1
    assert ops(graph)[TO] == 1 + 3 + 1
    assert_near(found, expected)


def test_two_operators_between_products_keep_f32_between_them() -> None:
    first, second = nn.Linear(16, 16), nn.Linear(16, 16)
    graph, found, expected = narrowed(lambda x: second(torch.relu(first(x)) * 0.3 + 1), torch.randn(4, 16))
    assert in_bf16(graph, "aten.add.Tensor") == in_bf16(graph, "aten.mul.Tensor") == 0
    assert_near(found, expected)


def test_one_input_of_several_products_is_cast_once() -> None:
    parts = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(3))
    graph, _, _ = narrowed(lambda x: tuple(p(x) for p in parts), torch.randn(4, 16))
    assert ops(graph)[TO] == 1 + 3 + 3


def test_views_between_products_carry_bf16() -> None:
    first, second = nn.Linear(16, 16), nn.Linear(32, 8)
    graph, found, expected = narrowed(lambda x: second(first(x).view(2, 32)), torch.randn(4, 16))
    assert in_bf16(graph, "aten.view.default") == 1
    assert_near(found, expected)


def test_products_of_activations_attention_and_convolutions() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    mask = torch.randn(8, 8)
    graph, found, expected = narrowed(F.scaled_dot_product_attention, q, k, v, mask)
    assert in_bf16(graph, "aten.scaled_dot_product_attention.default") == 1
    assert_near(found, expected)
    graph, found, expected = narrowed(F.scaled_dot_product_attention, q, k, v, mask > 0)
    assert in_bf16(graph, "aten.scaled_dot_product_attention.default") == 1
    assert_near(found, expected)
    graph, found, expected = narrowed(lambda a, b: (a @ b.mT).softmax(-1) @ b, q, k)
    assert in_bf16(graph, "aten.matmul.default") == 2
    assert in_bf16(graph, "aten.softmax.int") == 0
    assert_near(found, expected)
    conv = nn.Conv2d(4, 8, 3, padding=1)
    graph, found, expected = narrowed(conv, torch.randn(1, 4, 6, 6))
    assert in_bf16(graph, "aten.conv2d.default") == 1
    assert_near(found, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_left_alone(dtype: torch.dtype) -> None:
    layer = nn.Linear(16, 16).to(dtype)
    graph, found, expected = narrowed(layer, torch.randn(4, 16).to(dtype))
    assert ops(graph)[TO] == 0
    assert torch.equal(found[0], expected[0])


def test_what_does_not_pay_and_what_is_static_stays() -> None:
    layer = nn.Linear(16, 16)
    graph, found, expected = narrowed(layer, torch.randn(4, 16), pays=lambda node: False)
    assert ops(graph)[TO] == 0
    assert torch.equal(found[0], expected[0])
    graph, found, expected = narrowed(lambda x: x + layer(layer.weight).sum(), torch.randn(4, 16))
    assert ops(graph)[TO] == 0
    # A weight that comes with each call would have to be cast with each call.
    graph, found, expected = narrowed(F.linear, torch.randn(4, 16), torch.randn(8, 16))
    assert in_bf16(graph, LINEAR) == 0


def test_nan_and_infinity_come_through() -> None:
    x = torch.randn(4, 16)
    x[0, 0], x[1, 1], x[2, 2] = float("nan"), float("inf"), float("-inf")
    layer = nn.Linear(16, 16)
    with torch.no_grad():
        layer.weight.abs_()
    _, (found,), (expected,) = narrowed(layer, x)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())
    assert torch.equal(found[1:3].sign(), expected[1:3].sign())


def test_a_weight_that_the_program_writes_is_not_taken_for_static() -> None:
    layer = nn.Linear(16, 16, bias=False)

    def step(x: Tensor) -> Tensor:
        y = layer(x)
        layer.weight.mul_(2)
        return y + layer(x)

    with torch.no_grad():
        before = layer.weight.clone()
        captured = capture(step, (torch.ones(2, 16),))
        layer.weight.copy_(before)
        assert captured.graph is not None
        graph = captured.graph.clone()
        run_passes(graph, (functionalize, spell_linear, lower_precision, cse, dce), PassContext(captured.state.lookup))
        assert in_bf16(graph, LINEAR) == 0
