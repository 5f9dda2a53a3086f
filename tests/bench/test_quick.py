"""`smelt bench --quick` ends within a minute, says so before, and an earlier run is shown without measuring."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from smelt.bench import suite as suite_
from smelt.bench.rows import Row, read, write
from smelt.bench.suite import Suite, Watch, run
from smelt.cli import app
from smelt.cli import bench as command
from smelt.diag.console import console

ROOT = Path(__file__).parents[2]


class _Made:
    """A model's run that takes `took_s` on a clock of its own."""

    now, took_s = 0.0, 20.0

    def __init__(self, suite: Suite, model: Any, *rest: Any) -> None:
        self.suite, self.model = suite, model

    def rows(self) -> list[Row]:
        _Made.now += min(_Made.took_s, 2 * self.suite.prepare_budget_s + 1)
        return [Row(self.model.name, "smelt")]


def test_no_model_is_begun_that_may_not_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_, "_ModelRun", _Made)
    monkeypatch.setattr(suite_.time, "monotonic", lambda: _Made.now)
    models = command.MODELS[:6]
    left: list[str] = []
    for limit in (60.0, 30.0):
        _Made.now = 0.0
        left.clear()
        done = list(run(Suite(models=models, systems=(), limit_s=limit), Watch(left_out=left.append)))
        assert done and left and len(done) + len(left) == len(models) and _Made.now <= limit


def test_quick_is_a_few_models_and_says_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Suite] = []

    def noted(suite: Suite, watch: Watch) -> Any:
        found.append(suite)
        return iter(())

    monkeypatch.setattr(command, "run", noted)
    done = CliRunner().invoke(app, ["bench", "--quick"])
    (suite,) = found
    assert suite.limit_s == 60.0 and {m.name for m in suite.models} == set(command._QUICK_MODELS)
    assert "about " in done.stderr and "5 models, 4 systems" in done.stderr
    CliRunner().invoke(app, ["bench", "--quick", "--models", "bert"])
    assert [m.name for m in found[1].models] == ["bert"] and found[1].limit_s == 60.0
    done = CliRunner().invoke(app, ["bench"])
    assert "minutes on a quiet machine: 16 models" in done.stderr and found[2].limit_s is None


def test_all_missing_packages_are_named_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run", lambda suite, watch: iter(()))
    monkeypatch.setattr("smelt.diag.packages.importlib.util.find_spec", lambda name: None)
    said = CliRunner().invoke(app, ["bench"]).stderr
    assert "openvino" in said and "transformers" in said and '(pip install "smelt-compiler[bench]")' in said


def test_an_earlier_run_is_shown_and_drawn(tmp_path: Path) -> None:
    rows = [
        Row("lerp200", name, median_ms=1.0, ratio_to_eager=ratio) for name, ratio in (("eager", 1.0), ("smelt", 4.0))
    ]
    rows.append(Row("lerp200", "smelt", dtype="bf16", ratio_to_eager=3.0))
    write(rows, tmp_path / "rows.json")
    done = CliRunner().invoke(app, ["bench", "--from", str(tmp_path / "rows.json"), "--plot", str(tmp_path / "p.png")])
    assert done.exit_code == 0 and "4.00" in done.stdout and "3.00" not in done.stdout
    assert (tmp_path / "p.png").stat().st_size > 1000
    assert CliRunner().invoke(app, ["bench", "--from", str(tmp_path / "no.json")]).exit_code == 2


def test_there_is_one_picture_for_each_machine() -> None:
    results = ROOT / "bench" / "results"
    pictures = sorted(results.glob("*.png"))
    machines = {read(picture.with_suffix(".json"))[0].settings["machine"]["cpu"] for picture in pictures}
    assert len(machines) == len(pictures) == 3
    assert (ROOT / "README.md").read_text().count("bench/results/zen5.png") == 1


def test_columns_that_do_not_fit_are_named() -> None:
    rows = [row for row in read(ROOT / "bench" / "results" / "zen5.json") if row.error is None][:20]
    for row in rows:
        row.cold_s = row.warm_start_s = row.peak_mb = row.one_thread_ms = 123.4
    for width in (80, 100, 160):
        out = io.StringIO()
        console(out, width=width).print(command.report.table(rows, width))
        shown = out.getvalue()
        assert "median" in shown and "×" in shown and max(map(len, shown.splitlines())) <= width
        assert "…" not in shown and ("no room for" in " ".join(shown.split())) == (width < 160)
