"""Two programs compared: operators, kernels, memory, and the first value that differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from smelt.cli import app
from smelt.inspect.compare import first_difference
from smelt.inspect.numeric import check_passes
from smelt.ir import Graph, parse
from smelt.passes.base import Pass, PassContext
from smelt.passes.cse import cse
from smelt.passes.dce import dce

PROGRAMS = """
import torch
from torch import nn

class Folds(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.conv, self.norm, self.scale = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), scale
    def forward(self, x):
        return torch.relu(self.norm(self.conv(x))) * self.scale

def _made(scale):
    torch.manual_seed(0)
    return Folds(scale).eval(), (torch.randn(2, 3, 8, 8),)

def one():
    return _made(1.0)

def two():
    return _made(2.0)
"""


def compared(tmp_path: Path, *more: str) -> dict[str, object]:
    path = tmp_path / "folds.py"
    path.write_text(PROGRAMS)
    arguments = [part if not part.endswith("()") else f"{path}:{part[:-2]}" for part in more]
    result = CliRunner().invoke(app, ["diff", *arguments, "--json", "--no-time"])
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def told(tmp_path: Path, name: str) -> str:
    result = CliRunner().invoke(app, ["diff", f"{tmp_path}/folds.py:{name[:-2]}", "--no-time"])
    assert result.exit_code == 0, result.output
    return result.output


def test_an_option_changes_graph_and_kernels_and_no_result(tmp_path: Path) -> None:
    found = compared(tmp_path, "one()", "--options", '{"skip": ["fold-batch-norm"]}')
    assert "aten.batch_norm.default" in found["operators"] or "aten.native_batch_norm" in str(found["operators"])
    assert found["results"] == "" and found["against eager"] == "" and found["graph"]
    assert found["passes"] == ["every pass keeps every value"] * 2
    # Folding rounds; without it no pass moves any value.
    (folded, *_), without = found["numeric"]
    assert folded["name"] == "fold-batch-norm" and 0 < folded["largest"] < 1e-5 and folded["first"] == ""
    assert "fold-batch-norm" not in [one["name"] for one in without]
    assert "rounds by" in told(tmp_path, "one()")


def wrong_pass(graph: Graph, context: PassContext) -> bool:
    """Doubles the second operand of each addition."""
    found = [node for node in graph.walk() if node.op == "aten.add.Tensor"]
    for node in found:
        context.rewriter(graph).set_arguments(node, (node.args[0], 2))
    return bool(found)


def test_the_first_value_that_a_pass_makes_wrong_is_named_with_its_node() -> None:
    graph = parse(
        """graph f(%x: f32[2]) -> f32[2] {
          %0: f32[2] = aten.sin.default(%x)
          %1: f32[2] = aten.add.Tensor(%0, 1)
          %2: f32[2] = aten.mul.Tensor(%1, 3)
          return %2
        }"""
    )

    def broken(graph: Graph, context: PassContext) -> bool:
        raise ValueError("no such thing")

    passes = [cse, Pass("wrong", "", wrong_pass), dce]
    (found,) = check_passes(graph, passes, [torch.zeros(2)])
    assert (found.name, found.first) == ("wrong", "%1[0]: 1.0 and 2.0; 2 of 2 values differ (aten.add.Tensor)")
    assert found.largest == 1.0
    (found,) = check_passes(graph, [Pass("broken", "", broken), dce], [torch.zeros(2)])
    assert (found.name, found.first) == ("broken", "ValueError: no such thing")
    assert check_passes(graph, [cse, dce], [torch.zeros(2)]) == []


def test_of_two_programs_the_first_value_that_differs_is_named(tmp_path: Path) -> None:
    found = compared(tmp_path, "one()", "two()")
    assert str(found["results"]).startswith("result[0, ") and "values differ" in str(found["results"])
    assert compared(tmp_path, "one()", "one()")["kernels"] == [[], []]


def test_wrong_options_are_told(tmp_path: Path) -> None:
    (tmp_path / "folds.py").write_text(PROGRAMS)
    assert CliRunner().invoke(app, ["diff", f"{tmp_path}/folds.py:one", "--options", "{"]).exit_code == 2


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (torch.ones(3), torch.ones(3) + 1e-6, ""),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), ""),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "result[1]: 2 and 3; 1 of 2 values differ"),
        (torch.ones(2), torch.ones(3), "result: torch.float32 [2] and torch.float32 [3]"),
        ({"a": [torch.ones(1)]}, {"a": [torch.zeros(1)]}, "result['a'][0][0]: 1.0 and 0.0; 1 of 1 values differ"),
        ((1, 2), (1,), "result: 2 and 1 items"),
        (torch.tensor(1.0), torch.tensor(2.0), "result: 1.0 and 2.0; 1 of 1 values differ"),
        (torch.empty(0), torch.empty(0), ""),
        (float("nan"), float("nan"), ""),
    ],
)
def test_first_difference(first: object, second: object, told: str) -> None:
    assert first_difference(first, second) == told
