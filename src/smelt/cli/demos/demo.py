"""`smelt demo`: a real sentence-embedding model, eager and compiled, on a real corpus."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import smelt
from smelt.cli.demos import demo_report
from smelt.cli.demos.demo_measure import Run, measure_pair, search
from smelt.cli.demos.demo_model import (
    MODEL_NAME,
    Batch,
    BatchShape,
    Embedder,
    find_corpus,
    find_model,
    load_model,
    make_batches,
    read_corpus,
)
from smelt.cli.demos.demo_probe import Reading, Request, System, build, read_in_fresh_process
from smelt.cli.demos.demo_report import Outcome, Starts
from smelt.diag import SmeltError, VerifyError
from smelt.diag.console import console, progress
from smelt.diag.records import record
from smelt.inspect.kernels import compiled_units, listing

QUERIES = (
    "How do plants live on sunlight?",
    "What happens to my money when everything gets more expensive?",
    "Tips for baking your own bread",
)
_QUICK_BATCHES = 3
_LARGEST_DIFFERENCE = 1e-3
"""Of the coordinates of unit vectors. f32 rounding in six layers gives about 1e-6; this is a wrong program."""


@record
class Settings:
    """What the demo runs. `fresh`: measure starts and memory in processes of their own."""

    model: Path
    corpus: Path
    shape: BatchShape
    rounds: int
    threads: int
    queries: tuple[str, ...]
    neighbours: int
    fresh: bool
    batch_limit: int | None


def demo(
    corpus: Annotated[
        Path | None, typer.Option(help="Text to embed, one sentence a line. Default: examples/sentences.txt.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the graphs, the report, the plot and the figures.")] = Path(
        "out/demo"
    ),
    query: Annotated[list[str] | None, typer.Option(help="What to search the corpus for; may be repeated.")] = None,
    neighbours: Annotated[int, typer.Option(min=1, help="Sentences shown for each query.")] = 3,
    batch: Annotated[int, typer.Option(min=1, help="Sentences per batch.")] = 16,
    tokens: Annotated[int, typer.Option(min=3, max=512, help="Tokens per sentence; longer ones are truncated.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="How often the whole corpus is embedded.")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads for both. Default: as PyTorch finds.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Three batches, one round, no fresh processes: a check, no measurement.")
    ] = False,
) -> None:
    """Embed a corpus with a real model, eager and compiled, and compare the two.

    The model is all-MiniLM-L6-v2 with its trained weights, which come in a
    Python package: nothing is downloaded when the demo runs. Each sentence
    becomes a vector of 384 numbers; sentences that mean alike get vectors
    that point alike, so a search is a product of vectors.

    One table says how long the first result takes (the model loaded already,
    compiling included, empty caches), how long a batch
    takes, and how much memory a process needs that does only this. Eager and
    compiled alternate on every batch, so a busy machine slows both: trust
    the speed-up more than the milliseconds. Then both search for the same queries; should they ever find other
    sentences, the exit code is 1.

    \b
    Files in --out:
      captured.txt    the graph as recorded, with the source lines
      optimized.txt   the graph that runs
      kernels.txt     the kernels made for it, as loops
      explain.txt     passes, kernels, guards, times
      explain.html    the same for a browser
      demo.png        time of every batch
      figures.json    the table's figures

    \b
    Examples:
      smelt demo
          the whole thing, about a minute
      smelt demo --quick --out /tmp/demo
          a check in seconds
      smelt demo --corpus notes.txt --query "when is the rent due?"
          search your own notes
      smelt demo --batch 1 --threads 1
          one sentence at a time on one thread
    """
    settings = Settings(
        model=find_model(),
        corpus=find_corpus(corpus),
        shape=BatchShape(batch, tokens),
        rounds=1 if quick else rounds,
        threads=threads or torch.get_num_threads(),
        queries=tuple(query) if query else QUERIES,
        neighbours=neighbours,
        fresh=not quick,
        batch_limit=_QUICK_BATCHES if quick else None,
    )
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        with tempfile.TemporaryDirectory(prefix="smelt-demo-") as kept_code:
            run_demo(settings, out, kept_code)
    finally:
        torch.set_num_threads(before)


def run_demo(settings: Settings, out: Path, cache_dir: str) -> Outcome:
    """Measure, show, write the files. `cache_dir`, empty at first, caches machine code meanwhile.

    Raises: VerifyError (S0503) if the compiled model's embeddings or neighbours differ from eager's, after all of it
        is shown and written.
    """
    out_console = console()
    sentences = read_corpus(settings.corpus)
    out.mkdir(parents=True, exist_ok=True)
    with progress() as bar:
        task = bar.add_task("loading the model", total=None)
        model, tokenizer = load_model(settings.model)
        batches = make_batches(tokenizer, sentences, settings.shape)[: settings.batch_limit]
        count = sum(b.used for b in batches)
        compiled, starts = _start(
            settings, model, batches[0], cache_dir, lambda text: bar.update(task, description=text)
        )
        bar.update(task, description="eager and compiled, interleaved", total=settings.rounds * len(batches))
        pair = measure_pair(model, compiled, batches, settings.rounds, lambda: bar.advance(task))
        query_batches = make_batches(tokenizer, settings.queries, settings.shape)
        answers = search(settings.queries, query_batches, model, compiled, pair, settings.neighbours)
    outcome = Outcome(count, settings.shape.rows, pair, starts, tuple(answers))
    _show(out_console, settings, outcome, sentences)
    _write_files(settings, outcome, model, compiled, batches[0], out, cache_dir)
    out_console.print(f"graphs, kernels, report, plot and figures: {out}")
    _check(outcome)
    return outcome


def _start(
    settings: Settings, model: Embedder, batch: Batch, cache_dir: str, say: Callable[[str], None]
) -> tuple[Run, Starts]:
    """The compiled model, run once here, and the readings of the starts: fresh processes, or this one if quick."""
    if not settings.fresh:
        say("first results")
        _, eager = _first_result("eager", model, batch, cache_dir)
        compiled, cold = _first_result("smelt", model, batch, cache_dir)
        return compiled, Starts(eager, cold)
    readings = []
    for text, system in (
        ("first result: eager, in a fresh process", "eager"),
        ("first result: compiled, in a fresh process", "smelt"),
        ("first result: compiled, in a second process", "smelt"),
    ):
        say(text)
        readings.append(read_in_fresh_process(_request(settings, system, cache_dir)))
    compiled, _ = _first_result("smelt", model, batch, cache_dir)
    return compiled, Starts(*readings)


def _first_result(system: System, model: Embedder, batch: Batch, cache_dir: str) -> tuple[Run, Reading]:
    with torch.no_grad():
        start = time.perf_counter()
        run = build(system, model, cache_dir)
        run(batch.ids, batch.mask)
        return run, Reading(time.perf_counter() - start, None, None)


def _request(settings: Settings, system: Any, cache_dir: str) -> Request:
    shape = settings.shape
    return Request(
        system, str(settings.model), str(settings.corpus), shape.rows, shape.tokens, settings.threads, cache_dir
    )


def _show(out: Console, settings: Settings, outcome: Outcome, sentences: Sequence[str]) -> None:
    shape = settings.shape
    title = (
        f"{MODEL_NAME}, {outcome.sentences} sentences, batches of {shape.rows}x{shape.tokens} tokens, "
        f"{settings.threads} threads, torch {torch.__version__}"
    )
    out.print(title)
    out.print(demo_report.table(outcome))
    for answer in outcome.answers:
        out.print(demo_report.neighbours(answer, sentences))


def _write_files(
    settings: Settings, outcome: Outcome, model: Embedder, compiled: Any, batch: Batch, out: Path, cache_dir: str
) -> None:
    with torch.no_grad():
        program = smelt.trace(model, (batch.ids, batch.mask), options={"cache_dir": cache_dir})
        (out / "captured.txt").write_text(f"{program.graph}\n", encoding="utf-8")
        (out / "optimized.txt").write_text(f"{program.graph_for(batch.ids, batch.mask)}\n", encoding="utf-8")
    (out / "kernels.txt").write_text(_kernels(compiled), encoding="utf-8")
    report = smelt.explain(compiled)
    (out / "explain.txt").write_text(f"{report}\n", encoding="utf-8")
    report.to_html(out / "explain.html")
    document = {
        "model": MODEL_NAME,
        "torch": torch.__version__,
        "threads": settings.threads,
        "shape": asdict(settings.shape),
        "rounds": settings.rounds,
        "figures": demo_report.figures(outcome),
        "neighbours_equal": all(a.is_same for a in outcome.answers),
    }
    (out / "figures.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    problem = demo_report.plot(outcome, out / "demo.png")
    if problem:
        typer.echo(f"no plot: {problem}", err=True)


def _kernels(compiled: Any) -> str:
    """The kernels of the compiled model, or why there are none (a machine without them, too)."""
    try:
        return "\n\n".join(listing(unit) for unit in compiled_units(compiled)) + "\n"
    except SmeltError as none:
        return f"{none}\n"


def _check(outcome: Outcome) -> None:
    differing = [a.query for a in outcome.answers if not a.is_same]
    if differing:
        raise VerifyError(
            f"eager and compiled find other sentences for {'; '.join(differing)}",
            why=f"the embeddings differ by up to {outcome.pair.largest_difference:.1e}",
            fix="this is a defect: report it with the files written",
            code="S0503",
        )
    if not outcome.pair.largest_difference <= _LARGEST_DIFFERENCE:  # also if it is nan
        raise VerifyError(
            f"the embeddings of eager and compiled differ by {outcome.pair.largest_difference:.1e}",
            why=f"rounding explains about 1e-6, and up to {_LARGEST_DIFFERENCE:.0e} is let pass",
            fix="this is a defect: report it with the files written",
            code="S0503",
        )
