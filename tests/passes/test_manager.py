"""The pass manager: order, skipping, dumps, errors that name the pass, and bisecting to a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from smelt.diag import InternalError, SmeltError
from smelt.ir import Graph, parse
from smelt.passes.base import Pass, PassContext
from smelt.passes.cse import cse
from smelt.passes.dce import dce
from smelt.passes.manager import bisect, run_passes

TEXT = """graph f(%x: f32[2]) -> f32[2] {
  %0: f32[2] = aten.sin.default(%x)
  %1: f32[2] = aten.sin.default(%x)
  %2: f32[2] = aten.sub.Tensor(%0, %1)
  %3: f32[2] = aten.exp.default(%2)
  %4: f32[2] = aten.cos.default(%x)
  return %3
}"""


def _swap_operands(graph: Graph, context: PassContext) -> bool:
    """A wrong pass: x - y is not y - x."""
    rewriter = context.rewriter(graph)
    for node in graph.body:
        if node.op == "aten.add.Tensor":
            rewriter.set_arguments(node, (node.args[0], 2))
    return rewriter.edits > 0


wrong = Pass("wrong", "%0 = add %x 1   ==>   %0 = add %x 2", _swap_operands)


def test_reports_and_order() -> None:
    graph = parse(TEXT)
    reports = run_passes(graph, [cse, dce])
    assert [(r.name, r.changed, r.nodes_before, r.nodes_after) for r in reports] == [
        ("cse", True, 5, 4),
        ("dce", True, 4, 3),
    ]
    assert all(r.seconds >= 0 for r in reports)


def test_skip_and_stop() -> None:
    graph = parse(TEXT)
    assert [r.name for r in run_passes(graph, [cse, dce], skip=["cse"])] == ["dce"]
    assert [r.name for r in run_passes(graph, [cse, dce], stop_after=1)] == ["cse"]
    with pytest.raises(SmeltError, match="no pass 'csee'"):
        run_passes(graph, [cse], skip=["csee"])


def test_dumps_parse_back(tmp_path: Path) -> None:
    graph = parse(TEXT)
    run_passes(graph, [cse, dce], dump=tmp_path)
    files = sorted(tmp_path.iterdir())
    assert [f.name for f in files] == ["f.00-captured.txt", "f.01-cse.txt", "f.02-dce.txt"]
    assert parse(files[0].read_text()) == parse(TEXT)
    assert parse(files[-1].read_text()) == graph


def test_a_pass_that_breaks_the_graph_is_named() -> None:
    def break_it(graph: Graph, context: PassContext) -> bool:
        first = next(iter(graph.body))
        graph.body.remove(first)
        return True

    with pytest.raises(InternalError, match=r"pass breaker failed on graph f") as caught:
        run_passes(parse(TEXT), [Pass("breaker", "", break_it)])
    assert caught.value.code == "S0901"
    with pytest.raises(InternalError, match=r"pass cse or breaker failed on graph f: .* is not defined") as caught:
        run_passes(parse(TEXT), [cse, Pass("breaker", "", break_it)], check=False)
    assert caught.value.code == "S0901" and "verify" in caught.value.fix


def test_bisect_finds_the_first_wrong_pass() -> None:
    graph = parse(
        """graph f(%x: f32[2]) -> f32[2] {
          %0: f32[2] = aten.add.Tensor(%x, 1)
          return %0
        }"""
    )
    before = str(graph)
    inputs = [torch.tensor([1.0, 2.0])]
    found = bisect(graph, [cse, dce, wrong, dce], inputs)
    assert found is not None and (found.name, found.number) == ("wrong", 3)
    assert bisect(graph, [cse, dce], inputs) is None
    assert str(graph) == before


def test_bisect_sees_written_inputs() -> None:
    def forget(graph: Graph, context: PassContext) -> bool:
        rewriter = context.rewriter(graph)
        for node in list(graph.body):
            if node.op == "write":
                rewriter.replace_all_uses(node.result, node.args[1])
                rewriter.erase(node)
        return True

    graph = parse(
        """graph f(%x: f32[2]) -> f32[2] {
          %0: f32[2] = aten.add.Tensor(%x, 1)
          %1: f32[2] = write(%x, %0)
          return %0
        }"""
    )
    found = bisect(graph, [Pass("forget", "", forget)], [torch.ones(2)])
    assert found is not None and found.difference.startswith("input 0")


def test_asking_for_a_value_is_remembered() -> None:
    weight = torch.ones(2)
    context = PassContext(lambda kind, path: weight)
    assert str(context.type("param", "w")) == "f32[2]" and not context.asked
    assert context.value("param", "w") is weight
    assert list(context.asked) == [("param", "w")]
