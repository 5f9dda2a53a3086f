"""`smelt matrix`: one program under the configurations of all compilers, and which of them to take."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from smelt.bench.matrix import report
from smelt.bench.matrix.advice import advice
from smelt.bench.matrix.cases import CASES
from smelt.bench.matrix.configurations import CONFIGURATIONS, EAGER, Configuration
from smelt.bench.matrix.rows import Clock, Matrix, Row, read
from smelt.bench.matrix.run import Request, rows
from smelt.bench.rows import as_plain, machine
from smelt.cli.matrix_cell import BY_NAME, MODULE
from smelt.cli.target import HELP
from smelt.cli.users_program import load_program
from smelt.diag import SmeltError
from smelt.diag.console import console, progress
from smelt.inspect.machine import load_average

_PAPER = 200  # characters of a line where the table goes to a file
_NAMES = [configuration.name for configuration in CONFIGURATIONS]


def matrix(
    programs: Annotated[
        list[str] | None,
        typer.Argument(help=f"{HELP} Or the name of a use case or a model of `smelt bench`.", show_default=False),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this configuration; can be repeated.")] = None,
    skip: Annotated[list[str] | None, typer.Option(help="All but this configuration; can be repeated.")] = None,
    train: Annotated[
        bool, typer.Option("--train", help="A call is a step of training: the result as loss, backward, AdamW.")
    ] = False,
    threads: Annotated[
        list[int] | None, typer.Option(min=1, help="Threads; can be repeated. The first is what compile times are of.")
    ] = None,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="Count the processor's time on one thread, for busy machines.")
    ] = False,
    seconds: Annotated[float, typer.Option(min=0.05, help="Seconds of calls, for each number of threads.")] = 1.0,
    limit: Annotated[float, typer.Option(min=1.0, help="Seconds that one process may take.")] = 300.0,
    out: Annotated[Path | None, typer.Option(help="A folder for PROGRAM.json and PROGRAM.png.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON instead of text.")] = False,
    earlier: Annotated[Path | None, typer.Option("--from", help="Measure nothing: show this file of --out.")] = None,
) -> None:
    if earlier is not None:
        _show([_earlier(earlier)], json)
        return
    chosen = _configurations(only, skip)
    counts = list(dict.fromkeys(threads or ([1] if cpu_time else [2, 1])))
    if cpu_time and 1 not in counts:
        raise typer.BadParameter("CPU time is that of one thread: add --threads 1", param_hint="--cpu-time")
    if not programs:
        raise typer.BadParameter(f"name a program, or one of {', '.join(BY_NAME)}", param_hint="PROGRAMS")
    for named in programs:
        if named not in BY_NAME:
            load_program(named)  # says what is wrong with it before anything is measured
    clock = Clock(1 if cpu_time else counts[0], cpu_time)
    found: list[Matrix] = []
    for named in programs:
        known = BY_NAME.get(named)
        trains = train or (known is not None and known.trains)
        request = Request(MODULE, named, trains, counts, seconds, limit)
        found.append(_measured(request, chosen, clock, known.summary if known is not None else "", out))
    _show(found, json)


matrix.__doc__ = f"""Run a program under each configuration of each compiler, and say which to take and why.

torch.compile with its modes and options, TorchScript, ONNX Runtime,
OpenVINO and Smelt's own options: what a call takes, calls a second on each
number of threads, the error against eager, compile time with empty and
with filled caches, memory, compiles for other numbers of rows, and from how
many calls on each pays. Each configuration runs in processes of its own,
beside eager; one that fails, or runs out of time, is a row that says why.

\b
Use cases:
{chr(10).join(f"  {case.name:<22}{case.summary}" for case in CASES)}

\b
Configurations:
{chr(10).join(f"  {c.name:<26}{c.how}" for c in CONFIGURATIONS)}

\b
Examples:
  smelt matrix model.py:factory
      your own program (15 to 60 minutes: compilers take their time)
  smelt matrix model.py:factory --only smelt --only compile --only onnxruntime
      three of them, and eager
  smelt matrix embedding-service tabular --out results
      two use cases, written as JSON and as a plot
  smelt matrix model.py:loss --train
      a step of training
  smelt matrix --from results/tabular.json
      what was found earlier
"""


def _configurations(only: Sequence[str] | None, skip: Sequence[str] | None) -> list[Configuration]:
    """Those that were asked for, and eager. Raises: typer.BadParameter for a name that is none."""
    for option, names in (("--only", only), ("--skip", skip)):
        for name in names or ():
            if name not in _NAMES:
                raise typer.BadParameter(f"there is no {name!r}; there are {', '.join(_NAMES)}", param_hint=option)
    wanted = {EAGER, *(only or _NAMES)} - (set(skip or ()) - {EAGER})
    return [configuration for configuration in CONFIGURATIONS if configuration.name in wanted]


def _measured(
    request: Request, chosen: Sequence[Configuration], clock: Clock, summary: str, out: Path | None
) -> Matrix:
    """The matrix of a program, which is written after each row. An interrupt keeps the rows that are complete."""
    found: list[Row] = []
    whole = Matrix(request.program, summary, clock, found, machine(), load_average())
    path = None if out is None else out / f"{_file_name(request.program)}.json"
    with progress(transient=False) as bar:
        task = bar.add_task(request.program, total=len(chosen))
        try:
            for row in rows(request, chosen, lambda text: bar.update(task, description=f"{request.program}: {text}")):
                found.append(row)
                bar.advance(task)
                whole = replace(whole, advice=advice(found, clock), load=max(whole.load, load_average()))
                if path is not None:
                    _written(whole, path)
        except KeyboardInterrupt:
            console(sys.stderr).print(Text("interrupted: the rows so far are shown", style="yellow"))
    if path is not None:
        problem = report.plot(whole, path.with_suffix(".png"))
        console(sys.stderr).print(f"no plot: {problem}" if problem else f"{path} and {path.with_suffix('.png')}")
    return whole


def _written(whole: Matrix, path: Path) -> None:
    try:
        whole.write(path)
    except OSError as error:
        raise SmeltError(f"{path} cannot be written: {error.strerror or error}", code="S0501") from None


def _file_name(program: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "-_" else "-" for sign in program)


def _earlier(path: Path) -> Matrix:
    try:
        return read(path)
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error.strerror}", param_hint="--from") from None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from") from None


def _show(found: Sequence[Matrix], json: bool) -> None:
    if json:
        typer.echo(json_.dumps([as_plain(asdict(one)) for one in found], indent=2))
        return
    screen = console()
    wide = screen if screen.is_terminal else console(width=_PAPER)
    for one in found:
        wide.print(report.table(one))
        typer.echo(report.text_of(one))
