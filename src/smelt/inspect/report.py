"""What `smelt.explain` returns: plain data under fixed keys, as text, as a dictionary, as one HTML page."""

from __future__ import annotations

import html
import io
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Row = Mapping[str, Any]
KEYS = (
    "graphs", "symbols", "guards", "breaks", "recompiles", "passes", "kernels", "fallbacks", "timings", "memory",
    "precision",
)  # fmt: skip
_TITLES = {
    "graphs": "Graphs", "symbols": "Sizes and numbers",
    "guards": "Guards", "breaks": "Breaks", "recompiles": "Recompiles", "passes": "Passes",
    "kernels": "Kernels", "fallbacks": "Fallbacks", "timings": "Compile time by stage", "memory": "Memory",
    "precision": "Error against the program as written, on the first call's inputs",
}  # fmt: skip
_EMPTY = {
    "graphs": "nothing has been compiled yet: call it, or use warmup(...)", "breaks": "none: each graph is whole",
    "symbols": "none is free: each entry holds for one call's",
    "recompiles": "none", "fallbacks": "none", "precision": "computed in the dtypes of the program",
}  # fmt: skip
# A graph's text is long: in the summary it stands as its size, in HTML it unfolds.
_LONG = ("captured", "optimized", "code")
# A kernel of many operators would fill a page: text shows the beginning of these, the other forms all.
_CROPPED = ("nodes", "where", "ways", "plans")
_CROPPED_TO = 72
_ROWS_SHOWN = 40
_WIDTH = 100  # characters
_MOST_COLUMNS, _MOST_ACROSS = 8, 4


@dataclass(frozen=True)
class Report:
    """A report on a compiled object or a program.

    graphs: one row a compiled entry (name, nodes captured and optimized, both texts, calls, why it was made; `ways`:
    the branches and loops of a program whose way depends on data, or why each way is a graph of its own).
    symbols: sizes and numbers that are free (entry, name, where it stands, range, value at capture), and those that
    could not be, with why.
    guards: what must hold for an entry to be used (entry, kind, expression, value, source line); of kind "read of data"
    what Python read of tensors on the way that it holds for.
    breaks: places where a program was split.  recompiles: which guard failed, or what was read, old and new value.
    passes: name, time, nodes before and after.  kernels: per node, how it runs and what was measured.
    fallbacks: what ran in eager or in Python, how often, why.  timings: compile time by stage, in milliseconds.
    memory: bytes of arena, packed weights, parameters.
    precision: error of each output, where the program computes in another precision than written (`dtype`).
    """

    name: str
    graphs: Sequence[Row] = field(default=())
    symbols: Sequence[Row] = field(default=())
    guards: Sequence[Row] = field(default=())
    breaks: Sequence[Row] = field(default=())
    recompiles: Sequence[Row] = field(default=())
    passes: Sequence[Row] = field(default=())
    kernels: Sequence[Row] = field(default=())
    fallbacks: Sequence[Row] = field(default=())
    timings: Sequence[Row] = field(default=())
    memory: Sequence[Row] = field(default=())
    precision: Sequence[Row] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """All of the report as plain data that `json.dumps` takes; the keys are `KEYS` and `name`."""
        rows = {key: [dict(row) for row in getattr(self, key)] for key in KEYS}
        return {"name": self.name, **rows}

    def __str__(self) -> str:
        out = io.StringIO()
        console = Console(file=out, width=_WIDTH, no_color=True, highlight=False)
        console.print(f"Smelt report: {self.name}", markup=False)
        for key in KEYS:
            rows = getattr(self, key)
            console.print()
            if not rows:
                console.print(f"{_TITLES[key]}: {_empty(self, key)}", markup=False)
                continue
            title = _TITLES[key]
            for part in _alike(rows):
                console.print(_table(title, part))
                title = ""
                if len(part) > _ROWS_SHOWN:
                    more = len(part) - _ROWS_SHOWN
                    console.print(f"... and {more} more; to_dict() and to_html() have all", markup=False)
        return out.getvalue()

    def to_html(self, path: str | Path) -> Path:
        """Write one HTML page that needs nothing else: tables, bars for times, graphs that unfold. The path."""
        target = Path(path)
        target.write_text(_page(self), encoding="utf-8")
        return target


def _empty(report: Report, key: str) -> str:
    """What stands for a section without rows."""
    if report.graphs or key not in ("graphs", "breaks"):
        return _EMPTY.get(key, "none")
    if key == "breaks":
        return "none"
    if report.breaks or report.fallbacks:
        return "no graph: see " + " and ".join(_TITLES[k] for k in ("breaks", "fallbacks") if getattr(report, k))
    return _EMPTY[key]


def _subject(row: Row) -> tuple[str, ...]:
    return tuple(row)[:2]


def _alike(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows in a row about the same kind of thing, told by their first two columns: each such run is a table."""
    return [list(run) for _, run in itertools.groupby(rows, key=_subject)]


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _cell(key: str, value: Any) -> str:
    if value is None:
        return ""
    if key in _LONG:
        return f"{str(value).count(chr(10)) + 1} lines"
    if isinstance(value, float):
        if 0 < abs(value) < 0.001:
            return f"{value:.2e}"
        return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value)
    return str(value)


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False)
    columns = _columns(rows)
    if len(columns) > _MOST_COLUMNS and len(rows) <= _MOST_ACROSS:
        # What has many properties has a line for each of them.
        first, *others = columns
        table.add_column(first)
        for row in rows:
            table.add_column(_escape(_cell(first, row.get(first))), overflow="fold")
        for column in others:
            table.add_row(column, *(_escape(_cropped(column, _cell(column, row.get(column)))) for row in rows))
        return table
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows[:_ROWS_SHOWN]:
        table.add_row(*(_escape(_cropped(c, _cell(c, row.get(c)))) for c in columns))
    return table


def _cropped(key: str, text: str) -> str:
    return text if key not in _CROPPED or len(text) <= _CROPPED_TO else f"{text[:_CROPPED_TO]}..."


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:1200px;padding:0 1rem;color:#1c2230;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #e3e6ec;
vertical-align:top}th{font-weight:600;background:#f5f6f9}td.n{text-align:right;font-variant-numeric:tabular-nums}
pre{background:#f5f6f9;padding:.8rem;overflow:auto;font-size:12px}summary{cursor:pointer;color:#2450b8}
.bar{background:#f08a24;height:.7rem;display:inline-block;border-radius:2px}.none{color:#6b7280}
"""


def _page(report: Report) -> str:
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        f"<title>Smelt: {html.escape(report.name)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Smelt report: {html.escape(report.name)}</h1>",
    ]
    for key in KEYS:
        rows = getattr(report, key)
        parts.append(f"<h2 id={key}>{html.escape(_TITLES[key])}</h2>")
        tables = [_html_table(key, part) for part in _alike(rows)]
        parts.extend(tables or [f"<p class=none>{_empty(report, key)}</p>"])
    parts.append("</body></html>")
    return "\n".join(parts)


def _html_table(key: str, rows: Sequence[Row]) -> str:
    columns = _columns(rows)
    longest = max((row.get("ms") or 0.0 for row in rows), default=0.0) if "ms" in columns else 0.0
    head = "".join(f"<th>{html.escape(c)}</th>" for c in columns) + ("<th></th>" if longest else "")
    lines = []
    for row in rows:
        cells = "".join(_html_cell(c, row.get(c)) for c in columns)
        if longest:
            width = 160 * float(row.get("ms") or 0.0) / longest
            cells += f"<td><span class=bar style='width:{width:.0f}px'></span></td>"
        lines.append(f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _html_cell(key: str, value: Any) -> str:
    if key in _LONG and value:
        shown = html.escape(str(value))
        return f"<td><details><summary>{_cell(key, value)}</summary><pre>{shown}</pre></details></td>"
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td{' class=n' if numeric else ''}>{html.escape(_cell(key, value))}</td>"
