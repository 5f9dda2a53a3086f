"""`smelt run`: a program, eager and compiled, side by side: was it worth it, and is the answer the same?"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from rich.text import Text
from torch import Tensor

import smelt
from smelt.cli.ingot import is_ingot, run_ingot
from smelt.cli.target import HELP, Target, tensors_in
from smelt.cli.users_program import in_users_program, load_program, note_training
from smelt.diag import VerifyError
from smelt.diag.console import console, progress
from smelt.inspect.kernels import compiled_units
from smelt.inspect.shares import time_share
from smelt.inspect.verdict import Race, duration, lines_of, race

_BUDGET_S = 20.0  # of calls in turns, after which no further round begins
_REDRAWN_S = 0.2


def run(
    target: Annotated[str, typer.Argument(help=HELP, show_default=False)],
    repeats: Annotated[int, typer.Option(min=1, help="Calls of each, eager and compiled interleaved.")] = 20,
    strict: Annotated[bool, typer.Option("--strict", help="A fallback is an error, not a warning.")] = False,
    tolerance: Annotated[float, typer.Option(min=0, help="Largest relative difference that is let pass.")] = 1e-3,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", help="An ingot's argument: NAME=FILE.npy, or POSITION=FILE.npy.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write an ingot's results to this .npz file.")] = None,
    entry: Annotated[str, typer.Option(help="The ingot's entry point.")] = "forward",
) -> None:
    """Run a program, eager and compiled, and compare results and times.

    A saved program (a file that ends with .ingot) runs by itself, with
    the arrays that --input names; sizes and dtypes must be those that it
    was saved for. Results are printed, and written by --output.

    On top stands what became of it and whether it pays: medians and
    quartiles of both, threads, the machine's load. Where a thread had to
    wait for a core, that is said, and the times are no measurement. Exit
    code 1 if the results differ by more than --tolerance, relative to the
    largest value of each result.

    \b
    Examples:
      smelt run model.py:mlp
      smelt run my_package.model:mlp --repeats 100 --strict
      smelt run m.ingot --input 0=x.npy --output out.npz
    """
    if is_ingot(target):
        run_ingot(target, inputs or [], output, entry)
        return
    loaded = load_program(target)
    note_training(loaded)
    with torch.no_grad(), redirect_stdout(sys.stderr), progress(auto_refresh=False) as bar:
        # What the program prints is no part of the table.
        task = bar.add_task("eager", total=repeats + 2)
        before = Start(loaded)
        with in_users_program(loaded):
            expected = _copies(loaded())
        before.restore()
        bar.update(task, description="compiling", advance=1, refresh=True)
        start = time.perf_counter()
        function = smelt.compile(loaded.function, options={"strict": strict, "adaptive": False})
        compiled = Target(loaded.name, function, loaded.args, loaded.kwargs)
        with in_users_program(loaded):
            found = _copies(compiled())
        first_s = time.perf_counter() - start
        before.restore()
        again = _copies(compiled())  # the first answer is that of the run that was recorded
        bar.update(task, description="eager and compiled, interleaved", advance=1, refresh=True)
        times = race(loaded, compiled, repeats, _BUDGET_S, _steps(lambda: bar.update(task, advance=1), bar.refresh))
        report = smelt.explain(function).timed(times, _share(function, loaded))
    difference = max((_difference(expected, answer) for answer in (found, again)), key=_nan_last)
    out = console()
    out.print(Text(loaded.name, style="bold"), soft_wrap=True)
    out.print("\n".join(lines_of(report.verdict)), soft_wrap=True)
    out.print(_table(times, first_s, difference))
    for tensor in found:
        typer.echo(f"result {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}")
    if not difference <= tolerance:  # also if it is nan
        raise VerifyError(
            f"the compiled {loaded.name} differs from eager by {difference:.1e}",
            why=f"the tolerance is {tolerance:.1e}",
            fix="`smelt explain` shows how each node runs; random numbers and changing state differ by themselves",
            code="S0503",
        )


def _steps(advance: Callable[[], Any], redraw: Callable[[], Any]) -> Callable[[], None]:
    """Advances a bar after each round, and draws it now and then: a thread that draws would be measured, too."""
    drawn = time.perf_counter()

    def step() -> None:
        nonlocal drawn
        advance()
        if time.perf_counter() - drawn > _REDRAWN_S:
            redraw()
            drawn = time.perf_counter()

    return step


def _share(function: Any, loaded: Target) -> float | None:
    """The share of time in own kernels, where one graph serves the call."""
    try:
        (unit,) = compiled_units(function)
    except (ValueError, AttributeError):
        return None
    return time_share(unit, loaded.args, loaded.kwargs)


def _table(times: Race, first_s: float, difference: float) -> Table:
    out = Table("", "eager", "smelt")
    gained_s = times.eager.median - times.compiled.median
    out.add_row("first call, compiling included", "-", duration(first_s))
    out.add_row(f"median of {len(times.eager.samples)}", duration(times.eager.median), duration(times.compiled.median))
    out.add_row("speed-up", "1.00x", f"{times.speed_up:.2f}x")
    if gained_s > 0:
        out.add_row("paid back after", "-", f"{max(1, round(first_s / gained_s)):,} calls")
    out.add_row("largest relative difference", "-", f"{difference:.1e}")
    return out


class Start:
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
