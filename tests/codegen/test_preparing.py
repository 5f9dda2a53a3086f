"""What is rewritten before a graph is lowered: named, timed, dumped, bisected, and the graph that was passed stays."""

from __future__ import annotations

from pathlib import Path

import torch

import smelt
from smelt.codegen.lower.lowering import lower
from smelt.codegen.lower.preparing import PREPARED, prepared
from smelt.diag import Options
from smelt.passes.base import PassContext


def f(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    for i in range(int(n)):
        x = x * i + n.exp()
    return x, x[x > 0].sum()


def program() -> smelt.Program:
    with torch.no_grad():
        return smelt.trace(f, (torch.ones(3), torch.tensor(2.0)), check=False)


def test_each_is_named_timed_and_dumped(tmp_path: Path) -> None:
    unit = program().unit
    graph = unit.optimize()
    before = str(graph)
    found = lower(graph, unit.lookup, Options(measure=False, dump=str(tmp_path), verify=True), build=False)
    assert str(graph) == before
    names = [name.removeprefix("analyse: ") for name, _ in found.report.stages_ms if name.startswith("analyse: ")]
    assert names == [one.name for one in PREPARED]
    dumped = sorted(path.name.partition("-")[2] for path in (tmp_path / "prepare").iterdir())
    assert dumped == ["hoist-loops.txt", "pad-sizes.txt", "tell-choices.txt"]


def test_as_passes_they_come_to_the_same_graph() -> None:
    graph = program().unit.optimize()
    wanted = str(prepared(graph, Options()).graph)
    edited, context = graph.clone(), PassContext()
    changed = [one.name for one in PREPARED if one.as_pass(Options()).run(edited, context)]
    assert changed == ["pad-sizes", "hoist-loops", "tell-choices"]
    assert str(edited) == wanted != str(graph)
    assert edited.body.owner is edited


def test_they_are_bisected() -> None:
    assert program().bisect(torch.tensor([1.0, -1.0, 2.0]), torch.tensor(3.0)) is None
