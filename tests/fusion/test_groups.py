"""Groups of nodes: none waits for itself, every value that is needed is stored, reads stay before writes."""

from __future__ import annotations

import pytest
import torch

from smelt.codegen.fusion.groups import Facts
from smelt.codegen.fusion.partition import Partition
from smelt.codegen.fusion.schedule import schedule
from smelt.ir import parse
from smelt.ops.evaluate import evaluate
from tests.fusion.harness import run_partition


def check(text: str, *inputs: torch.Tensor) -> Partition:
    """The partition of a graph whose groups, run as nests, give what the evaluator gives."""
    graph = parse(text)
    parts, found = run_partition(graph, inputs)
    for ours, expected in zip(found, evaluate(graph, list(inputs)), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    return parts


def grouped(parts: Partition) -> list[list[str]]:
    """The operators of each group."""
    return [[node.op.split(".")[1] for node in group.nodes] for group in parts.groups]


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_a_group_does_not_wait_for_itself() -> None:
    parts = check(
        """\
graph f(%x: f32[8, 8]) -> f32[8, 8] {
  %0: f32[8, 8] = aten.exp.default(%x)
  %1: f32[8, 8] = aten.mm.default(%0, %0)
  %2: f32[8, 8] = aten.add.Tensor(%0, %1)
  return %2
}""",
        normal(8, 8),
    )
    assert grouped(parts) == [["exp"], ["add"]]


def test_a_group_does_not_wait_for_itself_through_another_group() -> None:
    """%4 could take in %0, but %0 is needed by the product that %2's group ends in front of."""
    check(
        """\
graph f(%x: f32[8, 8]) -> f32[8, 8], f32[8, 8] {
  %0: f32[8, 8] = aten.exp.default(%x)
  %1: f32[8, 8] = aten.neg.default(%0)
  %2: f32[8, 8] = aten.mm.default(%1, %x)
  %3: f32[8, 8] = aten.mul.Tensor(%2, %0)
  %4: f32[8, 8] = aten.add.Tensor(%3, %1)
  %5: f32[8, 8] = aten.mm.default(%4, %3)
  %6: f32[8, 8] = aten.sub.Tensor(%5, %0)
  return %6, %4
}""",
        normal(8, 8),
    )


@pytest.mark.parametrize("function", ["neg", "atan"])
@pytest.mark.parametrize("shared", ["", "%4"])
def test_what_is_computed_again_finds_its_operands(function: str, shared: str) -> None:
    """%1 is cheap and computed in both sums; %0 may be stored for both, whatever else needs it."""
    parts = check(
        f"""\
graph f(%x: f32[100, 1000]) -> f32[1000], f32[100]{", f32[100, 1000]" if shared else ""} {{
  %0: f32[100, 1000] = aten.{function}.default(%x)
  %1: f32[100, 1000] = aten.neg.default(%0)
  %2: f32[1000] = aten.sum.dim_IntList(%1, [0])
  %3: f32[100] = aten.sum.dim_IntList(%1, [1])
  {"%4: f32[100, 1000] = aten.abs.default(%0)" if shared else ""}
  return %2, %3{", " + shared if shared else ""}
}}""",
        normal(100, 1000),
    )
    assert sum("neg" in ops for ops in grouped(parts)) >= 2


def test_a_read_stays_before_the_write() -> None:
    text = """\
graph f(%x: f32[64]) -> f32[64], f32[64] {
  %0: f32[64] = aten.exp.default(%x)
  %1: f32[64] = aten.mul.Tensor(%x, 2.0)
  %2: f32[64] = write(%x, %1)
  %3: f32[64] = aten.add.Tensor(%0, %2)
  return %2, %3
}"""
    graph = parse(text)
    exp, mul, write, add = graph.body
    order = schedule(graph, Facts.of(graph), [[exp], [mul], [add]])
    assert order.index(exp) < order.index(write) < order.index(add) and order.index(mul) < order.index(write)
    # Nothing that reads the input may be one piece with what comes after the write.
    facts = Facts.of(graph)
    assert facts.segment[exp] == facts.segment[mul] != facts.segment[add]


def test_a_later_unit_waits_for_the_write_and_the_write_for_earlier_ones() -> None:
    """A unit stands where its last node does, or earlier: never beyond a write."""
    graph = parse("""\
graph f(%x: f32[8], %y: f32[8]) -> f32[8], f32[8], f32[8] {
  %0: f32[8] = aten.neg.default(%y)
  %1: f32[8] = write(%y, %0)
  %2: f32[8] = aten.exp.default(%x)
  %3: f32[8] = aten.sin.default(%2)
  %4: f32[8] = write(%x, %0)
  %5: f32[8] = aten.cos.default(%4)
  return %3, %5, %4
}""")
    nodes = list(graph.body)
    order = schedule(graph, Facts.of(graph), [nodes[2:4], [nodes[5]]])
    place = {node: i for i, node in enumerate(order)}
    assert place[nodes[1]] < place[nodes[2]] < place[nodes[3]] < place[nodes[4]] < place[nodes[5]]


def test_what_needs_nothing_does_not_run_ahead_while_an_early_unit_with_a_late_node_waits() -> None:
    """As what a backward half computes again of a long chain, of which the first gradient needs the end."""
    graph = parse("""\
graph f(%x: f32[8], %y: f32[8]) -> f32[8], f32[8] {
  %0: f32[8] = aten.exp.default(%x)
  %1: f32[8] = aten.sin.default(%0)
  %2: f32[8] = aten.cos.default(%1)
  %3: f32[8] = aten.neg.default(%y)
  %4: f32[8] = aten.mul.Tensor(%2, %3)
  %5: f32[8] = aten.sqrt.default(%0)
  %6: f32[8] = aten.mul.Tensor(%4, %5)
  return %6, %4
}""")
    exp, sin, cos, neg, mul, sqrt, last = graph.body
    assert schedule(graph, Facts.of(graph), [[exp, sqrt]]) == [exp, sqrt, sin, cos, neg, mul, last]


def test_a_value_is_computed_again_where_another_kernel_stands_between_those_that_need_it() -> None:
    """Each group has it for itself, so neither waits for the other one."""
    graph = parse("""\
graph f(%x: f32[64, 64], %m: f32[64], %w: f32[64, 64]) -> f32[64, 64] {
  %0: f32[64, 64] = aten.sub.Tensor(%x, %m)
  %1: f32[64, 64] = aten.relu.default(%0)
  %2: f32[64, 64] = aten.mm.default(%1, %w)
  %3: f32[64, 64] = aten.mul.Tensor(%0, %2)
  return %3
}""")
    parts, (found,) = run_partition(graph, tensors := [torch.randn(64, 64), torch.randn(64), torch.randn(64, 64)])
    ops = [[node.op for node in group.nodes] for group in parts.groups]
    assert ops == [["aten.sub.Tensor", "aten.relu.default"], ["aten.sub.Tensor", "aten.mul.Tensor"]]
    assert torch.equal(found, evaluate(graph, tensors)[0])
