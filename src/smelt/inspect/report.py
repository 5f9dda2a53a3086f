"""What `smelt.explain` returns: plain data under fixed keys, as text, as a dictionary, as one HTML page."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

from smelt.diag.console import page_width
from smelt.inspect.page import Inside, Page
from smelt.inspect.page.html import page_html
from smelt.inspect.roofline import Ceilings
from smelt.inspect.shares import Measured
from smelt.inspect.shown import Row
from smelt.inspect.split import Where
from smelt.inspect.text import LONG, alike, cell, columns_of, text_of
from smelt.inspect.verdict import Race, lines_of

# What became of a program stands above what it is made of.
KEYS = (
    "graphs", "breaks", "recompiles", "fallbacks", "split", "kernels", "symbols", "guards", "memory", "saved",
    "precision", "passes", "timings",
)  # fmt: skip
_TITLES = {
    "graphs": "Graphs", "breaks": "Breaks", "recompiles": "Recompiles", "fallbacks": "Fallbacks",
    "split": "Where the time of a call goes",
    "symbols": "Sizes and numbers", "guards": "Guards", "kernels": "Kernels", "memory": "Memory",
    "saved": "Saved for the backward half",
    "precision": "Precision: the error of each output, on the first call's inputs", "passes": "Passes",
    "timings": "Compile time by stage",
}  # fmt: skip
_EMPTY = {
    "graphs": "nothing has been compiled yet: call it, or use warmup(...)", "breaks": "none: each graph is whole",
    "symbols": "none is free: each entry holds for one call's",
    "recompiles": "none", "fallbacks": "none", "precision": "computed in the dtypes of the program",
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Report:
    """A report on a compiled object or a program.

    graphs: one row a compiled entry (name, nodes captured and optimized, both texts, calls, why it was made; `paths`:
    the data-dependent branches and loops of a merged graph, or why each path is a graph of its own).
    symbols: dynamic sizes and numbers (entry, name, what it represents, range, value at capture), and those that could
    not be dynamic, with the reason.
    guards: the conditions of an entry (entry, kind, expression, value, source line); those of kind "read of data" are
    what Python read of tensors on its path.
    breaks: graph breaks of a split program.  recompiles: which guard failed, or what was read, old and new value.
    passes: name, time, nodes before and after.  kernels: per node, how it runs and what was measured.
    fallbacks: what ran in eager or in Python, how often, why.  timings: compile time by stage, in milliseconds.
    memory: bytes of the plan's own memory, packed weights, originals.
    split: where it was measured, what of a call goes to what, in eager mode and compiled.
    saved: of entries that are trained, what the forward half keeps for the backward half, and why.
    precision: error of each output, where the program computes in another precision than written (`dtype`).
    verdict: what became of the program, in words (`what`), the share of its operations (and, where it was measured, of
    its time) that own kernels do, and, where both were timed, what eager and compiled take (`times`, in words; `race`).
    everything: print each row, and count none.
    inside: what the report is on, for its page.
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
    split: Sequence[Row] = field(default=())
    saved: Sequence[Row] = field(default=())
    precision: Sequence[Row] = field(default=())
    verdict: Mapping[str, Any] = field(default_factory=dict)
    everything: bool = False
    inside: Inside = field(default_factory=Inside, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """All of the report as plain data that `json.dumps` takes; the keys are `KEYS`, `name` and `verdict`."""
        rows = {key: [dict(row) for row in getattr(self, key)] for key in KEYS}
        return {"name": self.name, "verdict": dict(self.verdict), **rows}

    def timed(self, race: Race, share: float | None = None) -> Report:
        """The same report with what eager and compiled take, and the share of time in own kernels."""
        own = {**self.verdict.get("own kernels", {}), **({} if share is None else {"time": share})}
        times = {"times": race.lines(), "race": race.to_dict()}
        return replace(self, verdict={**self.verdict, "own kernels": own, **times})

    def divided(self, where: Where) -> Report:
        """The same report with what of a call goes to what, and what that says of Python."""
        return replace(self, split=where.rows(), verdict={**self.verdict, "where": where.sentences()})

    def measured(self, measured: Measured | None, ceilings: Ceilings | None = None) -> Report:
        """The same report whose page has what each instruction takes, and the machine's ceilings."""
        return replace(self, inside=replace(self.inside, measured=measured, ceilings=ceilings))

    def page(self) -> Page:
        """The data of the HTML page: graphs before and after each pass, kernels with their texts, buffers, guards, the
        source lines of all of them, and what refers to what. Passes run again for it.
        """
        return self.inside.page(self)

    def __repr__(self) -> str:
        return f"<Report on {self.name}: {self.verdict.get('what', 'nothing yet')}>"

    def _repr_html_(self) -> str:
        return f"<div class=smelt><style>{_STYLE}</style>{_body(self)}{_look_inside(self)}</div>"

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, *, everything: bool = False, width: int | None = None) -> str:
        """The report for a terminal: what became of the program, and of what it is made each kind with its count, sums
        of bytes and times. everything: each guard, node, pass and stage, as in a report made so. width: characters of a
        line; the default is the terminal's, 100 without one.
        """
        everything = everything or self.everything
        # Few programs are trained, and few reports measured.
        keys = [key for key in KEYS if key not in _NOT_ALWAYS or getattr(self, key)]
        sections = [(key, _TITLES[key], getattr(self, key), _empty(self, key)) for key in keys]
        return text_of(self.name, lines_of(self.verdict), sections, everything=everything, width=page_width(width))

    @overload
    def to_html(self, path: None = None) -> str: ...

    @overload
    def to_html(self, path: str | Path) -> Path: ...

    def to_html(self, path: str | Path | None = None) -> str | Path:
        """One HTML page that needs nothing else: source lines, graph and kernels side by side, where a click in one
        shows its like in the others; passes with their differences, memory, guards. Written to `path`, which is
        returned; without one the page itself.
        """
        if path is None:
            return page_html(self.page())
        target = Path(path)
        target.write_text(page_html(self.page()), encoding="utf-8")
        return target


_NOT_ALWAYS = ("saved", "split")


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
.smelt{font:14px/1.45 system-ui,sans-serif;color:#1c2230;background:#fff}
.smelt h1{font-size:1.5rem}.smelt h2{font-size:1.1rem;margin-top:2rem}
.smelt table{border-collapse:collapse;width:100%}
.smelt th,.smelt td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #e3e6ec;vertical-align:top}
.smelt th{font-weight:600;background:#f5f6f9}.smelt td.n{text-align:right;font-variant-numeric:tabular-nums}
.smelt pre{background:#f5f6f9;padding:.8rem;overflow:auto;font-size:12px}
.smelt summary{cursor:pointer;color:#2450b8}.smelt .none{color:#6b7280}
.smelt .bar{background:#f08a24;height:.7rem;display:inline-block;border-radius:2px}
"""
_UNFOLDED = ("graphs", "breaks", "recompiles", "fallbacks", "kernels")
"""Sections that a notebook shows at once, where they have rows."""
_NOTEBOOK_CHARACTERS = 1 << 20
"""The most that a cell keeps of a page."""


def _body(report: Report) -> str:
    """The report as a part of a notebook: what it is made of unfolds by a click."""
    parts = [f"<h1>Smelt report: {html.escape(report.name)}</h1>"]
    parts += [f"<p>{html.escape(line)}</p>" for line in lines_of(report.verdict)]
    for key in KEYS:
        rows = getattr(report, key)
        tables = [_html_table(key, part) for part in alike(rows)]
        shown = "\n".join(tables or [f"<p class=none>{html.escape(_empty(report, key))}</p>"])
        title = html.escape(_TITLES[key])
        is_open = " open" if rows and key in _UNFOLDED else ""
        parts.append(f"<details{is_open}><summary>{title} ({len(rows)})</summary>{shown}</details>")
    return "\n".join(parts)


def _look_inside(report: Report) -> str:
    """The page in a frame of its own, whose styles and scripts the notebook does not meet; if it is not too large."""
    page = page_html(replace(report, inside=replace(report.inside, call=None)).page())
    if len(page) > _NOTEBOOK_CHARACTERS:
        return "<p>to_html(path) writes the page on graph, source lines and kernels, which is large.</p>"
    frame = f'<iframe sandbox="allow-scripts" width="100%" height="800" srcdoc="{html.escape(page)}"></iframe>'
    return f"<details><summary>Graph, source lines and kernels</summary>{frame}</details>"


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
