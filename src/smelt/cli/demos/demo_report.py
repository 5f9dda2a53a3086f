"""What the demo shows: one table, the neighbours side by side, a plot."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from smelt.cli.demos.demo_measure import Answer, Hit, Pair
from smelt.cli.demos.demo_probe import Reading
from smelt.diag.packages import not_installed
from smelt.diag.records import record

_EMPTY = "-"


@record
class Starts:
    """Readings of fresh processes: eager, compiled with nothing kept, compiled with what that one had kept."""

    eager: Reading
    cold: Reading
    warm: Reading | None = None


@record
class Outcome:
    """All that was measured on `sentences` sentences in batches of `rows`."""

    sentences: int
    rows: int
    pair: Pair
    starts: Starts
    answers: tuple[Answer, ...]


def figures(outcome: Outcome) -> dict[str, float | int | None]:
    """The figures by name, with their unit in it."""
    pair, starts = outcome.pair, outcome.starts
    return {
        "sentences": outcome.sentences,
        "eager_first_result_s": starts.eager.first_result_s,
        "smelt_first_result_s": starts.cold.first_result_s,
        "smelt_first_result_kept_code_s": starts.warm.first_result_s if starts.warm else None,
        "eager_batch_median_ms": pair.eager.median_s * 1e3,
        "smelt_batch_median_ms": pair.compiled.median_s * 1e3,
        "eager_sentences_per_s": outcome.rows / pair.eager.median_s,
        "smelt_sentences_per_s": outcome.rows / pair.compiled.median_s,
        "speed_up": pair.speed_up,
        "largest_difference": pair.largest_difference,
        "eager_peak_mb": starts.eager.peak_mb,
        "smelt_peak_mb": starts.cold.peak_mb,
    }


def table(outcome: Outcome) -> Table:
    """One line a figure, a column a system."""
    pair, starts = outcome.pair, outcome.starts
    out = Table()
    out.add_column("")
    for name in ("eager", "smelt"):
        out.add_column(name, justify="right", no_wrap=True)
    # Readings without memory come from one shared process, where nothing is cold.
    is_fresh = starts.cold.peak_mb is not None or starts.warm is not None
    first = "time to first result" + (", cold" if is_fresh else "")
    out.add_row(first, _s(starts.eager.first_result_s), _s(starts.cold.first_result_s))
    if starts.warm is not None:
        out.add_row("  the same in a second process", _EMPTY, _s(starts.warm.first_result_s))
    out.add_row(f"per batch of {outcome.rows}, median", _ms(pair.eager.median_s), _ms(pair.compiled.median_s))
    out.add_row(
        "sentences per second",
        f"{outcome.rows / pair.eager.median_s:,.0f}",
        f"{outcome.rows / pair.compiled.median_s:,.0f}",
    )
    out.add_row("speed-up", "1.00x", Text(f"{pair.speed_up:.2f}x", style="bold"))
    out.add_row("largest difference of embeddings", _EMPTY, f"{pair.largest_difference:.1e}")
    if starts.cold.peak_mb is not None:
        out.add_row("peak memory of the process", _mb(starts.eager.peak_mb), _mb(starts.cold.peak_mb))
        out.add_row("  of that, once the model is loaded", _mb(starts.eager.loaded_mb), _mb(starts.cold.loaded_mb))
    return out


def _s(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else _ms(seconds)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _mb(megabytes: float | None) -> str:
    return _EMPTY if megabytes is None else f"{megabytes:,.0f} MB"


def neighbours(answer: Answer, sentences: Sequence[str]) -> Table:
    """The sentences that both systems found for one query, side by side; a line where they differ is red."""
    out = Table(title=Text(f"“{answer.query}”"), title_justify="left", expand=True)
    for name in ("eager", "smelt"):
        out.add_column(name, ratio=1)
    for by_eager, by_compiled in zip(answer.eager, answer.compiled, strict=True):
        style = None if by_eager.index == by_compiled.index else "red"
        out.add_row(_hit(by_eager, sentences), _hit(by_compiled, sentences), style=style)
    return out


def _hit(hit: Hit, sentences: Sequence[str]) -> Text:
    return Text(f"{hit.score:.3f}  {sentences[hit.index]}")  # not markup: a sentence may have brackets


def plot(outcome: Outcome, path: Path) -> str:
    """Draw the spread of batch times and the times to the first result. Returns "" or why there is no plot."""
    if absent := not_installed(["matplotlib"], "demo"):
        return absent
    importlib.import_module("matplotlib").use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    pair, starts = outcome.pair, outcome.starts
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    try:
        for name, timed, colour in (("eager", pair.eager, "tab:gray"), ("smelt", pair.compiled, "tab:orange")):
            left.plot([s * 1e3 for s in timed.batch_s], ".", color=colour, alpha=0.6, label=name)
            left.axhline(timed.median_s * 1e3, color=colour, linewidth=1)
        left.set(xlabel="batch, in the order measured", ylabel="ms", ylim=(0, None))
        left.set_title(f"per batch of {outcome.rows}: {pair.speed_up:.2f}x (lines are medians)")
        left.legend()
        bars = {"eager": starts.eager.first_result_s, "smelt": starts.cold.first_result_s}
        if starts.warm is not None:
            bars["smelt, second\nprocess"] = starts.warm.first_result_s
        drawn = right.bar(list(bars), list(bars.values()), color=["tab:gray", "tab:orange", "tab:orange"][: len(bars)])
        right.bar_label(drawn, [_s(v) for v in bars.values()])
        right.set(ylabel="s")
        right.margins(y=0.1)
        right.set_title("first result, model loaded, compiling included")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    finally:
        pyplot.close(figure)
    return ""
