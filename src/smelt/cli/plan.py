"""`smelt plan`: what a training step on a mesh of ranks will take, before there is one."""

from __future__ import annotations

import inspect
import json as json_
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

import smelt
from smelt.cli.target import HELP, checked, load_made
from smelt.diag import ScheduleError, SmeltError
from smelt.inspect.ranks.cluster import local_figures
from smelt.inspect.ranks.planned import page_of, text_of, to_dict
from smelt.parallel.mesh import Mesh
from smelt.parallel.module import positional
from smelt.parallel.proving.figures import TYPICAL, Figures, Kernels, link_of, rate_of
from smelt.schedules import Ready
from smelt.scheduling import Schedule
from smelt.scheduling.ranks.parallel_steps import marks_of
from smelt.scheduling.ranks.planning import grown, meta_copy, plan_on, runs_without_data

_Order = Literal["1f1b", "gpipe", "interleaved"]
_Optimizer = Literal["adamw", "momentum", "sgd", "none"]


def plan(
    target: Annotated[str, typer.Argument(help=HELP + " Or it returns a smelt.Schedule.", show_default=False)],
    mesh: Annotated[str, typer.Option(help="The axes and their sizes: dp=64,tp=8,pp=4.", show_default=False)],
    batch: Annotated[int | None, typer.Option(min=1, help="Samples of a step, of all ranks together.")] = None,
    schedule: Annotated[
        _Order,
        typer.Option(help="Of a pipeline: 1f1b stores few microbatches, gpipe all; interleaved: more stages a rank."),
    ] = "1f1b",
    microbatches: Annotated[
        int | None,
        typer.Option(min=1, help="Of a pipeline: with more, ranks wait less and send more. Default: by the batch."),
    ] = None,
    stages: Annotated[
        int | None,
        typer.Option(min=1, help="Of a pipeline: twice the ranks, say, with interleaved. Default: one a rank."),
    ] = None,
    optimizer: Annotated[_Optimizer, typer.Option(help="Whose state takes memory.")] = "adamw",
    forward: Annotated[bool, typer.Option("--forward", help="Results alone: no gradients, no update.")] = False,
    flops: Annotated[str | None, typer.Option(help="A rank's operations a second in products: 300T.")] = None,
    memory: Annotated[str | None, typer.Option(help="A rank's memory bandwidth: 2000GB/s.")] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(help="Latency and bandwidth, of an axis or of all: tp=5us,200GB/s."),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure kernels and links here, once; cached on disk.")
    ] = True,
    threads: Annotated[int, typer.Option(min=1, help="Of a rank, where kernels are measured.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON instead of text.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write it as one HTML page: graph, placements, time line.")] = None,
) -> None:
    """Predict memory, traffic and time of each rank of a mesh, for up to some thousand ranks, within seconds.

    The model is captured without data (on torch's meta device), divided, and
    its graph counted; ranks that do the same are counted once. docs/parallel.md
    has the equations, and how well they fit runs of 1, 2 and 4 processes.

    Axes called tp..., dp... and pp... are divided by the ready schedules
    tensor_parallel, data_parallel and pipeline; --stages, --microbatches and
    --schedule are what pipeline takes. A factory that returns a smelt.Schedule
    has said itself what is divided how. Arguments may have names:
    return model, (), {"input_ids": ids, "labels": ids}

    \b
    In model.py:
      def gpt():
          model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
          return model, (torch.randn(8, 512),)

    \b
    Examples:
      smelt plan model.py:gpt --mesh tp=2
          two ranks, as fast as this machine and gloo
      smelt plan model.py:gpt --mesh dp=64,tp=8 --batch 4096
          512 ranks; the factory's arguments are made as long as the batch
      smelt plan model.py:gpt --mesh tp=8 --flops 300T --memory 2TB/s --link 5us,200GB/s
          for other machines than this one
      smelt plan model.py:gpt --mesh pp=2 --microbatches 4 --html plan.html
          stages, and the page with the time line
      smelt plan model.py:gpt --mesh pp=2 --stages 4 --schedule interleaved --microbatches 4
          two stages on each rank: see how long ranks wait then
    """
    axes = Mesh.of(mesh)
    figures = _figures(flops, memory, link or [], measure, threads)
    with redirect_stdout(sys.stderr), torch.random.fork_rng(), _without_own_lines():
        scheduled = _scheduled(target, axes, batch, schedule, microbatches, stages)
        found = plan_on(scheduled._state, axes, figures, optimizer=optimizer, training=not forward)
    if html is not None:
        try:
            html.write_text(page_of(found, target), encoding="utf-8")
        except OSError as error:
            raise SmeltError(f"{html} cannot be written: {error.strerror or error}", code="S0501") from None
        typer.echo(f"page: {html}", err=True)
    typer.echo(json_.dumps(to_dict(found), indent=2) if json else text_of(found))


@contextmanager
def _without_own_lines() -> Iterator[None]:
    """Within it, an error about a step that this file takes names no line of this file."""
    try:
        yield
    except SmeltError as error:
        if error.where is None or error.where.file != __file__:
            raise
        raise SmeltError(
            error.what, why=error.why, code=error.code, notes=error.notes, fix="--batch, or another --mesh"
        ) from None


def _figures(flops: str | None, memory: str | None, links: list[str], measure: bool, threads: int) -> Figures:
    """Measured, or typical ones, with what was given in their place. Raises: SmeltError (S0646)."""
    given: dict[str, float] = {}
    if flops is not None:
        given["product_gflops"] = rate_of(flops, "--flops") / 1e9
    if memory is not None:
        given["memory_gbps"] = rate_of(memory, "--memory") / 1e9
    named = dict(map(link_of, links))
    found = local_figures(threads) if measure and not (flops and memory and "" in named) else TYPICAL
    if flops is not None and memory is not None:
        # Of another machine: what else there is to know of it follows from these two.
        given |= {"element_gops": given["product_gflops"] / 8, "node_us": 2.0}
        given["update_ns"] = 28 / given["memory_gbps"]
    kernels = Kernels(**{**{k: getattr(found.kernels, k) for k in Kernels.__dataclass_fields__}, **given})
    told = [found.origin] if len(given) < 5 or "" not in named else []
    told += [text for text in (", ".join(given) and "kernels as you say", named and "links as you say") if text]
    return Figures(kernels, {**found.links, **named}, ", ".join(told))


def _scheduled(
    target: str, mesh: Mesh, batch: int | None, order: str, microbatches: int | None, stages: int | None
) -> Schedule:  # fmt: skip
    """The schedule that the factory returns, or the ready ones on its model. Raises: SmeltError (S0642)."""
    made = load_made(target)
    made = made.schedule if isinstance(made, Ready) else made
    if isinstance(made, Schedule):
        if batch is not None:
            raise typer.BadParameter("a schedule has its example inputs: give it a larger batch", param_hint="--batch")
        return made
    loaded = checked(target, made)
    if not isinstance(loaded.function, torch.nn.Module):
        raise ScheduleError(
            f"{target} gives a {type(loaded.function).__name__}", why="only a module can be divided among ranks",
            fix="return a torch.nn.Module and its arguments", code="S0605",
        )  # fmt: skip
    model = loaded.function
    args, named = positional(inspect.signature(type(model).forward), tuple(loaded.args), loaded.kwargs)
    if named:
        raise ScheduleError(
            f"{target} gives {', '.join(map(repr, named))}, which forward takes by name only",
            why="what is divided among ranks are positional arguments", fix="leave them out", code="S0605",
        )  # fmt: skip
    if batch is not None:
        bare = runs_without_data(model, args)
        model, args = meta_copy(model) if bare else model, grown(args, batch, has_data=not bare)
    found = smelt.schedule(model, tuple(args))
    for axis, size in mesh.axes:
        _divide(found, axis, size, order, microbatches, stages)
    return found


def _divide(
    found: Schedule, axis: str, size: int, order: str, microbatches: int | None, stages: int | None
) -> None:  # fmt: skip
    """Apply the ready schedule of an axis, by the letters that its name begins with."""
    if size == 1:
        return
    before = len(marks_of(found._state))
    if axis.startswith("tp"):
        ready = smelt.schedules.tensor_parallel(found, ranks=size, mesh_dim=axis)
    elif axis.startswith("dp"):
        ready = smelt.schedules.data_parallel(found, mesh_dim=axis)
    elif axis.startswith("pp"):
        ready = smelt.schedules.pipeline(
            found, stages=stages or size, ranks=size, mesh_dim=axis, microbatches=microbatches, schedule=order
        )
    else:
        raise SmeltError(
            f"there is no ready schedule for an axis {axis!r}", why="tp..., dp... and pp... are known", code="S0642",
            fix="call the axis so, or let the factory return a smelt.Schedule that divides along it",
        )  # fmt: skip
    if len(marks_of(found._state)) == before:
        raise SmeltError(
            f"the model cannot be divided among {size} ranks along {axis!r}", code="S0642",
            why="; ".join(ready.skipped[:3]) or "it has no product with a weight",
            fix="a smaller mesh along this axis, or, along the batch, a larger --batch",
        )  # fmt: skip
