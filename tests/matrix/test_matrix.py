"""The matrix's own parts, and the notice where Smelt runs on what it is not made for."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import warnings
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import torch

import smelt
from smelt._torch import versions
from tests.matrix import stubs
from tests.matrix.environment import ROOT, CannotMake, Combination, interpreter
from tests.matrix.run import COMBINATIONS, REPORT, Count, Outcome, counted, write

DAY = date(2026, 1, 2)


@pytest.mark.parametrize(
    ("torch_version", "python", "said"),
    [
        ("2.11.0", (3, 11), 0), ("2.15.3+cpu", (3, 14), 0), ("2.14.0a0+git123", (3, 13), 0),
        ("2.10.1", (3, 11), 1), ("2.16.0.dev20261201", (3, 12), 1), ("3.0.0", (3, 15), 2), ("2.13.0", (3, 15), 1),
    ],
)  # fmt: skip
def test_what_is_outside_of_the_range_is_told(torch_version: str, python: tuple[int, int], said: int) -> None:
    assert len(versions.outside(torch_version, python)) == said


@pytest.mark.parametrize("door", ["compile", "trace", "script"])
def test_another_torch_is_noticed_once(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_noticed", False)
    monkeypatch.setattr(torch, "__version__", "2.99.0")

    def program(x: smelt.f32[2]):
        return x + 1

    def use() -> None:
        smelt.trace(program, (torch.ones(2),)) if door == "trace" else getattr(smelt, door)(program)

    with pytest.warns(smelt.SmeltWarning, match=r"torch 2\.99\.0 \(made for 2\.11 to 2\.15\)") as caught:
        use()
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use()


def test_the_range_is_the_declared_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (first, last), (python, _) = versions.TORCH, versions.PYTHON
    assert "torch>={}.{},<{}.{}".format(*first, *last) in project["dependencies"]
    assert project["requires-python"] == ">={}.{}".format(*python)
    for combination in COMBINATIONS:
        python_version = tuple(map(int, combination.python.split(".")))
        assert not versions.outside(combination.torch, python_version)  # type: ignore[arg-type]


def test_rows_that_did_not_run_stay(tmp_path: Path) -> None:
    report = tmp_path / "versions.md"

    def outcome(torch_version: str, passed: int, fallbacks: tuple[str, ...] = ()) -> Outcome:
        combination = Combination(torch_version, "3.11")
        smoke = Count(passed, 1, ("tests/a.py::test_b",))
        return Outcome(combination, torch_version, "3.11.7", True, fallbacks, smoke, None)

    write([outcome("2.9.0", 1), outcome("2.10.0", 2)], DAY, report)
    report.write_text(report.read_text() + "\n## More\n\n| torch |\n|---|\n| 2.9.0 to 2.10.0 |\n")
    write([outcome("2.10.1", 3, ("none of this", "nor that"))], DAY, report)
    table, behind = report.read_text().split("\n## More\n")
    assert behind == "\n| torch |\n|---|\n| 2.9.0 to 2.10.0 |\n"
    rows = [line for line in table.splitlines() if line.startswith("| 2")]
    assert [row.split(" | ")[0] for row in rows] == ["| 2.9.0", "| 2.10.1"]
    assert rows[1].endswith("| 3 passed, 1 failed | not run | yes | none of this; nor that |")
    part = replace(outcome("2.9.1", 5), folders=Count(7, 0), part=("tests/guards", "tests/staging"))
    assert "| 5 passed, 1 failed | 7 passed (guards, staging) |" in part.row(DAY)


def test_the_report_has_combinations_of_the_matrix_only() -> None:
    known = {(c.torch, c.python) for c in COMBINATIONS}
    rows = re.findall(r"^\| (\d[\d.]*) \| (\d+\.\d+)[\d.]* \|", REPORT.read_text(), re.MULTILINE)
    assert rows and {*rows} <= known


def test_counts_of_pytest() -> None:
    text = "FAILED tests/a.py::test_b[c] - X\nERROR tests/d.py::e\n= 2 failed, 10 passed, 1 error in 3.2s ="
    assert counted(text) == Count(10, 3, ("tests/a.py::test_b[c]", "tests/d.py::e"))
    with pytest.raises(ValueError):
        counted("no tests ran")


def test_an_interpreter_that_is_not_here() -> None:
    assert interpreter("3.99", {"3.99": "/there/python"}) == Path("/there/python")
    with pytest.raises(CannotMake, match=r"no Python 3\.99"):
        interpreter("3.99", {})


@pytest.mark.nightly
def test_a_library_loads_with_stand_ins_for_what_it_needs(tmp_path: Path) -> None:
    """One that wants two names, one with a version and one that answers a text, of a library that is not there."""
    (tmp_path / "gone.c").write_text("int gone_count(void) { return 3; }\nconst char *goneName(void) { return 0; }\n")
    (tmp_path / "map").write_text("GONE_1 { global: gone_count; };\n")
    (tmp_path / "uses.c").write_text(
        "int gone_count(void); const char *goneName(void);\nint sum(void) { return gone_count() + !!goneName(); }\n"
    )
    (tmp_path / "lib").mkdir()
    gone, uses = tmp_path / "libgone.so", tmp_path / "lib" / "libuses.so"
    options = ["cc", "-shared", "-fPIC"]
    script = ["-Wl,--version-script", str(tmp_path / "map"), "-Wl,-soname,libgone.so"]
    subprocess.run([*options, *script, "-o", str(gone), str(tmp_path / "gone.c")], check=True)
    subprocess.run([*options, "-o", str(uses), str(tmp_path / "uses.c"), str(gone), "-Wl,-rpath,$ORIGIN"], check=True)
    assert stubs.fill(tmp_path / "lib") == ["libgone.so"] and stubs.fill(tmp_path / "lib") == []
    code = f"import ctypes; print(ctypes.CDLL({str(uses)!r}).sum())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "101"
