"""A report as text: what a person asks first stands first, the usual is counted, and what is shortened stays true."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.inspect.report import Report
from smelt.inspect.shown import runs_of_names
from smelt.inspect.text import cell, short_places, size


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.settings = nn.Linear(8, 8), nn.LayerNorm(8), {"factor": 2}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """f32[n, 8] -> f32[n, 8]."""
        return self.norm(self.layer(x) * self.settings["factor"])


@pytest.fixture(scope="module")
def report() -> Report:
    model = Scaled().eval()
    compiled = smelt.compile(model)
    with torch.no_grad():
        compiled(torch.randn(3, 8))
        model.settings["factor"] = 3
        compiled(torch.randn(3, 8))
    return smelt.explain(compiled)


def headings(text: str, *names: str) -> list[str]:
    return sorted(names, key=lambda name: text.index(f"\n{name}"))


def test_what_became_of_it_stands_above_what_it_is_made_of(report: Report) -> None:
    order = ["Graphs", "Breaks", "Recompiles", "Fallbacks", "Kernels", "Guards", "Passes"]
    assert headings(str(report), *reversed(order)) == order


def test_usual_guards_are_counted_and_can_be_seen(report: Report) -> None:
    text, whole = str(report), report.to_text(everything=True)
    assert "settings" in text and "settings" in whole
    assert "_forward_hooks" not in text and "_forward_hooks" in whole
    shown = [row for row in report.guards if "settings" in row["guard"] or row["kind"] in ("shape", "dtype")]
    (count,) = [line for line in text.splitlines() if "guards of the usual kind" in line]
    assert 0 < int(count.split()[1].replace(",", "")) <= len(report.guards) - len(shown)
    assert "everything=True" in text and "everything=True" not in whole
    assert text.count("\n") < 130 < whole.count("\n")


def test_a_small_network_is_explained_on_a_page() -> None:
    def block(before: int, after: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))

    model = nn.Sequential(block(3, 8), block(8, 16), block(16, 8), nn.Flatten(), nn.Linear(128, 10)).eval()
    compiled = smelt.compile(model, options={"measure": False})
    with torch.no_grad():
        compiled(torch.randn(2, 3, 32, 32))
    report = smelt.explain(compiled)
    text, whole = str(report), report.to_text(everything=True)
    assert text.count("\n") < 90 and whole.count("\n") > 300
    assert str(smelt.explain(compiled, everything=True)) == whole
    (pools,) = [line.split() for line in text.splitlines() if "max_pool2d" in line]
    assert pools[:3] == ["0", "max_pool2d", "3"]
    (items,) = [line for line in text.splitlines() if " item " in line]
    assert "Sequential[0][0]" in items
    assert any("changed by" in line for line in text.splitlines())


def test_entries_have_one_number_everywhere(report: Report) -> None:
    compiled = smelt.compile(lambda x, n: x + len("a" * n), options={"measure": False}, dynamic=False)
    for n in (1, 2, 3, 1, 2):
        compiled(torch.ones(2), n)
    stats = compiled.stats()
    hits = {entry["entry"]: entry["hits"] for entry in stats.to_dict()["entries"]}
    assert list(hits) == [0, 1, 2] and list(hits.values()) == [1, 1, 0]
    lines = [line for line in str(stats).splitlines() if line.startswith("entry")]
    assert [line.split(" calls")[0] for line in lines] == ["entry 0: 1", "entry 1: 1", "entry 2: 0"]
    # The recorded call is one of the entry's there.
    assert {row["entry"]: row["calls"] - 1 for row in smelt.explain(compiled).graphs} == hits


def test_what_runs_in_python_is_told_beside_what_is_native() -> None:
    compiled = smelt.compile(lambda x: x * random.random(), options={"measure": False})
    compiled(torch.ones(2)), compiled(torch.ones(2))
    (row,) = smelt.explain(compiled).graphs
    assert "python 1" in row["nodes by how they run"] and row["runs"] == "natively, but for 1 node in Python"


def test_guards_of_many_entries_are_one_row(report: Report) -> None:
    rows = [line for line in str(report).splitlines() if " dtype " in line]
    assert len(rows) == 1 and rows[0].split()[:2] == ["0,", "1"]


def test_headings_are_whole_words_with_many_entries() -> None:
    rows = [
        {"entry": i, "name": "f", "calls": 1, "inputs": "f32[2]", "nodes captured": 4, "nodes optimized": 3,
         "nodes by how they run": "kernel 1", "runs": "natively", "why": "shape of args[0] was (2,), now (3,)"}
        for i in range(8)
    ]  # fmt: skip
    text = str(Report("f", graphs=rows))
    for heading in ("entry", "nodes captured", "nodes optimized", "runs", "why"):
        assert any(line.strip().startswith(heading) for line in text.splitlines()), heading
    assert sum(line.startswith(" entry") for line in text.splitlines()) == 2


def test_equal_sizes_are_one_row_that_names_all() -> None:
    def total(tensors: list[torch.Tensor]) -> Any:
        return sum(tensors[1:], tensors[0])

    compiled = smelt.compile(total, dynamic=True)
    tensors = [torch.randn(3) for _ in range(12)]
    torch.testing.assert_close(compiled(tensors), total(tensors))
    text = str(smelt.explain(compiled))
    assert "N, N2 ... N12 (11) are equal" in text and "each of N, N2 ... N12 (11) >= 1" in text
    assert "args[0][0] ... args[0][11] (12)" in text


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ("a[0], a[1], a[2], a[3]", "a[0] ... a[3] (4)"),
        ("a[0], a[1], a[2]", "a[0], a[1], a[2]"),
        ("a[0], a[1], a[3], a[4], a[5], a[6]", "a[0], a[1], a[3] ... a[6] (4)"),
        ("a[0].b[1], a[1].b[1], a[2].b[1], a[3].b[1], c", "a[0].b[1] ... a[3].b[1] (4), c"),
        ("a[0][0], a[1][1], a[2][2], a[3][3]", "a[0][0], a[1][1], a[2][2], a[3][3]"),
        ("B, B2, B3, B4, B5", "B, B2 ... B5 (4)"),
        ("a[3], a[2], a[1], a[0]", "a[3], a[2], a[1], a[0]"),
    ],
)
def test_runs_of_names_hold_these_names_only(names: str, shown: str) -> None:
    assert runs_of_names(names) == shown


def test_bytes_have_units_and_times_have_names(report: Report) -> None:
    assert [size(n) for n in (0, 768, 1536, 27 << 20, 3 << 30)] == ["0 B", "768 B", "1.5 KB", "27.0 MB", "3.00 GB"]
    assert cell("us", {"own": None, "mkl": None}) == "not measured: own, mkl"
    assert cell("us", {"own": 1.5, "mkl": None}) == "own 1.500; not measured: mkl"
    for text in (str(report), report.to_text(everything=True)):
        assert "e-04" not in text and '{"' not in text and "null" not in text


def test_places_of_a_function_share_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    there = f"{tmp_path}/model.py:3 in f, {tmp_path}/model.py:7 in f, /else/where.py:2 in g"
    assert short_places(there) == "model.py:3, 7 in f; /else/where.py:2 in g"


def test_places_that_entries_share_are_one_row() -> None:
    breaks = [{"entry": i, "why": "it prints"} for i in range(3)]
    rows = [line.split() for line in str(Report("f", breaks=breaks)).splitlines() if "it prints" in line]
    assert rows == [["0-2", "it", "prints"]]


def test_the_time_of_stagings_that_came_to_nothing_is_told() -> None:
    def program(x: torch.Tensor) -> Any:
        return [x] if x.sum() > 0 else None

    compiled = smelt.compile(program)
    compiled(torch.ones(2))
    (row,) = compiled.stats().rows
    assert row.entry is not None and row.entry.stages_ms["staging that came to no graph"] > 0
