"""A matrix for people: a table for the terminal, and a plot of speed and of what calls cost in all."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from smelt.bench.matrix.configurations import EAGER
from smelt.bench.matrix.rows import Clock, Matrix, Row
from smelt.bench.report import duration
from smelt.bench.systems import missing

_CALLS = [10**n for n in range(7)]
_LINES = 6  # of the configurations that cost least at some number of calls
_NOTE = 30


def table(matrix: Matrix) -> Table:
    """One line a configuration: what a call takes, what compiling takes, from which call on it pays."""
    clock = matrix.clock
    eager = next((r for r in matrix.rows if r.configuration == EAGER), None)
    eager_ms = None if eager is None else clock.ms(eager)
    threads = sorted({t.threads for row in matrix.rows for t in row.times})
    what = "CPU time" if clock.cpu else "time"
    out = Table(
        title=f"{matrix.program}: {what} of a call; × is eager's divided by it, both of one process; err is rms",
        caption="compile: seconds until the first result, with empty caches, and (warm) with those of an earlier "
        "process; pays: from so many calls on, and (warm) with a filled cache; sizes: compiles for two other numbers "
        "of rows",
    )
    columns = _columns(clock, eager_ms, threads)
    out.add_column("configuration", no_wrap=True)
    for name in columns:
        out.add_column(name, justify="right", no_wrap=True)
    out.add_column("note", overflow="fold", min_width=_NOTE)
    for row in matrix.rows:
        note = row.problem or (row.sizes.note if row.sizes is not None else "")
        out.add_row(row.configuration, *(text(row) for text in columns.values()), note)
    return out


def _columns(clock: Clock, eager_ms: float | None, threads: Sequence[int]) -> Mapping[str, Callable[[Row], str]]:
    def pays(row: Row) -> str:
        if eager_ms is None or row.configuration == EAGER or not row.times:
            return ""
        cold, warm = (clock.pays_after(row, eager_ms, warm) for warm in (False, True))
        return "never" if cold is None else f"{cold:,} ({'-' if warm is None else f'{warm:,}'})"

    def compiling(row: Row) -> str:
        cold, warm = clock.compile_s(row), clock.compile_s(row, warm=True)
        return _number(cold, ".1f") + (f" ({warm:.1f})" if warm is not None else "")

    def a_second(number: int) -> Callable[[Row], str]:
        return lambda row: _number(_throughput(row, number, clock.cpu), ",.0f")

    return {
        "a call": lambda row: duration(clock.ms(row)),
        "×": lambda row: _number(clock.speed_up(row), ".2f"),
        **{f"calls/s, {n} thr." if clock.cpu is False else f"calls/CPU s, {n} thr.": a_second(n) for n in threads},
        "err": lambda row: _number(row.error, ".0e"),
        "compile s (warm)": compiling,
        "pays (warm)": pays,
        "MB": lambda row: _number(row.run_mb, ".0f"),
        "sizes": lambda row: "" if row.sizes is None or row.sizes.builds is None else str(row.sizes.builds),
    }


def _throughput(row: Row, threads: int, cpu: bool) -> float | None:
    times = row.on(threads)
    return None if times is None else 1e3 / (times.cpu_ms if cpu else times.wall_ms)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def text_of(matrix: Matrix) -> str:
    """The advice, and the conditions."""
    lines = [f"- {sentence}" for sentence in matrix.advice]
    machine = matrix.machine
    told = [machine.get("cpu", ""), f"torch {machine.get('torch', '')}", f"load {matrix.load:.1f}"]
    if matrix.clock.cpu:
        told.append("times of the processor, not of the clock: other work ran meanwhile")
    elif matrix.load > matrix.clock.threads + 0.5:
        told.append("other work ran meanwhile, which these times include: repeat it later, or with --cpu-time")
    return "\n".join([*lines, "", ", ".join(told)])


# --- the plot


def plot(matrix: Matrix, path: Path) -> str:
    """Draw it as PNG, SVG or PDF. Returns "" or why there is no plot."""
    if absent := missing(["matplotlib"]):
        return absent
    measured = [row for row in matrix.rows if matrix.clock.speed_up(row) is not None]
    if not measured:
        return "no row has a time to plot"
    importlib.import_module("matplotlib").use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(14, 1.8 + 0.32 * len(measured)), layout="constrained")
    try:
        _speeds(left, measured, matrix.clock)
        _totals(right, measured, matrix.clock)
        machine = matrix.machine
        figure.suptitle(
            f"{matrix.program}: {matrix.summary}\n{machine.get('cpu', '')}, torch {machine.get('torch', '')}"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    finally:
        pyplot.close(figure)
    return ""


def _speeds(axes: Any, rows: Sequence[Row], clock: Clock) -> None:
    """Bars: how many times as fast as eager, on each number of threads."""
    threads = sorted({t.threads for row in rows for t in row.times})
    height = 0.8 / len(threads)
    for index, number in enumerate(threads):
        of = Clock(number, clock.cpu)
        values = [of.speed_up(row) or 0.0 for row in rows]
        places = [i - 0.4 + height * (index + 0.5) for i in range(len(rows))]
        axes.barh(places, values, height, label=f"{number} thread{'s' if number > 1 else ''}", color=f"C{index}")
    axes.set_yticks(range(len(rows)), [row.configuration for row in rows])
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"eager's {'CPU ' if clock.cpu else ''}time / this one's")
    axes.legend(frameon=False)


def _totals(axes: Any, rows: Sequence[Row], clock: Clock) -> None:
    """Lines: seconds of compiling and of n calls, of those that cost least for some n, and of eager."""
    eager = next(row for row in rows if row.configuration == EAGER)
    eager_ms = clock.ms(eager) or 0.0
    costs: dict[str, list[float]] = {}
    for row in rows:
        begin = 0.0 if row is eager else clock.compile_s(row) or 0.0
        costs[row.configuration] = [begin + n * eager_ms / (clock.speed_up(row) or 1.0) / 1e3 for n in _CALLS]
    order = sorted(
        costs, key=lambda name: min(costs[name][i] / min(c[i] for c in costs.values()) for i in range(len(_CALLS)))
    )
    for name in dict.fromkeys([EAGER, *order[:_LINES], *(n for n in ("smelt", "compile") if n in costs)]):
        axes.plot(_CALLS, costs[name], label=name, linewidth=2.5 if name in (EAGER, "smelt") else 1.3)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("calls of a process, nothing cached")
    axes.set_ylabel(f"{'CPU ' if clock.cpu else ''}seconds in all")
    axes.grid(color="0.9")
    axes.legend(frameon=False)
