"""`smelt cache`, and how `show`, `explain` and `run` find their program and report on it."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import smelt
from smelt.cli import app, main
from smelt.cli.target import load_target
from smelt.diag import SmeltError, VerifyError
from tests.demo import standin

PROGRAMS = """
import dataclasses
import torch

@dataclasses.dataclass
class Scale:
    factor: float

def scaled(x, *, scale):
    return {"y": x * scale.factor}

def linear():
    return torch.nn.Linear(3, 2).eval(), (torch.ones(4, 3),)

def one_tensor():
    return torch.sin, torch.zeros(2)

def with_kwargs():
    return scaled, (torch.ones(2),), {"scale": Scale(2.0)}

def nothing(): return None
def no_args(): return torch.sin, 3
def broken(): raise RuntimeError("the user's own")
def needs_missing(): import not_there_at_all
value = 3
"""


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[str]:
    """A file of factories; what loading it leaves in the interpreter is removed."""
    path, modules = list(sys.path), set(sys.modules)
    file = tmp_path / "some_programs.py"
    file.write_text(PROGRAMS)
    yield str(file)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.endswith("some_programs"):
            del sys.modules[name]


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, list(args))


def test_a_target_in_a_file(programs: str) -> None:
    assert load_target(f"{programs}:linear")().shape == (4, 2)
    assert load_target(f"{programs}:one_tensor").args[0].shape == (2,)
    assert load_target(f"{programs}:with_kwargs")()["y"].tolist() == [2, 2]


def test_a_target_in_a_module(programs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(programs).parent)
    assert load_target("some_programs:linear")().shape == (4, 2)


def test_a_file_never_replaces_a_module_of_its_name(programs: str) -> None:
    file = Path(programs).with_name("copy.py")
    file.write_text(PROGRAMS)
    before = sys.modules["copy"]
    assert load_target(f"{file}:linear")().shape == (4, 2)
    assert sys.modules["copy"] is before


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("some_programs", "is not a target"),
        (":linear", "is not a target"),
        ("some.programs:", "is not a target"),
        ("not there:linear", "is not a module's name"),
        ("no_such_module_here:linear", "there is no module"),
        ("torch.no_such_part:linear", "there is no module"),
        ("no_such_file.py:linear", "there is no file"),
        ("{file}:none_such", "has no 'none_such'"),
        ("{file}:value", "is not a function"),
        ("{file}:nothing", "returned NoneType"),
        ("{file}:no_args", "not (function_or_module, args)"),
    ],
)
def test_a_bad_target_says_what_one_looks_like(programs: str, target: str, problem: str) -> None:
    with pytest.raises(typer.BadParameter) as error:
        load_target(target.format(file=programs))
    assert problem in error.value.message
    assert "pkg.mod:factory" in error.value.message


@pytest.mark.parametrize("command", ["show", "explain", "run"])
def test_a_bad_target_is_wrong_usage(command: str) -> None:
    assert invoke(command, "no_such_module_here:f").exit_code == 2


def test_what_the_users_code_raises_passes_through(programs: str) -> None:
    with pytest.raises(RuntimeError, match="the user's own"):
        load_target(f"{programs}:broken")
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        load_target(f"{programs}:needs_missing")


def test_show_prints_the_graph_asked_for(monkeypatch: pytest.MonkeyPatch, programs: str) -> None:
    standin.install(monkeypatch)
    target = f"{programs}:linear"
    assert invoke("show", target).stdout == f"{standin.Program.graph}\n"
    assert invoke("show", target, "--optimized").stdout.startswith("graph optimized(")
    assert invoke("show", target, "--code").stdout == "the code\n"
    assert invoke("show", target, "--code", "--optimized").exit_code == 2


def test_explain_prints_text_json_or_writes_a_page(
    monkeypatch: pytest.MonkeyPatch, programs: str, tmp_path: Path
) -> None:
    standin.install(monkeypatch)
    target, page = f"{programs}:linear", tmp_path / "report.html"
    assert invoke("explain", target).stdout == "the report\n"
    assert json.loads(invoke("explain", target, "--json").stdout) == {"name": "program"}
    assert invoke("explain", target, "--html", str(page)).stdout == ""
    assert page.exists()


def test_run_compares_with_eager(monkeypatch: pytest.MonkeyPatch, programs: str) -> None:
    standin.install(monkeypatch)
    result = invoke("run", f"{programs}:linear", "--repeats", "2")
    assert result.exit_code == 0, result.output
    assert "speed-up" in result.output
    assert "result float32[4, 2]" in result.output


@pytest.mark.parametrize(
    "change",
    [lambda t: t + 1, lambda t: t[:1], lambda t: t.double(), lambda t: t * float("nan"), lambda t: ()],
)
def test_run_fails_on_another_answer(monkeypatch: pytest.MonkeyPatch, programs: str, change: standin.Change) -> None:
    standin.install(monkeypatch, change)
    result = invoke("run", f"{programs}:linear", "--repeats", "1")
    assert isinstance(result.exception, VerifyError)
    assert result.exception.code == "S0503"


def test_run_takes_nan_and_inf_for_equal_where_eager_has_them(monkeypatch: pytest.MonkeyPatch, programs: str) -> None:
    Path(programs).write_text(
        "import torch\ndef f(): return torch.log, (torch.tensor([-1.0, 0.0, 1.0, float('inf')]),)\n"
    )
    standin.install(monkeypatch)
    assert invoke("run", f"{programs}:f", "--repeats", "1").exit_code == 0
    standin.install(monkeypatch, lambda t: torch.nan_to_num(t))
    assert isinstance(invoke("run", f"{programs}:f", "--repeats", "1").exception, VerifyError)


def test_cache_shows_and_clears_only_its_own_files(tmp_path: Path) -> None:
    for name, age in (("aa11.obj", 20), ("bb22.obj", 10), (".writing-x", 30)):
        (tmp_path / name).write_bytes(b"1234" * 250)
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    (tmp_path / "notes.txt").write_text("the user's own")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "mlp_12ab.py").write_text("")
    shown = invoke("cache", "--folder", str(tmp_path), "--entries").stdout
    assert "2 entries, 3.0 kB" in shown
    assert shown.index("bb22.obj") < shown.index("aa11.obj")
    cleared = invoke("cache", "clear", "--folder", str(tmp_path))
    assert "removed 2 entries, 3.0 kB, and 1 captured program(s) as Python" in cleared.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "source"]
    assert not list((tmp_path / "source").iterdir())


def test_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "not" / "there"))
    result = invoke("cache")
    assert result.exit_code == 0
    assert str(tmp_path / "not" / "there") in result.stdout.replace("\n", "")
    assert "not there yet" in result.stdout
    assert "0 entries" in result.stdout


def test_a_cache_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = invoke("cache", "--folder", str(tmp_path / "file"))
    assert isinstance(result.exception, SmeltError)
    assert result.exception.code == "S0501"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["show", "{file}:linear"], "aten.linear.default"),
        (["show", "{file}:with_kwargs"], "aten.mul"),
        (["show", "{file}:linear", "--optimized"], "graph "),
        (["show", "{file}:linear", "--code"], "def forward(state"),
        (["explain", "{file}:linear"], "Guards"),
        (["explain", "{file}:linear", "--json"], '"kernels"'),
        (["run", "{file}:linear", "--repeats", "2", "--strict"], "result float32[4, 2]"),
        (["run", "{file}:with_kwargs", "--repeats", "2"], "result float32[2]"),
    ],
)
def test_the_real_compiler_behind_the_commands(
    programs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], shown: str
) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    result = invoke(*(a.format(file=programs) for a in arguments))
    assert result.exit_code == 0, result.output
    assert shown in result.stdout


DROPOUT = """
import torch

def dropped():
    torch.manual_seed(1)
    layers = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)
    return torch.nn.Sequential(*layers).train(), (torch.randn(4, 8),)

def in_place():
    return (lambda x: x.add_(1)), (torch.zeros(3),)

class Wrong(torch.nn.Module):
    def forward(self, x):
        return self.helper(x)

    def helper(self, x):
        raise LookupError("of the model")

def wrong(): return Wrong(), (torch.ones(2),)
def unfitting(): return torch.nn.Linear(3, 2), (torch.ones(4, 5),)
def takes(n): return torch.sin, torch.zeros(n)
def takes_perhaps(n=2): return torch.sin, torch.zeros(n)
SEEN = set()
def prints(): return (lambda x: (print("hello"), x * 2)[1]), (torch.ones(2),)
def notes(): return (lambda x: (SEEN.add(len(SEEN)), x * 2)[1]), (torch.ones(2),)
"""


@pytest.fixture
def more_programs(programs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    Path(programs).write_text(DROPOUT)
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    return programs


def run_main(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    """As from a shell: the exit code of `smelt args...`."""
    monkeypatch.setattr(sys, "argv", ["smelt", *args])
    with pytest.raises(SystemExit) as stop, warnings.catch_warnings():
        warnings.simplefilter("default")
        main()
    return int(stop.value.code or 0)


@pytest.mark.parametrize("name", ["dropped", "in_place"])
def test_run_starts_every_compared_call_alike(more_programs: str, name: str) -> None:
    result = invoke("run", f"{more_programs}:{name}", "--repeats", "2")
    assert result.exit_code == 0, result.exception


@pytest.mark.parametrize("command", ["run", "show", "explain"])
def test_what_the_program_prints_is_no_part_of_the_report(more_programs: str, command: str) -> None:
    result = invoke(command, f"{more_programs}:prints")
    assert result.exit_code == 0 and "hello" in result.stderr
    assert "hello\n" not in result.stdout and result.stdout


@pytest.mark.parametrize("command", ["run", "show", "explain"])
def test_the_users_exception_is_shown_with_the_users_frames(
    more_programs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run_main(monkeypatch, command, f"{more_programs}:wrong") == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback") and "\nLookupError: of the model\n" in shown
    said = shown.splitlines()[-1]
    assert (
        said.startswith("raised by your model in eager mode, at ")
        and "in Wrong.helper, called with (float32[2])" in said
    )
    assert "in forward" in shown and "in helper" in shown
    assert "site-packages" not in shown and "src/smelt" not in shown and "cli" not in shown
    assert shown.count("\n") <= 9


def test_torch_frames_are_not_shown(
    more_programs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "run", f"{more_programs}:unfitting") == 1
    shown = capsys.readouterr().err
    assert "mat1 and mat2" in shown and "site-packages" not in shown


def test_a_factory_with_parameters_is_wrong_usage(more_programs: str) -> None:
    result = invoke("run", f"{more_programs}:takes")
    assert result.exit_code == 2 and "takes arguments" in result.output
    assert load_target(f"{more_programs}:takes_perhaps").args[0].shape == (2,)


def test_a_report_that_cannot_be_written_is_one_line(
    more_programs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "none" / "r.html"
    assert run_main(monkeypatch, "explain", f"{more_programs}:dropped", "--html", str(page)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error[S0501]") and str(page) in line
    assert run_main(monkeypatch, "explain", f"{more_programs}:in_place", "--html", str(tmp_path)) == 1
    assert "error[S0501]" in capsys.readouterr().err


def test_warnings_are_plain_messages(
    more_programs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_main(monkeypatch, "run", f"{more_programs}:notes", "--repeats", "1")
    shown = capsys.readouterr().err
    assert shown.startswith("warning: ") and "target.py" not in shown and "SmeltWarning" not in shown


def test_version() -> None:
    assert invoke("--version").output == f"smelt {smelt.__version__}\n"
