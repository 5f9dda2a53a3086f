"""What goes wrong is said in a sentence, with the user's own line; a compiled call's frames stay out of tracebacks."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.cli import main

PROGRAMS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, train=True):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    def forward(self, x):
        return self.layers(x)

def training(): return Block(), (torch.ones(3, 4),)
def evaluating(): return Block().eval(), (torch.ones(3, 4),)
def on_meta(): return nn.Linear(4, 4, device="meta"), (torch.ones(2, 4),)
def meta_argument(): return nn.Linear(4, 4), (torch.ones(2, 4, device="meta"),)
def wrong_shape(): return Block().eval(), (torch.ones(3, 5),)
def raises(): raise LookupError("no data here")
def returns_one(): return Block()
def returns_a_string(): return "f", (torch.ones(2),)
def returns_a_list(): return [Block().eval(), (torch.ones(3, 4),)]
def keywords(): return (lambda x, *, y: x + y), (torch.ones(2),), {"y": torch.ones(2)}
def no_keywords(): return torch.sin, (torch.ones(2),), None
def needs(n): return torch.sin, torch.zeros(n)
"""


Command = Callable[..., tuple[int, str, str]]
"""A command line: its exit code, standard output, standard error."""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path, modules = list(sys.path), set(sys.modules)
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "sentence_programs.py"
    file.write_text(PROGRAMS)
    monkeypatch.chdir(tmp_path)
    yield file
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if "sentence_programs" in name or name.startswith("broken_"):
            del sys.modules[name]


@pytest.fixture
def smelt_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def command(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["smelt", *args])
        code = 0
        with warnings.catch_warnings():
            try:
                main()
            except SystemExit as stop:
                code = int(stop.code or 0)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return command


@pytest.mark.spread(2)
@pytest.mark.parametrize("command", ["run", "show", "explain"])
@pytest.mark.parametrize("through", ["file", "module", "imported"])
def test_a_file_with_a_syntax_error(smelt_command: Command, programs: Path, command: str, through: str) -> None:
    broken = programs.with_name(f"broken_{command}_{through}.py")
    broken.write_text("x = 1\ndef f(:\n    pass\n")
    target = {"file": f"{broken.name}:f", "module": f"{broken.stem}:f", "imported": "importing_it.py:f"}[through]
    if through == "imported":
        programs.with_name("importing_it.py").write_text(f"import {broken.stem}\n")
    code, _, said = smelt_command(command, target)
    assert code == 1 and said.startswith(f"error[S0504] {broken.name}:2 is not Python: invalid syntax\n")
    assert "        def f(:\n              ^\n" in said and "Traceback" not in said
    sys.modules.pop("importing_it", None)


@pytest.mark.parametrize(
    ("name", "what"), [("on_meta", "weight and 1 more of Linear are"), ("meta_argument", "an argument of Linear is")]
)
def test_a_model_on_meta(smelt_command: Command, programs: Path, name: str, what: str) -> None:
    for command in ("run", "show", "explain"):
        code, _, said = smelt_command(command, f"{programs}:{name}")
        assert code == 1 and f"{what} on the device meta" in said and "to_empty" in said and "Traceback" not in said


def test_a_wrong_shape_is_the_models_own_error(smelt_command: Command, programs: Path) -> None:
    for command in ("run", "show", "explain"):
        code, _, said = smelt_command(command, f"{programs}:wrong_shape")
        assert code == 1 and "mat1 and mat2 shapes cannot be multiplied" in said
        line = PROGRAMS.splitlines().index("        return self.layers(x)") + 1
        place = f"sentence_programs.py:{line} in Block.forward"
        assert said.endswith(f"raised by your model in eager mode, at {place}, called with (float32[3, 5])\n")


def test_training_mode_is_noted(smelt_command: Command, programs: Path) -> None:
    code, shown, said = smelt_command("run", f"{programs}:training", "--repeats", "3")
    assert code == 0 and "speed-up" in shown
    assert "note: Block is in training mode: layers.1 draws random numbers, layers.2 updates its statistics" in said
    code, _, said = smelt_command("run", f"{programs}:evaluating", "--repeats", "3")
    assert code == 0 and "note:" not in said


def test_a_factory_that_raises_says_whose_it_is(smelt_command: Command, programs: Path) -> None:
    code, _, said = smelt_command("run", f"{programs}:raises")
    line = PROGRAMS.splitlines().index('def raises(): raise LookupError("no data here")') + 1
    assert code == 1 and "LookupError: no data here" in said
    assert said.endswith(f"raised by the factory {programs}:raises, at sentence_programs.py:{line} in raises\n")


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("{0}", "names no factory; write {0}:training, or one of evaluating, on_meta"),
        ("{0}:nothing", "has no 'nothing'"),
        ("{0}:returns_one", "returned Block, not (function_or_module, args)"),
        ("{0}:returns_a_string", "returned (str, tuple), not (function_or_module, args)"),
        ("{0}:needs", "takes arguments"),
        ("no_such.py:f", "there is no file no_such.py"),
        ("no_such", "is not a target"),
    ],
)
def test_targets_that_are_none(smelt_command: Command, programs: Path, target: str, problem: str) -> None:
    for command in ("run", "show", "explain"):
        code, _, said = smelt_command(command, target.format(programs.name))
        assert code == 2 and problem.format(programs.name) in " ".join(said.replace("│", " ").split())


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", ["keywords", "no_keywords", "returns_a_list"])
def test_targets_with_keyword_arguments(smelt_command: Command, programs: Path, name: str) -> None:
    for command in ("show", "explain", "run"):
        code, shown, said = smelt_command(
            command, f"{programs}:{name}", *(["--repeats", "2"] if command == "run" else [])
        )
        assert code == 0 and shown, said


def test_explain_and_run_begin_with_a_verdict(smelt_command: Command, programs: Path) -> None:
    _, shown, _ = smelt_command("run", f"{programs}:evaluating", "--repeats", "3")
    assert shown.splitlines()[1].startswith("compiled: 1 graph, native code")
    assert "eager  " in shown and "quartiles" in shown and "load " in shown and "of the time" in shown
    _, shown, _ = smelt_command("explain", f"{programs}:evaluating", "--width", "120")
    assert "compiled: 1 graph" in shown.splitlines()[2] and "quartiles" in shown
    _, shown, _ = smelt_command("explain", f"{programs}:evaluating", "--no-time")
    assert "quartiles" not in shown


def test_show_takes_a_width_and_leaves_places_out(smelt_command: Command, programs: Path) -> None:
    _, shown, _ = smelt_command("show", f"{programs}:evaluating")
    assert "sentence_programs.py in Block.forward" in shown and str(programs) not in shown
    _, plain, _ = smelt_command("show", f"{programs}:evaluating", "--no-where", "--width", "80")
    assert "sentence_programs" not in plain and max(map(len, plain.splitlines())) <= 80
    _, full, _ = smelt_command("show", f"{programs}:evaluating", "--full")
    assert str(programs) in full and str(smelt.parse(full)) == full.rstrip("\n")


def helper(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("of the program")


def calls(x: torch.Tensor) -> torch.Tensor:
    return helper(x * 2)


def frames(call: Callable[[], Any]) -> list[str]:
    try:
        call()
    except Exception as error:
        return [entry.name for entry in traceback.extract_tb(error.__traceback__)][2:]
    raise AssertionError("it did not raise")


@pytest.mark.parametrize("known", [False, True])
def test_a_compiled_calls_own_frames_stay_out_of_the_traceback(known: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4)).eval()
    for f, good, bad in ((calls, None, torch.ones(3)), (model, torch.ones(2, 4), torch.ones(2, 5))):
        compiled = smelt.compile(f)
        with torch.no_grad():
            for _ in range(2 if known and good is not None else 0):
                compiled(good)
            for _ in range(3):
                assert frames(lambda: compiled(bad)) == frames(lambda: f(bad))  # noqa: B023


def test_an_error_of_ours_has_the_users_line_only() -> None:
    compiled = smelt.compile(lambda x: x.to_sparse(), options={"strict": True})
    with torch.no_grad():
        assert frames(lambda: compiled(torch.ones(3))) in ([], ["__call__"])
