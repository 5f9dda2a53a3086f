"""Passes from the user's side: skipped, stopped, dumped, timed, bisected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import smelt
from smelt.compiler import pipeline
from smelt.ir import Graph, parse
from smelt.passes.base import Pass, PassContext
from smelt.rewrite import Rewriter


def program(**options: object) -> tuple[smelt.Program, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    x = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        return smelt.trace(model, (x,), options={"measure": False, **options}), x


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.walk()]


def test_a_skipped_pass_does_not_run() -> None:
    p, x = program()
    assert "aten.batch_norm.default" not in ops(p.graph_for(x))
    p, x = program(skip=["fold-batch-norm"])
    assert "aten.batch_norm.default" in ops(p.graph_for(x))
    with torch.no_grad():
        torch.testing.assert_close(p(x), program()[0](x))


def test_stopping_early_and_timing() -> None:
    p, x = program(stop_after=2)
    p.graph_for(x)
    names = [row["pass"] for row in smelt.explain(p).passes]
    assert names == ["inline", "functionalize", *[one.name for one in pipeline.OPTIMIZED[:2]]]
    assert all(row["ms"] >= 0 for row in smelt.explain(p).passes)


@pytest.mark.parametrize("option", ["skip", "enable"])
def test_an_unknown_pass_is_refused_with_the_known_ones(option: str) -> None:
    with pytest.raises(smelt.SmeltError, match="no pass 'fold-batchnorm'") as error:
        program(**{option: ["fold-batchnorm"]})
    assert error.value.code == "S0301" and "fold-batch-norm" in str(error.value)


def test_dumps_parse_back(tmp_path: Path) -> None:
    p, x = program(dump=str(tmp_path))
    p.graph_for(x)
    dumped = sorted(tmp_path.rglob("*.txt"))
    assert len(dumped) == len(pipeline.FUNCTIONAL) + 1 + len(pipeline.chosen_passes(smelt.Options())) + 1
    for file in dumped:
        parse(file.read_text())
    assert parse(dumped[-1].read_text()) is not None


def test_bisect_finds_the_wrong_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    p, x = program()
    assert p.bisect(x) is None

    def swap_relu(graph: Graph, context: PassContext) -> bool:
        rewriter = Rewriter(graph, context.listeners)
        for node in graph.walk():
            if node.op == "aten.relu.default":
                with rewriter.builder.at(node):
                    wrong = rewriter.builder.add("aten.sigmoid.default", node.args, [node.result.type])
                rewriter.replace_node(node, [wrong.result])
        return True

    wrong = Pass("swap-relu", "relu ==> sigmoid", swap_relu)
    monkeypatch.setattr(pipeline, "OPTIMIZED", (*pipeline.OPTIMIZED[:4], wrong, *pipeline.OPTIMIZED[4:]))
    culprit = p.bisect(x)
    assert culprit is not None and culprit.name == "swap-relu" and culprit.number == 5


def test_a_pass_that_breaks_the_graph_is_named_and_eager_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_everything(graph: Graph, context: PassContext) -> bool:
        raise RuntimeError("lost")

    broken = replace(pipeline.OPTIMIZED[0], name="lose", run=lose_everything)
    monkeypatch.setattr(pipeline, "OPTIMIZED", (broken,))
    model, x = nn.Linear(4, 4).eval(), torch.ones(2, 4)
    compiled = smelt.compile(model, options={"measure": False})
    with torch.no_grad():
        with pytest.warns(smelt.SmeltWarning, match="lose"):
            assert torch.equal(compiled(x), model(x))
        assert torch.equal(compiled(x), model(x))
        strict = smelt.compile(model, options={"measure": False, "strict": True})
        with pytest.raises(smelt.InternalError, match="pass lose failed") as error:
            strict(x)
    assert error.value.code == "S0901"
