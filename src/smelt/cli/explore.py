"""`smelt explore`: the atlas of architectures, and a program of your own beside them."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import smelt
from smelt.cli.target import HELP
from smelt.cli.users_program import in_users_program, load_program
from smelt.diag import SmeltError
from smelt.diag.console import console, progress
from smelt.inspect.atlas.card import Card
from smelt.inspect.atlas.models import ARCHITECTURES
from smelt.inspect.atlas.report import page_of, table_of, text_of
from smelt.inspect.atlas.survey import survey
from smelt.inspect.machine import load_average
from smelt.inspect.roofline import Ceilings, measure_ceilings

_Program = tuple[str, str, Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
_KNOWN = {one.name: one for one in ARCHITECTURES}
_WIDTH = 120
"""Characters of a line in a file."""


def explore(
    target: Annotated[str | None, typer.Argument(help=HELP, show_default=False)] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this architecture; can be repeated.")] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Only the program that is named.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the atlas as one HTML page.")] = None,
    pages: Annotated[Path | None, typer.Option(help="A folder for a page on each program, which --html links.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON instead of text.")] = False,
    ablation: Annotated[
        bool, typer.Option("--ablation/--no-ablation", help="Measure each program without each optimisation, too.")
    ] = True,
    seconds: Annotated[float, typer.Option(min=0.02, help="The longest that one pair is measured.")] = 0.3,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads. Default: torch's own number.")] = None,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="Count the processor's time on one thread, for busy machines.")
    ] = False,
) -> None:
    """Show how neural architectures look as graphs, what can be done about them, and what each step gives.

    Seventeen small architectures, from a feed-forward network to a greedy
    search: nodes, blocks, kernels, which passes change each, the time and
    memory of a call without each of them, other sizes, a training step,
    and what bounds it. A program of your own stands beside them, with
    what would help it next.

    \b
    Examples:
      smelt explore --html atlas.html --pages pages
          all of them, with the page of each to look inside (some minutes)
      smelt explore model.py:factory --alone
          your own program: what fires, what each gives, what to do next
      smelt explore --only bert --only resnet --no-ablation
          two of them, quickly
    """
    _check(target, only, alone, html, pages)
    if cpu_time:
        if threads not in (None, 1):
            raise typer.BadParameter("CPU time is that of one thread: add --threads 1", param_hint="--cpu-time")
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)
    ceilings = measure_ceilings()
    cards: list[Card] = []
    links: dict[str, str] = {}
    names = [] if alone else only or list(_KNOWN)
    with progress() as bar, redirect_stdout(sys.stderr):
        task = bar.add_task("compiling", total=len(names) + (target is not None))
        for name, summary, function, args, kwargs in _programs(target, names):
            bar.update(task, description=name)
            cards.append(
                survey(
                    name,
                    summary,
                    function,
                    args,
                    kwargs,
                    ceilings=ceilings,
                    seconds=seconds,
                    ablate=ablation,
                    cpu=cpu_time,
                )
            )
            if pages is not None and not cards[-1].failed:
                with torch.no_grad():
                    report = smelt.explain(function, *args, **kwargs)
                links[name] = _write(report, pages, name, (html or pages).absolute().parent)
            bar.advance(task)
    conditions = _conditions(ceilings, cpu_time)
    if html is not None:
        html.write_text(page_of(cards, conditions, links), encoding="utf-8")
        typer.echo(f"atlas: {html}", err=True)
    if json:
        found = {"conditions": conditions, "programs": [card.to_dict() for card in cards]}
        typer.echo(json_.dumps(found, indent=2))
        return
    out = console()
    if not out.is_terminal:
        out.width = _WIDTH
    out.print(table_of(cards))
    for card in cards:
        typer.echo(f"\n{text_of(card)}")
    typer.echo(f"\n{conditions}")


def _check(target: str | None, only: list[str] | None, alone: bool, html: Path | None, pages: Path | None) -> None:
    """Before anything is compiled. Raises: typer.BadParameter; SmeltError (S0501) for a folder that is not there."""
    for name in only or ():
        if name not in _KNOWN:
            raise typer.BadParameter(f"there is no {name!r}; there are {', '.join(_KNOWN)}", param_hint="--only")
    if alone and target is None:
        raise typer.BadParameter("--alone needs a program")
    for path in (html, pages):
        if path is not None and not path.absolute().parent.is_dir():
            raise SmeltError(f"{path} cannot be written: its folder does not exist", code="S0501")


def _programs(target: str | None, names: Sequence[str]) -> Iterator[_Program]:
    """The user's own program, if one is named, then the architectures."""
    if target is not None:
        loaded = load_program(target)
        with in_users_program(loaded):
            loaded()
        yield target, "your program", loaded.function, loaded.args, loaded.kwargs
    for name in names:
        one = _KNOWN[name]
        yield name, one.summary, *one.build(), {}


def _conditions(ceilings: Ceilings, cpu: bool) -> str:
    what = "Times are of the processor, medians" if cpu else "Times are medians"
    return (
        f"torch {torch.__version__}, Smelt {smelt.__version__}, {ceilings.threads} threads, load {load_average():.1f}; "
        f"ceilings of this machine: {ceilings.gflops:.0f} GFLOP/s, {ceilings.gbps:.0f} GB/s. {what}, "
        "interleaved with what they are compared to."
    )


def _write(report: smelt.Report, folder: Path, name: str, base: Path) -> str:
    """Write the page on one program; its address, seen from a page in `base`."""
    folder.mkdir(exist_ok=True)
    path = folder / ("".join(sign if sign.isalnum() else "-" for sign in name) + ".html")
    whole = report.to_html(path).absolute()
    return whole.relative_to(base).as_posix() if base in whole.parents else whole.as_uri()
