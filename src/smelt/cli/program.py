"""`smelt show`, `smelt explain`, `smelt run`: one program, named as `cli.target` says, seen from outside."""

from __future__ import annotations

import json as json_
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import smelt
from smelt.cli.ingot import is_ingot, show_ingot
from smelt.cli.run import Start
from smelt.cli.target import HELP, Target
from smelt.cli.users_program import in_users_program, load_program
from smelt.compiler import Unit
from smelt.diag import SmeltError
from smelt.diag.console import console
from smelt.inspect.gpu import GpuForm, gpu_listing
from smelt.inspect.kernels import Form, compiled_units, kernel_rows, listing
from smelt.inspect.roofline import measure_ceilings, plot_roofline
from smelt.inspect.shares import profile_of
from smelt.inspect.show import coloured, compact
from smelt.inspect.split import where_time_goes
from smelt.inspect.verdict import race
from smelt.ir import Graph

_PROFILED_CALLS = 20
_ROUNDS, _BUDGET_S = 20, 3.0
"""How often eager and compiled are called in turns, and for how long at most."""
TargetArgument = Annotated[str, typer.Argument(help=HELP, show_default=False)]


def show(
    target: TargetArgument,
    optimized: Annotated[bool, typer.Option("--optimized", help="The graph that runs for these arguments.")] = False,
    code: Annotated[bool, typer.Option("--code", help="The captured graph as Python that runs.")] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="Its own kernels, as loops a person can read.")] = False,
    llvm: Annotated[bool, typer.Option("--llvm", help="With --kernels: as LLVM text.")] = False,
    assembly: Annotated[bool, typer.Option("--assembly", help="With --kernels: as this machine's assembly.")] = False,
    triton: Annotated[bool, typer.Option("--triton", help="Its kernels for a GPU as Triton source.")] = False,
    ptx: Annotated[int, typer.Option(help="Those as PTX for a capability: 90 for 9.0.", show_default=False)] = 0,
    sass: Annotated[int, typer.Option(help="Those as machine instructions.", show_default=False)] = 0,
    where: Annotated[bool, typer.Option("--where/--no-where", help="Name the lines that operations came from.")] = True,
    width: Annotated[
        int | None, typer.Option(min=40, help="Characters of a line. Default: the terminal's, unbroken in a file.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="The graph's whole text, with each line's whole path.")] = False,
) -> None:
    """Print a program's graph: every operation with its type and source line.

    Of a saved program (a file that ends with .ingot) it shows the entry
    points, the state, what native code there is, and with --full the
    graphs; everything in the file is checked.

    The module and the source line come once before the lines that share
    them, and, for a line in a library, your own line that led to it.

    A target names a factory, a function without arguments that returns the
    program and what to call it with. In model.py:

    \b
      def mlp():
          model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU())
          return model.eval(), (torch.randn(4, 8),)

    \b
    Examples:
      smelt show model.py:mlp
          as captured: the operations that the program called
      smelt show model.py:mlp --optimized
          after all passes, as it runs for these shapes
      smelt show model.py:mlp --no-where --width 100
          without source lines, broken to fit
      smelt show model.py:mlp --full > graph.txt
          all that smelt.parse reads back, source lines included
      smelt show my_package.model:mlp --code > captured.py
          as Python that imports only torch
      smelt show model.py:mlp --kernels
          the loops that were fused, each with its operations and source lines
      smelt show model.py:mlp --kernels --assembly
          what the processor runs
      smelt show model.py:mlp --triton
          what a GPU would run, and which operators have no kernel there
      smelt show m.ingot
          what a saved program holds
    """
    if is_ingot(target):
        show_ingot(target, full)
        return
    if optimized + code + kernels + (triton or ptx > 0 or sass > 0) > 1 or (ptx > 0 and sass > 0):
        raise typer.BadParameter("--optimized, --code, --kernels, --triton, --ptx and --sass exclude each other")
    if (llvm and assembly) or ((llvm or assembly) and not kernels):
        raise typer.BadParameter("--llvm and --assembly are two forms of --kernels")
    loaded = load_program(target)
    with torch.no_grad():
        if kernels:
            form: Form = "llvm" if llvm else "assembly" if assembly else "loops"
            typer.echo("\n\n".join(listing(unit, form) for unit in _units(loaded)))
            return
        # What the program prints is no part of its graph's text.
        with redirect_stdout(sys.stderr), in_users_program(loaded):
            program = smelt.trace(loaded.function, loaded.args, dict(loaded.kwargs))
        if triton or ptx or sass:
            graph = program.graph_for(*loaded.args, **loaded.kwargs)
            of_gpu: GpuForm = "ptx" if ptx else "sass" if sass else "triton"
            typer.echo(gpu_listing(graph, of_gpu, ptx or sass or 90))
        elif optimized:
            _print_graph(program.graph_for(*loaded.args, **loaded.kwargs), where, width, full)
        elif code:
            typer.echo(program.code)
        else:
            _print_graph(program.graph, where, width, full)


def _print_graph(graph: Graph, where: bool, width: int | None, full: bool) -> None:
    """The graph's text; on a terminal in colours, broken to its width."""
    out = console()
    if full:
        typer.echo(graph)
        return
    wide = width if width is not None else out.width if out.is_terminal else None
    out.print(coloured(compact(graph, where=where, width=wide)), soft_wrap=True)


def _units(loaded: Target) -> list[Unit]:
    """The compiled units of one call. Raises: SmeltError (S0106) if it was not compiled."""
    compiled = smelt.compile(loaded.function)
    with redirect_stdout(sys.stderr), in_users_program(loaded):
        compiled(*loaded.args, **loaded.kwargs)
    units = compiled_units(compiled)
    if not units:
        raise SmeltError(
            f"{loaded.name} was not compiled",
            why="the original program ran instead",
            fix="`smelt explain` says why",
            code="S0106",
        )
    return units


def explain(
    target: TargetArgument,
    html: Annotated[Path | None, typer.Option(help="Write the report as one HTML page for a browser.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON instead of text.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="All rows: no guard, node or pass is only counted.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Measure each kernel of 20 calls, and where a call's time goes.")
    ] = False,
    roofline: Annotated[Path | None, typer.Option(help="Plot the kernels below the machine's ceilings.")] = None,
    timed: Annotated[
        bool,
        typer.Option("--time/--no-time", help="Also time it against eager, interleaved, for at most a few seconds."),
    ] = True,
    width: Annotated[int | None, typer.Option(min=40, help="Characters of a line. Default: the terminal's.")] = None,
) -> None:
    """Compile a program, call it, and say what became of it.

    On top stands whether it pays: eager against compiled, and how much of
    the time and of the operations own kernels do. Below it the graphs, what
    ran in Python and why calls compiled anew, how nodes run (own kernel,
    library, dispatcher, Python), the guards with the source line each came
    from, memory, passes, compile time by stage.

    \b
    Examples:
      smelt explain model.py:mlp
          as text, what holds of every program counted only (--all: all of it)
      smelt explain model.py:mlp --html report.html
          for a browser: source, graph and kernels linked, passes, memory, guards
      smelt explain model.py:mlp --json | jq .fallbacks
          for a program
      smelt explain model.py:mlp --profile --roofline roofline.png
          with each kernel's time, GB/s and GFLOP/s, and the plot of them; what
          of a call goes to Python, guards, entry, each kind of kernel and
          memory, against the same of eager
    """
    for path in (html, roofline):
        if path is not None and not path.absolute().parent.is_dir():
            raise _unwritable(path, "its folder does not exist")
    loaded = load_program(target)
    measures = profile or roofline is not None
    compiled = smelt.compile(loaded.function, options={"profile": measures, "adaptive": False})
    with torch.no_grad(), redirect_stdout(sys.stderr), in_users_program(loaded):
        for _ in range(1 + _PROFILED_CALLS * measures):
            compiled(*loaded.args, **loaded.kwargs)
        report = smelt.explain(compiled)
        if timed:
            report = _timed(report, loaded, compiled, ceilings=html is not None)
        if profile:
            start = Start(loaded)
            report = report.divided(where_time_goes(loaded.function, compiled, loaded.args, loaded.kwargs))
            start.restore()
    if roofline is not None:
        why_not = plot_roofline(kernel_rows(compiled_units(compiled)), measure_ceilings(), roofline)
        typer.echo(why_not or f"roofline: {roofline}", err=True)
    if html is not None:
        try:
            report.to_html(html)
        except OSError as error:
            raise _unwritable(html, error.strerror or str(error)) from None
        typer.echo(f"report: {html}", err=True)
    if json:
        typer.echo(json_.dumps(report.to_dict(), indent=2))
    elif html is None:
        typer.echo(report.to_text(everything=everything, width=width))


def _timed(report: smelt.Report, loaded: Target, compiled: Any, ceilings: bool) -> smelt.Report:
    """The report with the times of eager and compiled, of each instruction, and, if asked, the machine's ceilings."""
    before = Start(loaded)

    def eager() -> Any:
        return loaded()

    def ours() -> Any:
        return compiled(*loaded.args, **loaded.kwargs)

    units = compiled_units(compiled)
    times = race(eager, ours, _ROUNDS, _BUDGET_S)
    before.restore()
    measured = profile_of(units[0], loaded.args, loaded.kwargs) if len(units) == 1 else None
    before.restore()
    timed = report.timed(times, None if measured is None else measured.own_share)
    return timed.measured(measured, measure_ceilings() if ceilings else None)


def _unwritable(path: Path, why: str) -> SmeltError:
    return SmeltError(f"{path} cannot be written: {why}", code="S0501")
