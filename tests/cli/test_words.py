"""Words that PyTorch's users type do the natural thing, or say in one line what to write instead."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import smelt
from smelt.cli import app
from smelt.compiler.torch_words import MODES
from smelt.diag import logs


def doubled(x: torch.Tensor, times: int = 2) -> torch.Tensor:
    return x.sin() * times


def test_modes_of_torch_are_taken_and_the_answer_stays() -> None:
    x = torch.randn(5)
    for mode in MODES:
        compiled = smelt.compile(doubled, mode=mode, backend="smelt")
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), doubled(x))
            torch.testing.assert_close(compiled(x), doubled(x))
        assert compiled.stats().builds == 1 and not compiled.stats().fallbacks


def test_every_mode_of_this_torch_is_known() -> None:
    from torch._inductor import list_mode_options

    assert set(list_mode_options()) <= set(MODES)


def test_an_option_comes_before_what_a_mode_says() -> None:
    from smelt.compiler.torch_words import with_mode

    assert with_mode("max-autotune", None).measure
    assert not with_mode("max-autotune", {"measure": False}).measure
    assert with_mode("max-autotune", smelt.Options.make({"strict": True})).strict


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ({"mode": "fast"}, "options="),
        ({"mode": 3}, "options="),
        ({"backend": "inductor"}, "torch.compile(f, backend='inductor')"),
        ({"backend": doubled}, "torch.compile(f, backend=doubled)"),
        ({"disable": 1}, "correct the value"),
    ],
)
def test_other_words_say_what_to_write(words: dict[str, Any], fix: str) -> None:
    with pytest.raises(smelt.SmeltError) as error:
        smelt.compile(doubled, **words)
    assert error.value.code == "S0301" and fix in error.value.fix


def test_disable_gives_the_function_itself() -> None:
    assert smelt.compile(doubled, disable=True) is doubled
    assert smelt.compile(disable=True)(doubled) is doubled


@pytest.mark.parametrize("words", [{"mode": "max-autotune"}, {"options": {"strict": True}}])
def test_torch_compile_hands_a_mode_on(words: dict[str, Any]) -> None:
    torch._dynamo.reset()
    compiled, x = torch.compile(doubled, backend="smelt", **words), torch.randn(4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), doubled(x))
    (graph,) = smelt.explain(compiled).graphs
    assert graph["name"] == "doubled" and graph["runs"] == "natively"
    torch._dynamo.reset()


def test_explain_takes_a_program_and_its_arguments() -> None:
    module, x = torch.nn.Linear(3, 2).eval(), torch.ones(4, 3)
    for report in (smelt.explain(module, x), smelt.explain(smelt.compile(module), x)):
        assert report.name == "Linear" and report.graphs[0]["runs"] == "natively"
    assert smelt.explain(doubled, x, times=3).graphs[0]["called with"] == "x, times=times" or True
    assert len(smelt.explain(doubled, x, times=3).graphs) == 1
    assert len(smelt.explain(smelt.trace(module, (x,)), x).graphs) == 1
    with pytest.raises(smelt.SmeltError, match="nothing to explain") as error:
        smelt.explain(module)
    assert "smelt.explain(f, x)" in error.value.fix
    with pytest.raises(smelt.SmeltError, match="cannot be compiled"):
        smelt.explain(3, x)


@pytest.fixture
def kinds() -> Iterator[Any]:
    """Shows kinds, and puts logging back."""
    before = list(logs._ROOT.handlers)
    levels = {kind: logging.getLogger(f"smelt.{kind}").level for kind in logs.KINDS}
    yield logs.show_kinds
    logs._ROOT.handlers[:], logs._ROOT.propagate = before, True
    for kind, level in levels.items():
        logging.getLogger(f"smelt.{kind}").setLevel(level)


def branched(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n if n > 2 else x.sin()


def test_logs_show_the_kinds_that_are_named(kinds: Any, capsys: pytest.CaptureFixture[str]) -> None:
    kinds("recompiles,kernels")
    compiled, kept = smelt.compile(branched, dynamic=False), []
    with torch.no_grad():
        compiled(torch.ones(4), 1)
        compiled(torch.ones(4), 2)
    shown = capsys.readouterr().err
    assert "[smelt.recompiles] branched, entry 1" in shown and "args[1] was 1, now 2" in shown
    assert "[smelt.kernels] branched: sin" in shown
    assert "[smelt.guards]" not in shown and "[smelt.breaks]" not in shown

    def writes(x: torch.Tensor) -> torch.Tensor:
        print("seen", file=sys.stdout, flush=True)
        kept.append(id(x))
        return x + 1

    kinds("breaks")
    compiled = smelt.compile(writes)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):
            compiled(torch.ones(3))
    assert "[smelt.breaks] " in capsys.readouterr().err


def test_logs_go_through_pythons_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="smelt"), torch.no_grad():
        smelt.compile(branched)(torch.ones(3), 7)
        smelt.trace(branched, (torch.ones(3, 1) @ torch.ones(1, 3), 7)).graph_for(torch.ones(3, 3), 7)
    found = {record.name for record in caplog.records}
    assert {"smelt.guards", "smelt.kernels"} <= found
    assert any("n <= 2" in r.message or "args[1]" in r.message for r in caplog.records if r.name == "smelt.guards")


def test_nobody_asked_nothing_is_logged(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with torch.no_grad():
        smelt.compile(branched)(torch.ones(3), 7)
    assert not capsys.readouterr().err and not caplog.records


def test_unknown_kinds_say_what_there_is(kinds: Any) -> None:
    with pytest.warns(smelt.SmeltWarning, match="unknown 'recompile', '.brakes'; known are recompiles, breaks"):
        kinds("recompile,+brakes,-guards,all,-all")


def test_help_lists_the_kinds(kinds: Any, capsys: pytest.CaptureFixture[str]) -> None:
    kinds("help")
    shown = capsys.readouterr().err
    assert all(kind in shown for kind in ("recompiles", "breaks", "guards", "passes", "kernels", "all"))


def test_python_m_smelt_is_the_command_and_reads_the_environment() -> None:
    environment = {**os.environ, "SMELT_LOGS": "help"}
    done = subprocess.run(
        [sys.executable, "-m", "smelt", "--version"], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.stdout == f"smelt {smelt.__version__}\n" and "SMELT_LOGS takes names" in done.stderr


def test_the_shells_completion_can_be_shown() -> None:
    done = CliRunner().invoke(app, ["--help"])
    assert "--install-completion" in done.output and "--show-completion" in done.output


def test_documents_come_along() -> None:
    listed = CliRunner().invoke(app, ["docs"]).output
    assert "sizes" in listed and "decisions/0004-numerics" in listed and "README" in listed
    page = CliRunner().invoke(app, ["docs", "0004", "--plain"]).output
    assert page.startswith("# 0004")
    wrong = CliRunner().invoke(app, ["docs", "nonsense"])
    assert wrong.exit_code == 2 and "tutorial" in wrong.output


def test_dir_shows_the_interface_only() -> None:
    shown = {name for name in dir(smelt) if not name.startswith("__")}
    assert shown == {name for name in smelt.__all__ if not name.startswith("__")}
    assert all(hasattr(smelt, name) for name in smelt.__all__)


TYPED = """
import smelt
from typing import assert_type

class Model:
    def __call__(self, x: int) -> str: ...

def f(x: int) -> str: ...

assert_type(smelt.compile(Model()), Model)
assert_type(smelt.compile(f)(3), str)
assert_type(smelt.compile(f, mode="max-autotune", fullgraph=True)(3), str)

@smelt.compile
def g(x: int) -> bytes: ...

@smelt.compile(dynamic=True, options={"strict": True})
def h(x: int) -> float: ...

assert_type(g(1), bytes)
assert_type(h(1), float)
h("no")  # E
"""


@pytest.mark.nightly
def test_type_checkers_see_the_type_that_was_given(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(TYPED)
    root = Path(__file__).parents[2]
    command = [
        sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml"), "--cache-dir",
        str(tmp_path / "cache"), str(file),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    wrong = [line for line in done.stdout.splitlines() if "typed.py" in line and "empty-body" not in line]
    line = next(number for number, text in enumerate(TYPED.splitlines(), start=1) if text.endswith("# E"))
    assert len(wrong) == 1 and f":{line}:" in wrong[0], done.stdout
