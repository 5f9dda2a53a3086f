"""What the terminal shows is the text as it is: no word in brackets is taken for markup, no `:name:` for an emoji."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import typer
from rich.table import Table
from typer.testing import CliRunner

import smelt
from smelt.bench import report
from smelt.bench.rows import Row
from smelt.bench.systems import missing
from smelt.cli import app
from smelt.diag.console import console, progress

SOURCES = Path(smelt.__file__).parent
COMMANDS = ("demo", "run", "show", "explain", "bench", "cache", "docs")


def test_brackets_and_emoji_names_stay() -> None:
    out = io.StringIO()
    shown = console(out, width=60)
    table = Table("[head]", title="[title] of x[0]")
    table.add_row('pip install "name[extra]" :smile:')
    shown.print("x[:on:] [bold]y[/bold]")
    shown.print(table)
    text = out.getvalue()
    assert "x[:on:] [bold]y[/bold]" in text and 'pip install "name[extra]" :smile:' in text
    assert "[head]" in text and "[title] of x[0]" in text


def test_every_console_and_bar_is_made_in_one_place() -> None:
    made = re.compile(r"\b(Console|Progress|TextColumn)\(")
    found = [
        str(file.relative_to(SOURCES))
        for file in SOURCES.rglob("*.py")
        if made.search(file.read_text(encoding="utf-8")) and file.name != "console.py"
    ]
    assert not found


def test_progress_shows_brackets() -> None:
    with progress(wanted=True) as bar:
        bar.add_task("model [bench]: preparing", total=1)
        out = io.StringIO()
        console(out, width=80).print(bar.get_renderable())
    assert "model [bench]: preparing" in out.getvalue()


def test_a_missing_package_keeps_its_extra_in_the_benchs_table() -> None:
    row = Row("lerp200", "openvino")
    row.note(missing(["no_such_package_at_all"]))
    out = io.StringIO()
    console(out, width=400).print(report.table([row], 400))
    assert 'no_such_package_at_all (pip install "smelt-compiler[bench]")' in out.getvalue()


@pytest.mark.spread(4)
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_shows_all_of_its_text(command: str) -> None:
    found = typer.main.get_command(app)
    described = (found.commands[command] if command else found).help  # type: ignore[attr-defined]
    arguments = [command] if command else []
    (long, short) = (CliRunner().invoke(app, [*arguments, option], terminal_width=160) for option in ("--help", "-h"))
    assert long.exit_code == short.exit_code == 0 and long.output == short.output
    shown = " ".join(long.output.split())
    for word in " ".join(described.replace("\b", "").split()).split():
        assert word in shown
