"""How rows are shown to a person: one table on the terminal, one plot in a file."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from rich.table import Table

from smelt.bench.floors import COPY_FLOOR, FMA_FLOOR, GEMM_LIBRARY, READ_FLOOR
from smelt.bench.rows import Row
from smelt.bench.systems import missing

FLOORS = (GEMM_LIBRARY, FMA_FLOOR, COPY_FLOOR, READ_FLOOR)
_EMPTY = "-"


def duration(ms: float | None) -> str:
    """Milliseconds to three digits, below 0.1 ms as µs."""
    if ms is None:
        return _EMPTY
    return f"{ms * 1e3:.3g} µs" if ms < 0.1 else f"{ms:.4g} ms" if ms >= 100 else f"{ms:.3g} ms"


def _number(value: float | None, form: str) -> str:
    return _EMPTY if value is None else format(value, form)


_COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "median": lambda row: duration(row.median_ms),
    "×": lambda row: _number(row.ratio_to_eager, ".2f"),
    "1 thread": lambda row: duration(row.one_thread_ms),
    "cold s": lambda row: _number(row.cold_s, ".2f"),
    "cold CPU s": lambda row: _number(row.cold_cpu_s, ".2f"),
    "warm s": lambda row: _number(row.warm_start_s, ".2f"),
    "peak MB": lambda row: _number(row.peak_mb, ".0f"),
    "saved MB": lambda row: _number(row.saved_mb, ".3g"),
    "loss gap": lambda row: _number(row.loss_gap, ".1e"),
    "max err": lambda row: _number(row.max_abs_err, ".1e"),
    "rms/eager's": lambda row: _number(row.rms_ratio, ".2f"),
    "faults": lambda row: _number(row.faults_per_call, ".0f"),
}
_LEFT_OUT_FIRST = (
    "cold CPU s",
    "faults",
    "loss gap",
    "rms/eager's",
    "peak MB",
    "warm s",
    "max err",
    "1 thread",
    "cold s",
)
_NOTE = 24  # characters that a column of notes takes at least


def table(rows: Sequence[Row], width: int) -> Table:
    """One line per row, a rule between models; a speed-up is eager's time over the row's.

    width: characters of a line. Columns in which nothing was measured are not shown, nor those that do not fit, which
    the caption names.
    """
    shown, left_out = _columns(rows, width)
    has_notes = any(row.error for row in rows)
    out = Table(
        title="times of one call; × is eager's time divided by this one, err is to eager, rms to float64",
        caption=f"no room for {', '.join(left_out)}: a wider terminal, or --json, has them" if left_out else None,
    )
    out.add_column("model", no_wrap=True)
    out.add_column("system", no_wrap=True)
    for name in shown:
        out.add_column(name, justify="right", no_wrap=True)
    if has_notes:
        out.add_column("note", overflow="fold", min_width=_NOTE)
    previous: str | None = None
    for row in rows:
        group = row.label
        if previous is not None and group != previous:
            out.add_section()
        cells = ["" if group == previous else group, row.system, *(_COLUMNS[name](row) for name in shown)]
        cells += [row.error or ""] if has_notes else []
        out.add_row(*cells, style="dim" if row.system in FLOORS else None)
        previous = group
    return out


def _columns(rows: Sequence[Row], width: int) -> tuple[list[str], list[str]]:
    """The columns with values that fit, and those that do not."""
    widths = {name: max((len(text(row)) for row in rows), default=0) for name, text in _COLUMNS.items()}
    shown = [name for name, text in _COLUMNS.items() if any(text(row) != _EMPTY for row in rows)]
    first = [
        max((len(text) for text in texts), default=0) for texts in ([r.label for r in rows], [r.system for r in rows])
    ]
    fixed = sum(max(n, 6) + 3 for n in first) + 1 + (_NOTE + 3 if any(row.error for row in rows) else 0)
    left_out: list[str] = []
    for name in _LEFT_OUT_FIRST:
        if fixed + sum(max(widths[one], len(one)) + 3 for one in shown) <= width:
            break
        if name in shown:
            shown.remove(name)
            left_out.append(name)
    return shown, left_out


def plot(rows: Sequence[Row], path: Path) -> str:
    """Draw the speed-up over eager of every system, one line per model, on a logarithmic axis.

    Returns "" or why there is no plot (nothing measured, no matplotlib).
    """
    if absent := missing(["matplotlib"]):
        return absent
    shown = [r for r in rows if r.ratio_to_eager is not None]
    if not shown:
        return "no row has a time to plot"
    importlib.import_module("matplotlib").use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    labels = list(dict.fromkeys(r.label for r in shown))
    figure, axes = pyplot.subplots(figsize=(10, 1.6 + 0.5 * len(labels)), layout="constrained")
    try:
        _draw(axes, shown, labels)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    finally:
        pyplot.close(figure)
    return ""


def to_best_peer(rows: Sequence[Row]) -> dict[str, tuple[float, str]]:
    """By model: how many times faster Smelt is than the fastest other system, and which that is; ascending."""
    found: dict[str, tuple[float, str]] = {}
    for label in dict.fromkeys(row.label for row in rows):
        own = [r for r in rows if r.label == label and r.ratio_to_eager is not None and r.system not in FLOORS]
        smelt = next((r for r in own if r.system == "smelt"), None)
        others = [r for r in own if not r.system.startswith("smelt")]
        if smelt is not None and others:
            best = max(others, key=lambda r: r.ratio_to_eager or 0.0)
            found[label] = ((smelt.ratio_to_eager or 0.0) / (best.ratio_to_eager or 1.0), best.system)
    return dict(sorted(found.items(), key=lambda item: item[1][0]))


def ranking(rows: Sequence[Row], path: Path) -> str:
    """Draw the ratios to the best peer on one page, sorted, with their geometric mean.

    Returns "" or why there is no picture (no model with Smelt and a peer, no matplotlib).
    """
    if absent := missing(["matplotlib"]):
        return absent
    found = to_best_peer(rows)
    if not found:
        return "no model has a time of Smelt and of a peer"
    importlib.import_module("matplotlib").use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    ratios = [ratio for ratio, _ in found.values()]
    figure, axes = pyplot.subplots(figsize=(8.3, min(1.6 + 0.2 * len(found), 11.7)), layout="constrained")
    try:
        axes.barh(range(len(found)), ratios, color=["C0" if r >= 1 else "C3" for r in ratios], zorder=2)
        axes.set_yticks(range(len(found)), [f"{label}  ({peer})" for label, (_, peer) in found.items()], fontsize=7)
        for place, ratio in enumerate(ratios):
            axes.text(ratio, place, f" {ratio:.2f}", va="center", fontsize=7)
        axes.axvline(1.0, color="black", linewidth=1, zorder=3)
        axes.set_ylim(-0.7, len(found) - 0.3)
        axes.set_xlabel("the best peer's time / Smelt's time (right of the line: Smelt is faster)")
        axes.set_title(f"{_measured_on(rows)}\ngeometric mean {geometric_mean(ratios):.2f}", fontsize=9)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    finally:
        pyplot.close(figure)
    return ""


_MARKERS = "oDs^vP*XdhH<>"


def _draw(axes: Any, rows: Sequence[Row], labels: Sequence[str]) -> None:
    """The points: systems filled in colour, floors as grey bars; a little apart so that none hides another."""
    systems = list(dict.fromkeys(r.system for r in rows if r.system not in FLOORS and r.system != "eager"))
    step = 0.6 / max(len(systems) - 1, 1)
    top = -0.3 if len(systems) > 1 else 0.0
    for index, system in enumerate(systems):
        own = [r for r in rows if r.system == system]
        heights = [labels.index(r.label) + top + index * step for r in own]
        size = 110 if system == "smelt" else 45
        marker, colour = _MARKERS[index % len(_MARKERS)], f"C{index}"
        axes.scatter(
            [r.ratio_to_eager for r in own], heights, s=size, marker=marker, color=colour, label=system, zorder=3
        )
    for floor, style in zip(FLOORS, ("-", "--", ":", ":"), strict=True):
        own = [r for r in rows if r.system == floor]
        if own:
            places = [labels.index(r.label) for r in own]
            axes.vlines(
                [r.ratio_to_eager for r in own], [y - 0.42 for y in places], [y + 0.42 for y in places],
                colors="0.35", linestyles=style, linewidth=1.8, label=floor, zorder=2,
            )  # fmt: skip
    _dress(axes, labels)
    axes.set_title(_measured_on(rows))


def _measured_on(rows: Sequence[Row]) -> str:
    """The machine that rows were measured on, and with what."""
    found = next((row.settings for row in rows if "machine" in row.settings), {})
    machine = found.get("machine", {})
    threads, torch = found.get("threads", ""), machine.get("torch", "")
    told = [machine.get("cpu", ""), threads and f"{threads} threads", torch and f"torch {torch}"]
    return ", ".join(part for part in told if part)


def _dress(axes: Any, labels: Sequence[str]) -> None:
    """Axis, ticks that read as factors, bands between models, legend beside the points."""
    ticker = importlib.import_module("matplotlib.ticker")
    axes.set_xscale("log", base=2)
    axes.axvline(1.0, color="black", linewidth=1, zorder=1)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.45, -0.55)
    for index in range(0, len(labels), 2):
        axes.axhspan(index - 0.5, index + 0.5, color="0.95", zorder=0)
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_xlabel("eager's time / this system's time (right of the line: faster than eager)")
    axes.grid(axis="x", color="0.85", zorder=0)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
