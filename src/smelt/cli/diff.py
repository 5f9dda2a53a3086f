"""`smelt diff`: two programs, or one program with two sets of options, compared."""

from __future__ import annotations

import json as json_
import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import smelt
from smelt.cli import ingot
from smelt.cli.target import HELP, Target
from smelt.cli.users_program import in_users_program, load_program
from smelt.compiler import Unit
from smelt.compiler.pipeline import exact_passes
from smelt.diag import SmeltError
from smelt.diag.console import console
from smelt.inspect.compare import Comparison, compare_units, first_difference
from smelt.inspect.kernels import compiled_units
from smelt.inspect.numeric import Checked, check_passes
from smelt.inspect.shown import size
from smelt.inspect.verdict import Race, race

_ROUNDS, _BUDGET_S = 20, 2.0
_OPTIONS = "Options as JSON, for example {'dtype': 'bf16'} with double quotes."


def diff(
    first: Annotated[str, typer.Argument(help=HELP, show_default=False)],
    second: Annotated[str | None, typer.Argument(help="Another one. Default: the same.", show_default=False)] = None,
    options: Annotated[str, typer.Option("--options", help=f"{_OPTIONS} Of the second program.")] = "{}",
    base: Annotated[str, typer.Option("--base", help="The same, of the first program.")] = "{}",
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON instead of text.")] = False,
    timed: Annotated[bool, typer.Option("--time/--no-time", help="Measure both, interleaved.")] = True,
) -> None:
    """Compare two programs, or one with two sets of options: graph, kernels, memory, time, results.

    Two saved programs: entry points, graphs and weights, the native code
    left aside, as it follows from these; exit code 1 if they differ.

    Programs are called with the arguments of the first. The passes of each are
    checked one by one on these arguments: each that moves a value, by how
    much, and the first value that is wrong, with its node and line.

    \b
    Examples:
      smelt diff model.py:factory --options '{"skip": ["fold-batch-norm"]}'
          what a pass gives
      smelt diff model.py:before model.py:after
          two versions of a program
      smelt diff before.ingot after.ingot
          two saved programs
    """
    if Path(first).is_file():
        if second is None:
            raise typer.BadParameter("another saved program is missing", param_hint="SECOND")
        ingot.diff(first, second)
        return
    loaded = load_program(first)
    other = loaded if second is None else load_program(second)
    with torch.no_grad(), redirect_stdout(sys.stderr):
        made = [_compiled(one, loaded, text) for one, text in ((loaded, base), (other, options))]
        results = [call(*loaded.args, **loaded.kwargs) for call, _ in made]
        found = compare_units(made[0][1], made[1][1], (results[0], results[1]))
        checks = [_check(unit, loaded) for _, unit in made]
        of_eager = first_difference(loaded(), results[0], "eager's result")
        times = None
        if timed:
            one, two = (partial(call, *loaded.args, **loaded.kwargs) for call, _ in made)
            times = race(one, two, _ROUNDS, _BUDGET_S)
    if json:
        numeric = [[one.to_dict() for one in each] for _, each in checks]
        told = {
            **found.to_dict(),
            "passes": [text for text, _ in checks],
            "numeric": numeric,
            "against eager": of_eager,
        }
        typer.echo(json_.dumps({**told, "race": None if times is None else times.to_dict()}, indent=2))
        return
    out = console()
    for line in _lines(found, checks, of_eager, times):
        out.print(line, soft_wrap=True)


def _compiled(program: Target, arguments: Target, text: str) -> tuple[Any, Unit]:
    """The program compiled and called twice. Raises: typer.BadParameter; SmeltError (S0106) if it is not one graph."""
    try:
        options = json_.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not JSON: {error}", param_hint="--options") from None
    compiled = smelt.compile(program.function, options={"adaptive": False, **options})
    with in_users_program(program):
        compiled(*arguments.args, **arguments.kwargs)
    units = compiled_units(compiled)
    if len(units) != 1:
        raise SmeltError(
            f"{program.name} is not compiled as one graph: {smelt.explain(compiled).verdict['what']}",
            why="what is compared are two graphs and their plans",
            fix="`smelt explain` says what became of it",
            code="S0106",
        )
    return compiled, units[0]


def _check(unit: Unit, loaded: Target) -> tuple[str, list[Checked]]:
    """The first pass of a unit after which a value differs on these arguments, in words; all that move any value."""
    if unit.acts:
        return "not checked: a call has effects", []
    inputs = unit.signature.flatten(loaded.args, loaded.kwargs)
    try:
        found = check_passes(unit.graph, exact_passes(unit.options), inputs, unit.lookup)
    except SmeltError as error:
        return f"not checked: {error.what}", []
    wrong = next((one for one in found if one.first), None)
    if wrong is not None:
        return f"{wrong.name}: {wrong.first}", found
    return "every pass keeps every value", found


def _lines(found: Comparison, checks: list[tuple[str, list[Checked]]], of_eager: str, times: Race | None) -> list[str]:
    lines = [f"nodes      {found.nodes[0]} and {found.nodes[1]}"]
    lines += [f"           {op}: {a} and {b}" for op, (a, b) in found.operators.items()]
    lines.append(f"kernels    {found.shared_kernels} in both")
    lines += [f"           only the first: {what}" for what in found.kernels[0]]
    lines += [f"           only the second: {what}" for what in found.kernels[1]]
    for what, (a, b) in found.memory.items():
        lines.append(f"memory     {what.removesuffix('_nbytes')}: {size(a)} and {size(b)}")
    lines.append(f"results    {found.results or 'equal but for rounding'}")
    if of_eager:
        lines.append(f"           {of_eager}")
    for name, (text, each) in zip(("first", "second"), checks, strict=True):
        lines.append(f"passes     {name}: {text}")
        lines += [f"           {one.name}: {one.first or f'rounds by {one.largest:.0e}'}" for one in each]
    if times is not None:
        lines.append(f"time       first {times.eager}, second {times.compiled}")
        if times.is_busy:
            lines.append("           busy machine: not a measurement")
    return [*lines, *(["", *found.graph] if found.graph else [])]
