"""`smelt show`, `smelt explain`, `smelt run`: one program, named as `cli.target` says, seen from outside."""

from __future__ import annotations

import json as json_
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from torch import Tensor

import smelt
from smelt.cli.target import HELP, Target, load_target, tensors_in
from smelt.compiler import Unit
from smelt.diag import SmeltError, VerifyError
from smelt.diag.console import console
from smelt.inspect.kernels import Form, compiled_units, kernel_rows, listing
from smelt.inspect.roofline import measure_ceilings, plot_roofline

_PROFILED_CALLS = 20
TargetArgument = Annotated[str, typer.Argument(help=HELP, show_default=False)]


def show(
    target: TargetArgument,
    optimized: Annotated[bool, typer.Option("--optimized", help="The graph that runs for these arguments.")] = False,
    code: Annotated[bool, typer.Option("--code", help="The captured graph as Python that runs.")] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="Its own kernels, as loops a person can read.")] = False,
    llvm: Annotated[bool, typer.Option("--llvm", help="With --kernels: as LLVM text.")] = False,
    assembly: Annotated[bool, typer.Option("--assembly", help="With --kernels: as this machine's assembly.")] = False,
) -> None:
    """Print a program's graph: every operation with its type and source line.

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
      smelt show my_package.model:mlp --code > captured.py
          as Python that imports only torch
      smelt show model.py:mlp --kernels
          the loops that were fused, each with its operations and source lines
      smelt show model.py:mlp --kernels --assembly
          what the processor runs
    """
    if optimized + code + kernels > 1:
        raise typer.BadParameter("--optimized, --code and --kernels exclude each other")
    if (llvm and assembly) or ((llvm or assembly) and not kernels):
        raise typer.BadParameter("--llvm and --assembly are two forms of --kernels")
    loaded = load_target(target)
    with torch.no_grad():
        if kernels:
            form: Form = "llvm" if llvm else "assembly" if assembly else "loops"
            typer.echo("\n\n".join(listing(unit, form) for unit in _units(loaded)))
            return
        with redirect_stdout(sys.stderr):  # what the program prints is no part of its graph's text
            program = smelt.trace(loaded.function, loaded.args, dict(loaded.kwargs))
        if optimized:
            typer.echo(program.graph_for(*loaded.args, **loaded.kwargs))
        else:
            typer.echo(program.code if code else program.graph)


def _units(loaded: Target) -> list[Unit]:
    """The compiled units of one call. Raises: SmeltError (S0106) if it was not compiled."""
    compiled = smelt.compile(loaded.function)
    with redirect_stdout(sys.stderr):
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
    html: Annotated[Path | None, typer.Option(help="Write the report as one HTML page.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON instead of text.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="All rows: no guard, node or pass is only counted.")
    ] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Measure each kernel of 20 calls.")] = False,
    roofline: Annotated[Path | None, typer.Option(help="Plot the kernels below the machine's ceilings.")] = None,
) -> None:
    """Compile a program, call it once, and say what became of it.

    The report has the graphs, what ran in Python and why calls compiled anew,
    the guards with the source line each came from, how nodes run (own kernel,
    library, dispatcher, Python), memory, passes, compile time by stage.

    \b
    Examples:
      smelt explain model.py:mlp
          as text, what holds of every program counted only (--all: all of it)
      smelt explain model.py:mlp --html report.html
          for a browser, the graphs included
      smelt explain model.py:mlp --json | jq .fallbacks
          for a program
      smelt explain model.py:mlp --profile --roofline roofline.png
          with each kernel's time, GB/s and GFLOP/s, and the plot of them
    """
    for path in (html, roofline):
        if path is not None and not path.absolute().parent.is_dir():
            raise _unwritable(path, "its folder does not exist")
    loaded = load_target(target)
    measures = profile or roofline is not None
    compiled = smelt.compile(loaded.function, options={"profile": measures})
    with torch.no_grad(), redirect_stdout(sys.stderr):
        for _ in range(1 + _PROFILED_CALLS * measures):
            compiled(*loaded.args, **loaded.kwargs)
    report = smelt.explain(compiled)
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
        typer.echo(report.to_text(everything=True) if everything else str(report))


def _unwritable(path: Path, why: str) -> SmeltError:
    return SmeltError(f"{path} cannot be written: {why}", code="S0501")


def run(
    target: TargetArgument,
    repeats: Annotated[int, typer.Option(min=1, help="Calls of each, eager and compiled in turns.")] = 20,
    strict: Annotated[bool, typer.Option("--strict", help="A fallback is an error, not a warning.")] = False,
    tolerance: Annotated[float, typer.Option(min=0, help="Largest relative difference that is let pass.")] = 1e-3,
) -> None:
    """Run a program, eager and compiled, and compare results and times.

    Exit code 1 if the results differ by more than --tolerance, relative to
    the largest value of each result.

    \b
    Examples:
      smelt run model.py:mlp
      smelt run my_package.model:mlp --repeats 100 --strict
    """
    loaded = load_target(target)
    with torch.no_grad(), redirect_stdout(sys.stderr):  # what the program prints is no part of the table
        before = _Start(loaded)
        expected = _copies(loaded())
        before.restore()
        start = time.perf_counter()
        function = smelt.compile(loaded.function, options={"strict": strict})
        compiled = Target(loaded.name, function, loaded.args, loaded.kwargs)
        found = _copies(compiled())
        first_s = time.perf_counter() - start
        before.restore()
        again = _copies(compiled())  # the first answer is that of the run that was recorded
        times = _in_turns(loaded, compiled, repeats)
    difference = max((_difference(expected, answer) for answer in (found, again)), key=_nan_last)
    out = Table("", "eager", "smelt", title=loaded.name, title_justify="left")
    out.add_row("first call, compiling included", "-", _time(first_s))
    out.add_row(f"median of {repeats}", *map(_time, times))
    out.add_row("speed-up", "1.00x", f"{times[0] / times[1]:.2f}x")
    out.add_row("largest relative difference", "-", f"{difference:.1e}")
    console().print(out)
    for tensor in found:
        typer.echo(f"result {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}")
    if not difference <= tolerance:  # also if it is nan
        raise VerifyError(
            f"the compiled {loaded.name} differs from eager by {difference:.1e}",
            why=f"the tolerance is {tolerance:.1e}",
            fix="`smelt explain` shows how each node runs; random numbers and changing state differ by themselves",
            code="S0503",
        )


class _Start:
    """What a call of a program starts from: torch's random numbers, and the contents of arguments and state."""

    def __init__(self, target: Target) -> None:
        held = tensors_in((*target.args, *target.kwargs.values()))
        if isinstance(target.function, torch.nn.Module):
            held += [*target.function.parameters(), *target.function.buffers()]
        self._held = [(tensor, tensor.detach().clone()) for tensor in held if tensor.layout is torch.strided]
        self._rng = torch.get_rng_state()

    def restore(self) -> None:
        """Put back what calls have changed; what they left alone is not written to."""
        for tensor, before in self._held:
            if tensor.shape == before.shape and _relative(before, tensor) != 0:
                tensor.copy_(before)
        torch.set_rng_state(self._rng)


def _copies(result: Any) -> list[Tensor]:
    """The tensors of a result, apart from what later calls may write to."""
    return [tensor.detach().clone() for tensor in tensors_in(result)]


def _nan_last(difference: float) -> float:
    return float("inf") if difference != difference else difference


def _in_turns(eager: Target, compiled: Target, repeats: int) -> tuple[float, float]:
    """Median seconds of a call of each, measured alternately."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for target, into in zip((eager, compiled), times, strict=True):
            start = time.perf_counter()
            target()
            into.append(time.perf_counter() - start)
    return median(times[0]), median(times[1])


def _difference(expected: list[Tensor], found: list[Tensor]) -> float:
    """The largest difference relative to the largest finite value of each expected tensor; inf if shapes differ."""
    if [(t.shape, t.dtype) for t in expected] != [(t.shape, t.dtype) for t in found]:
        return float("inf")
    return max((_relative(e, f) for e, f in zip(expected, found, strict=True)), default=0.0)


def _relative(expected: Tensor, found: Tensor) -> float:
    if expected.numel() == 0 or torch.equal(expected, found):
        return 0.0
    wide: Any = torch.complex128 if expected.is_complex() else torch.float64
    same = (expected == found) | (expected.isnan() & found.isnan())
    gap = torch.where(same, 0.0, (expected.to(wide) - found.to(wide)).abs()).nan_to_num(nan=float("inf"))
    finite = expected.to(wide)[expected.isfinite()].abs()
    scale = finite.max().item() if finite.numel() else 0.0
    return gap.max().item() / (scale or 1.0)


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
