"""What `smelt.explain` returns: plain data under fixed keys, as text, as a dictionary, as one HTML page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smelt.inspect.shown import Row
from smelt.inspect.text import LONG, alike, cell, columns_of, text_of

# What became of a program stands above what it is made of.
KEYS = (
    "graphs", "breaks", "recompiles", "fallbacks", "symbols", "guards", "kernels", "memory", "precision", "passes",
    "timings",
)  # fmt: skip
_TITLES = {
    "graphs": "Graphs", "breaks": "Breaks", "recompiles": "Recompiles", "fallbacks": "Fallbacks",
    "symbols": "Sizes and numbers", "guards": "Guards", "kernels": "Kernels", "memory": "Memory",
    "precision": "Precision: the error of each output, on the first call's inputs", "passes": "Passes",
    "timings": "Compile time by stage",
}  # fmt: skip
_EMPTY = {
    "graphs": "nothing has been compiled yet: call it, or use warmup(...)", "breaks": "none: each graph is whole",
    "symbols": "none is free: each entry holds for one call's",
    "recompiles": "none", "fallbacks": "none", "precision": "computed in the dtypes of the program",
}  # fmt: skip


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
    memory: bytes of the plan's own memory, packed weights, originals.
    precision: error of each output, where the program computes in another precision than written (`dtype`).
    everything: print each row, and count none.
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
    everything: bool = False

    def to_dict(self) -> dict[str, Any]:
        """All of the report as plain data that `json.dumps` takes; the keys are `KEYS` and `name`."""
        rows = {key: [dict(row) for row in getattr(self, key)] for key in KEYS}
        return {"name": self.name, **rows}

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, *, everything: bool = False) -> str:
        """The report for a terminal: what became of the program, and of what it is made each kind with its count, sums
        of bytes and times. everything: each guard, node, pass and stage, as in a report made so.
        """
        everything = everything or self.everything
        sections = [(key, _TITLES[key], getattr(self, key), _empty(self, key)) for key in KEYS]
        return text_of(self.name, sections, everything=everything)

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
        tables = [_html_table(key, part) for part in alike(rows)]
        parts.extend(tables or [f"<p class=none>{_empty(report, key)}</p>"])
    parts.append("</body></html>")
    return "\n".join(parts)


def _html_table(key: str, rows: Sequence[Row]) -> str:
    columns = columns_of(rows)
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
    if key in LONG and value:
        shown = html.escape(str(value))
        return f"<td><details><summary>{cell(key, value)}</summary><pre>{shown}</pre></details></td>"
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td{' class=n' if numeric else ''}>{html.escape(cell(key, value))}</td>"
