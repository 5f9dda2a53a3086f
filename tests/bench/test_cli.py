"""`smelt bench` end to end on the smallest programs, and its ways to say no."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from smelt.bench.models import MODELS
from smelt.bench.systems import systems
from smelt.cli import app

REQUIRED = {
    "model", "system", "median_ms", "cold_s", "warm_start_s", "peak_mb", "max_abs_err", "ratio_to_eager", "settings",
}  # fmt: skip


def smelt(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


def test_a_quick_run_writes_rows_and_plot(tmp_path: Path) -> None:
    rows_file, plot_file = tmp_path / "rows.json", tmp_path / "sub" / "plot.png"
    result = smelt(
        "bench", "--quick", "--models", "lerp200,lstm", "--peers", "jit", "--threads", "1",
        "--json", str(rows_file), "--plot", str(plot_file),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads(rows_file.read_text())
    by_key = {(r["model"], r["system"]): r for r in rows}
    assert set(by_key) == {
        ("lstm", "eager"), ("lstm", "jit"), ("lstm", "gemm-library"), ("lstm", "fma-floor"),
        ("lerp200", "eager"), ("lerp200", "jit"), ("lerp200", "gemm-library"), ("lerp200", "fma-floor"),
        ("lerp200", "copy-floor"),
    }  # fmt: skip
    for row in rows:
        assert row.keys() >= REQUIRED
        assert row["settings"]["threads"] == 1
        assert row["settings"]["dtype"] == "f32"
        assert "cpu" in row["settings"]["machine"]
    jit = by_key["lstm", "jit"]
    assert jit["median_ms"] > 0
    assert jit["ratio_to_eager"] > 0
    assert jit["settings"]["frozen"] is True
    assert jit["settings"]["timing"]["order"] == "interleaved"
    assert by_key["lstm", "eager"]["max_abs_err"] == 0
    assert by_key["lstm", "eager"]["rms_ratio"] == 1
    assert by_key["lstm", "fma-floor"]["settings"]["peak_gflops"] > 0
    assert "no matrix product" in by_key["lerp200", "fma-floor"]["error"]
    assert by_key["lerp200", "copy-floor"]["settings"]["bytes_moved"] == 4 * 200 * 4
    assert plot_file.read_bytes().startswith(b"\x89PNG")
    assert "lstm" in result.output


def test_update_keeps_the_rows_that_are_not_measured_now(tmp_path: Path) -> None:
    rows_file = tmp_path / "rows.json"
    rows_file.write_text(json.dumps([{"model": "bert", "system": "eager", "dtype": "f32", "median_ms": 7.0}]))
    args = ("bench", "--quick", "--models", "lerp200", "--peers", "eager", "--json", str(rows_file))
    assert smelt(*args, "--update").exit_code == 0
    rows = json.loads(rows_file.read_text())
    assert [(r["model"], r["median_ms"]) for r in rows[:1]] == [("bert", 7.0)]
    assert ("lerp200", "eager") in [(r["model"], r["system"]) for r in rows]


@pytest.mark.parametrize(
    ("option", "value", "known"),
    [
        ("--models", "lerp200,nope", [m.name for m in MODELS]),
        ("--peers", "nope", [s.name for s in systems()]),
        ("--skip-cold", "nope", [s.name for s in systems()]),
        ("--dtype", "f16", ["f32", "bf16", "mixed"]),
    ],
)
def test_an_unknown_name_lists_the_known_ones(option: str, value: str, known: list[str], tmp_path: Path) -> None:
    rows_file = tmp_path / "rows.json"
    result = smelt("bench", option, value, "--json", str(rows_file))
    assert result.exit_code == 2
    text = " ".join(result.output.replace("│", " ").split())
    assert "unknown" in text
    assert option in text
    for name in known:
        assert name in text
    assert not rows_file.exists()


def test_an_unreadable_json_to_update_is_a_usage_error(tmp_path: Path) -> None:
    rows_file = tmp_path / "rows.json"
    rows_file.write_text('{"not": "a list"}')
    result = smelt("bench", "--models", "lerp200", "--json", str(rows_file), "--update")
    assert result.exit_code == 2
    assert rows_file.read_text() == '{"not": "a list"}'


def test_help_teaches() -> None:
    text = smelt("bench", "--help").output
    for word in ("Examples", "gemm-library", "fma-floor", "lerp200", "openvino"):
        assert word in text
