"""What a split program says of itself, and what `fullgraph=True` says instead."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import smelt
from smelt.diag import CaptureError
from tests.splitting.log import Log
from tests.splitting.test_effects import after, before
from tests.splitting.twins import Twin, compare, inputs, splits_of


def make() -> Twin:
    log = Log()

    def program(x: torch.Tensor) -> torch.Tensor:
        y = before(x) * 2
        log.append(y.sum().item())
        return after(y) + 1

    return Twin(program, lambda: list(log))


def line_of(text: str) -> int:
    with open(__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


def test_explain() -> None:
    compiled = compare(make, inputs(4, 5), calls=20)
    found = smelt.explain(compiled).to_dict()
    line = line_of("log.append(y.sum()")
    breaks = [row for row in found["breaks"] if row.get("line")]
    assert [row["line"] for row in breaks] == ["log.append(y.sum().item())"]
    assert f"test_reports.py:{line} in " in breaks[0]["where"] and "it changes log" in breaks[0]["why"]
    summary = next(row["why"] for row in found["breaks"] if "partition" in row["why"])
    assert summary.startswith("2 partitions of 1 functions run compiled") and "% of the time" in summary
    assert summary.endswith("1 lines run in Python")
    assert [row["name"].rpartition(", ")[2] for row in found["graphs"]] == [f"line {line - 1}", f"line {line + 1}"]
    assert str(smelt.explain(compiled))


def test_the_warning_names_the_line() -> None:
    compiled = smelt.compile(make().call)
    x = torch.randn(4, 5)
    compiled(x)
    with pytest.warns(smelt.SmeltWarning, match=r"is compiled as partitions.*log at .*test_reports.py:\d+") as caught:
        compiled(x)
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            compiled(x)


@pytest.mark.parametrize("options", [{"fullgraph": True}, {"options": {"strict": True}}])
def test_fullgraph_names_the_line(options: Any) -> None:
    compiled = smelt.compile(make().call, **options)
    with pytest.raises(CaptureError) as caught:
        compiled(torch.randn(4, 5))
    error = caught.value
    assert error.code == "S0302" and error.where is not None
    assert (error.where.file, error.where.line) == (__file__, line_of("log.append(y.sum()"))
    assert "it changes log" in error.what and error.why and "leave out" in error.fix


def test_fullgraph_with_the_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    stops: list[int] = []
    monkeypatch.setattr("sys.breakpointhook", lambda: stops.append(1))

    def program(x: torch.Tensor) -> torch.Tensor:
        y = before(x)
        breakpoint()
        return after(y)

    with pytest.raises(CaptureError, match="stops in the debugger") as caught:
        smelt.compile(program, fullgraph=True)(torch.randn(4, 5))
    assert caught.value.where is not None and caught.value.where.line == line_of("  breakpoint()")
    assert stops == [1]


def test_what_has_no_source_runs_as_it_is() -> None:
    def make_one() -> Twin:
        space: dict[str, Any] = {"before": before, "after": after, "log": Log()}
        exec("def program(x):\n    y = before(x)\n    log.append(1)\n    return after(y)\n", space)
        return Twin(space["program"], lambda: list(space["log"]))

    compiled = compare(make_one, inputs(4, 5))
    (reason,) = compiled.stats().fallbacks
    assert "log" in reason


def test_a_program_whose_splitting_fails_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr("smelt.compiler.split.splitting.Splits.start", fail)
    compiled = compare(make, inputs(4, 5))
    assert compiled.stats().fallbacks


def test_gradients_leave_it_to_autograd() -> None:
    layer = torch.nn.Linear(5, 5)
    log = Log()

    def program(x: torch.Tensor) -> torch.Tensor:
        y = before(layer(x))
        log.append(1)
        return after(y).sum()

    compiled = smelt.compile(program)
    x = torch.randn(4, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.no_grad():
            for _ in range(4):
                compiled(x)
        assert splits_of(compiled).running()
        for _ in range(2):
            layer.zero_grad()
            compiled(x).backward()
            found = layer.weight.grad
            layer.zero_grad()
            program(x).backward()
            assert found is not None and layer.weight.grad is not None
            torch.testing.assert_close(found, layer.weight.grad)
