"""`smelt bench`: Smelt and its peers on the same models."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from smelt.bench import report
from smelt.bench import rows as rows_
from smelt.bench.measure import Plan
from smelt.bench.models import MODELS, Model
from smelt.bench.on_gpu import SYSTEMS
from smelt.bench.rows import Row
from smelt.bench.suite import EAGER, Suite, Watch, run
from smelt.bench.systems import DTYPES, System, missing, systems
from smelt.bench.training import training_systems
from smelt.bench.training_models import TRAINING_MODELS
from smelt.bench.wide.wide_models import WIDE_MODELS
from smelt.cli.bench_gpu import bench_gpu
from smelt.cli.ingot import bench_ingot, is_ingot
from smelt.diag.console import console, progress

SUITES = {"own": MODELS, "wide": WIDE_MODELS, "all": (*MODELS, *WIDE_MODELS)}
_PAPER = 170  # characters of a line where the table goes to a file
_QUICK_PLAN = Plan(repeats=5, sample_ms=0.3, budget_s=0.5, blocks=False)
_QUICK_S = 60.0
_QUICK_MODELS = ("lerp200", "iou", "lstm", "attention", "mlp_4x128")
_QUICK_PEERS = ("smelt", "onnxruntime", "openvino")
_QUICK_STEPS = ("mlp_step", "lstm_step", "nano_gpt_b2_step")
_QUICK_TRAINERS = ("eager-fused", "smelt", "smelt-fused", "smelt-step")
"""What `--quick` measures where nothing is named: within a minute."""


def _names(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    """A comma-separated list of known names, "all" for every one.

    Raises: typer.BadParameter, which lists the known names.
    """
    if text.strip() == "all":
        return tuple(known)
    names = tuple(dict.fromkeys(n.strip() for n in text.split(",") if n.strip()))
    unknown = [n for n in names if n not in known]
    if unknown or not names:
        problem = f"unknown {what} {', '.join(map(repr, unknown))}" if unknown else f"no {what} is named"
        raise typer.BadParameter(f"{problem}; known are: {', '.join(known)}")
    return names


def _listed(items: Sequence[Model | System]) -> str:
    """Models or systems, one line each, for the help text."""
    return "\n".join(f"  {item.name:<20}{item.summary}" for item in items)


def bench(
    ingot: Annotated[
        str, typer.Argument(help="A saved program to time by itself, a file that ends with .ingot.", show_default=False)
    ] = "",
    models: Annotated[str, typer.Option(help="Which models, comma-separated, or 'all'.")] = "all",
    suite: Annotated[
        str, typer.Option(help="Which models there are: own, wide (other kinds, each for 1 and 8 samples), or all.")
    ] = "own",
    peers: Annotated[
        str, typer.Option(help="Which systems, comma-separated, or 'all'. Eager always runs: ratios are to it.")
    ] = "all",
    json: Annotated[Path | None, typer.Option(help="Write the rows to this file, after every model.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a plot of the speed-ups to this PNG (or SVG, PDF).")] = None,
    ranking: Annotated[
        Path | None,
        typer.Option(help="Write one page with the ratios to the best peer, sorted, to this PNG."),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="f32, bf16 (the program in bf16), mixed (the f32 program, products in bf16), or several: f32,mixed. "
            "Rows of a dtype only meet their own."
        ),
    ] = "f32",
    train: Annotated[
        bool, typer.Option("--train", help="Time whole training steps: their own models and systems.")
    ] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads that every system may use.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; in each, every system is timed once.")] = 30,
    budget: Annotated[
        float, typer.Option(min=0.1, help="Seconds of timing per system and model, then it stops.")
    ] = 60.0,
    rest: Annotated[
        float,
        typer.Option(min=0.0, help="Milliseconds of rest before each timing: peers' threads spin for a while."),
    ] = 50.0,
    prepare_budget: Annotated[
        float, typer.Option(min=1.0, help="Seconds that one compile, or one start-up process, may take.")
    ] = 300.0,
    cold: Annotated[
        bool, typer.Option(help="Measure first results in fresh processes (most of the total time).")
    ] = True,
    skip_cold: Annotated[str, typer.Option(help="Systems whose start-up is not measured, comma-separated.")] = "",
    one_thread: Annotated[bool, typer.Option(help="Also prepare and time every system with one thread.")] = True,
    blocks: Annotated[bool, typer.Option(help="Also time each system alone, as `blocks_ms` in the JSON.")] = True,
    competing: Annotated[
        bool, typer.Option(help="Time beside a process that keeps one core busy: rows of their own, no start-ups.")
    ] = False,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="Count CPU time instead of the clock's, for busy machines; one thread.")
    ] = False,
    quick: Annotated[
        bool, typer.Option(help="A look within a minute: five small models, three systems, few short rounds.")
    ] = False,
    earlier: Annotated[
        Path | None, typer.Option("--from", help="Measure nothing: show, and plot, the rows of this file.")
    ] = None,
    update: Annotated[
        bool, typer.Option(help="Keep the rows of an existing --json that are not measured now.")
    ] = False,
    device: Annotated[
        str, typer.Option(help="cpu, or cuda: by events, beside Inductor's modes; --models, --peers, --dtype, --json.")
    ] = "cpu",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --device cuda: compile the models' kernels, without a GPU.")
    ] = False,
) -> None:
    if ingot:
        if not is_ingot(ingot):
            raise typer.BadParameter(f"{ingot!r} is no saved program: its name does not end with .ingot")
        bench_ingot(ingot, threads)
        return
    if device not in ("cpu", "cuda") or (dry_run and device == "cpu"):
        raise typer.BadParameter(f"{device!r} is neither cpu nor cuda, or --dry-run has no GPU", param_hint="--device")
    if suite not in SUITES:
        raise typer.BadParameter(f"{suite!r} is none of {', '.join(SUITES)}", param_hint="--suite")
    if device == "cuda":
        known = tuple(m.name for m in SUITES[suite])
        chosen_models = _checked("--models", models, known, "model")
        peers_ = _checked("--peers", peers, SYSTEMS, "system")
        dtypes = _checked("--dtype", dtype, ("f32", "bf16"), "dtype")
        bench_gpu(
            [m for m in SUITES[suite] if m.name in chosen_models], peers_, [DTYPES[d] for d in dtypes], json, dry_run
        )
        return
    every_system, every_model = (training_systems(), TRAINING_MODELS) if train else (systems(), SUITES[suite])
    names = [s.name for s in every_system]
    if quick and (train or suite == "own"):
        models = ",".join(_QUICK_STEPS if train else _QUICK_MODELS) if models == "all" else models
    if quick:
        peers = ",".join(_QUICK_TRAINERS if train else _QUICK_PEERS) if peers == "all" else peers
    if cpu_time and threads > 1:
        raise typer.BadParameter("CPU time is that of one thread: add --threads 1", param_hint="--cpu-time")
    chosen_models = _checked("--models", models, tuple(m.name for m in every_model), "model")
    chosen = {EAGER, *_checked("--peers", peers, names, "system")}
    dtypes = _checked("--dtype", dtype, tuple(DTYPES), "dtype")
    if earlier is not None:
        _show_earlier(earlier, chosen_models, dtypes, competing, _Pictures(plot, ranking))
        return
    warm_only = set(_checked("--skip-cold", skip_cold, names, "system")) if skip_cold else set()
    kept = _existing_rows(json) if update and json is not None else []
    plan = _QUICK_PLAN if quick else Plan(repeats=repeats, budget_s=budget, blocks=blocks)
    chosen_suite = Suite(
        models=tuple(m for m in every_model if m.name in chosen_models),
        systems=tuple(s for s in every_system if s.name in chosen),
        dtypes=dtypes,
        threads=threads,
        plan=replace(plan, cpu_time=cpu_time, rest_ms=0.0 if cpu_time else rest),
        cold=frozenset(chosen - warm_only if cold and not quick and not competing else ()),
        one_thread=one_thread and not quick and not competing and threads > 1,
        prepare_budget_s=prepare_budget,
        competing=competing,
        limit_s=_QUICK_S if quick else None,
    )
    _run_and_report(chosen_suite, kept, json, _Pictures(plot, ranking))


bench.__doc__ = f"""Time Smelt and its peers on the same models, beside the machine's roofline bounds.

Every system runs at its best settings for the latency of one call (they
are written into the JSON), warmed up, in interleaved rounds, so that a busy
machine slows all alike: trust the ratios within a model, not the
milliseconds. Outputs are compared with eager's and with a float64 run.
First results are measured in fresh processes, with empty caches and then
again with the caches that the first one filled. A system that fails
gets a row that says why.

Two more rows per model say how fast this machine could be: gemm-library,
its matrix products and convolutions alone as library calls on packed
weights, and fma-floor, their operations at the measured peak of fused
multiply-adds. Programs without products get a copy-floor instead, those
that mostly read their weights (one token at a time) a read-floor besides.

\b
Models:
{_listed(MODELS)}

\b
Systems:
{_listed(systems())}

\b
With --suite wide, models:
{_listed(WIDE_MODELS)}

\b
With --train, models (a step is: loss, backward, AdamW):
{_listed(TRAINING_MODELS)}

\b
With --train, systems:
{_listed(training_systems())}

\b
Examples:
  smelt bench --quick
      a first look, within a minute
  smelt bench --train --quick
      the same for training steps
  smelt bench --train --threads 1 --cpu-time --no-cold
      training steps on a machine that others use, too
  smelt bench --from bench/results/zen5.json --plot zen5.png
      the table and the picture of an earlier run
  smelt bench --models bert --peers inductor,openvino --json b.json --plot b.png
      one model against two peers, start-ups included
  smelt bench --json all.json --plot all.png --skip-cold inductor-max
      everything (an hour or more)
  smelt bench --models mlp --dtype f32,bf16 --no-cold
      f32 and bf16 rows, each with its own ratios
  smelt bench --models bert,vit --dtype mixed --peers smelt,openvino
      f32 models with bf16 products; errors are against float64
  smelt bench --suite wide --no-cold --json wide.json --ranking wide.png
      models of other kinds, and one page of ratios to the best peer
  smelt bench --competing --json all.json --update
      everything again while another process keeps one core busy
  smelt bench --device cuda --models bert,gpt2 --dtype f32,bf16
      on a GPU, by events, against Inductor's modes with CUDA graphs
  smelt bench --device cuda --dry-run
      the models' kernels compiled for a GPU that is not there
  smelt bench --models gpt2 --json all.json --update
      measure one model again and keep the other rows of the file
"""


class _Pictures(NamedTuple):
    """The files that pictures are asked for in."""

    plot: Path | None
    ranking: Path | None


def _show_earlier(
    file: Path, models: Sequence[str], dtypes: Sequence[str], competing: bool, pictures: _Pictures
) -> None:
    """The rows of an earlier run. Raises: typer.BadParameter where there is no such file."""
    if not file.is_file():
        raise typer.BadParameter(f"there is no file {file}", param_hint="--from")
    rows = [
        row for row in _existing_rows(file)
        if row.model in models and row.dtype in dtypes and row.competing == competing
    ]  # fmt: skip
    _print_table(rows)
    _finish(rows, None, pictures, console(sys.stderr))


def _print_table(rows: Sequence[Row]) -> None:
    out = console()
    wide = out if out.is_terminal else console(width=_PAPER)
    wide.print(report.table(rows, wide.width))


def _say_before(suite: Suite, log: Console) -> None:
    """How long it will take, and all packages that are not there."""
    packages = dict.fromkeys(p for s in suite.systems for p in s.packages)
    packages.update(dict.fromkeys(p for m in suite.models for p in m.needs))
    if absent := missing(list(packages)):
        log.print(absent, soft_wrap=True)
    seconds = suite.estimate_s()
    took = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
    what = f"{len(suite.models)} models, {len(suite.systems)} systems, up to {suite.plan.repeats} rounds"
    log.print(f"about {took} on a quiet machine: {what}", soft_wrap=True)


def _checked(option: str, text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    """`_names` with the option's name in the message."""
    try:
        return _names(text, known, what)
    except typer.BadParameter as error:
        error.param_hint = option
        raise


def _existing_rows(path: Path) -> list[Row]:
    """The rows of an earlier run, none where there is no file yet."""
    if not path.exists():
        return []
    try:
        return rows_.read(path)
    except (OSError, ValueError, TypeError) as error:
        raise typer.BadParameter(str(error), param_hint="--json") from None


def _run_and_report(suite: Suite, kept: list[Row], json: Path | None, pictures: _Pictures) -> None:
    """Run with a progress bar, keep the JSON up to date, then show the table and draw the plot.

    An interrupt keeps what is complete and exits with 130.
    """
    log = console(sys.stderr)
    _say_before(suite, log)
    rows: list[Row] = []
    left_out: list[str] = []
    interrupted = False
    per_model = suite.steps_per_model()
    total = per_model * len(suite.models) * len(suite.dtypes)
    with progress(transient=False) as bar:
        task = bar.add_task("starting", total=total)

        def step(text: str) -> None:
            bar.update(task, description=text, advance=1)

        try:
            for done, of_model in enumerate(run(suite, Watch(step, left_out.append)), start=1):
                rows.extend(of_model)
                bar.update(task, completed=done * per_model)
                if json is not None:
                    rows_.write(rows_.merge(kept, rows), json)
        except KeyboardInterrupt:
            interrupted = True
    _print_table(rows)
    if left_out:
        log.print(f"no time was left for {', '.join(left_out)}: without --quick, or by --models, they are measured")
    _finish(rows_.merge(kept, rows), json, pictures, log)
    if interrupted:
        log.print(Text.assemble(("interrupted", "yellow"), ": the rows of complete models are written"))
        raise typer.Exit(130)


def _finish(rows: list[Row], json: Path | None, pictures: _Pictures, log: Console) -> None:
    """Say where the files are."""
    if json is not None and rows:
        log.print(f"rows: {json}")
    for name, path, draw in (
        ("plot", pictures.plot, report.plot), ("ranking", pictures.ranking, report.ranking),
    ):  # fmt: skip
        if path is not None:
            problem = draw(rows, path)
            log.print(Text.assemble((f"no {name}", "yellow"), f": {problem}") if problem else f"{name}: {path}")
