"""A report as text for a terminal: what a person asks first stands first, and what holds of every program is counted.

Invariant: nothing is left out unsaid. Each row that is not shown is counted below its table, and so told how to see it.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from smelt.diag.console import console
from smelt.inspect.brief import CHOSEN
from smelt.inspect.places import short_places
from smelt.inspect.shown import Row, Shown, size

# A graph's text is long: in the summary it stands as its size, in HTML it unfolds.
LONG = ("captured", "optimized", "code", "forward half", "backward half")
NBYTES = ("bytes", "bytes apart", "bytes as one")
"""Columns of bytes, which are shown with a unit."""
_WORDS = {
    "kernel": "native code of Smelt's own",
    "fused": "computed within a kernel of another node",
    "library": "a call of torch's C library",
    "dispatcher": "a call through torch's dispatcher",
    "python": "evaluated in Python",
    "state": "a weight or a buffer",
    "view": "no work",
    "static": "known before the call",
    "copy": "a copy into what is written",
    "in place": "a write of what a kernel has put there already",
    "block": "a branch or a loop",
    "packed": "weights in the layout that a kernel reads",
    "arena": "memory for what a call computes meanwhile",
}
"""What words of a report mean; those that it uses stand at its end."""
_AT_HAND = re.compile(r"\b(" + "|".join(_WORDS) + r")\b(?=[ ,]|$)", re.MULTILINE)
_CROPPED_TO = 160  # of a cell
_WHOLE = {"why", "reason", "no merged graph"}  # what to do stands at their end
_ROWS_SHOWN = 40
_MOST_COLUMNS, _MOST_ACROSS, _MOST_BLOCKS = 8, 4, 4
_ACROSS_AT_LEAST = 25  # characters for each of what stands beside each other
_ALL = "Not all rows are shown: report.to_text(everything=True) or `smelt explain --all` has them, to_dict() too."


def text_of(
    name: str,
    verdict: Sequence[str],
    sections: Sequence[tuple[str, str, Sequence[Row], str]],
    *,
    everything: bool,
    width: int,
) -> str:
    """The text of a report in lines of `width` characters: the verdict's lines, then of each section its key, its
    title, its rows, and what stands for it without any; last the words that it uses.
    """
    out = io.StringIO()
    page = console(out, width=width)
    page.print(f"Smelt report: {name}")
    if verdict:
        page.print()
        page.print("\n".join(verdict))
    is_whole = True
    for key, title, rows, empty in sections:
        page.print()
        if not rows:
            page.print(f"{title}: {empty}")
            continue
        shown = Shown(rows) if everything else CHOSEN.get(key, Shown)(rows)
        for part in alike(shown.rows):
            tables, left_out = _tables(title, part, everything, width)
            for table in tables:
                page.print(table)
                title = ""
            if left_out:
                page.print(f"and {left_out} more")
                is_whole = False
        if title:
            page.print(title)
        if shown.hidden:
            page.print(f"and {shown.hidden}")
            is_whole = False
    used = _legend(out.getvalue())
    if used:
        page.print(f"\nWords: {used}")
    if not is_whole:
        page.print(f"\n{_ALL}")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _legend(text: str) -> str:
    """The meanings of the words that a text uses of how nodes run and where memory goes."""
    found = set(_AT_HAND.findall(text))
    return "; ".join(f"{word}: {what}" for word, what in _WORDS.items() if word in found)


def alike(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows in a row about the same kind of thing, told by their first two columns: each such run is a table."""
    return [list(run) for _, run in itertools.groupby(rows, key=lambda row: [*row][:2])]


def columns_of(rows: Sequence[Row]) -> list[str]:
    """All columns of these rows, in order of appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def cell(key: str, value: Any) -> str:
    """A value as a person reads it: bytes and times with what they need of digits, tables of numbers as words."""
    if value is None:
        return ""
    if key in LONG:
        return f"{str(value).count(chr(10)) + 1} lines"
    if isinstance(value, Mapping):
        return _numbers(value)
    if key in NBYTES:
        return size(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if 0 < abs(value) < 0.001:
            return f"{value:.2e}"
        return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _numbers(found: Mapping[str, Any]) -> str:
    """Named numbers, and the names of those that nobody measured."""
    known = ", ".join(f"{name} {cell('', value)}" for name, value in found.items() if value is not None)
    unknown = ", ".join(name for name, value in found.items() if value is None)
    return "; ".join(filter(None, (known, unknown and f"not measured: {unknown}")))


def _tables(title: str, rows: Sequence[Row], everything: bool, width: int) -> tuple[list[Table], int]:
    """The tables of rows that are alike, and how many rows were left out."""
    columns = columns_of(rows)
    across = max(1, min(_MOST_ACROSS, width // _ACROSS_AT_LEAST))
    if len(columns) <= _MOST_COLUMNS or ("kernel" in columns and len(rows) > _MOST_ACROSS):
        shown = rows if everything else rows[:_ROWS_SHOWN]
        return [_down(title, columns, shown)], len(rows) - len(shown)
    # What has many properties has a line for each of them, and a few stand beside each other.
    shown = rows if everything else rows[: across * _MOST_BLOCKS]
    blocks = [shown[i : i + across] for i in range(0, len(shown), across)]
    titles = [title, *[""] * (len(blocks) - 1)]
    found = [_across(title, columns, block) for title, block in zip(titles, blocks, strict=True)]
    return found, len(rows) - len(shown)


def _table(title: str) -> Table:
    return Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)


def _across(title: str, columns: Sequence[str], rows: Sequence[Row]) -> Table:
    table = _table(title)
    first, *others = columns
    table.add_column(first)
    for row in rows:
        table.add_column(cell(first, row.get(first)), overflow="fold")
    for column in others:
        cells = [_shown(column, row.get(column)) for row in rows]
        if any(cells):
            table.add_row(column, *cells)
    return table


def _down(title: str, columns: Sequence[str], rows: Sequence[Row]) -> Table:
    table = _table(title)
    kept = [c for c in columns if any(_shown(c, row.get(c)) for row in rows)]
    for column in kept:
        numeric = all(isinstance(row.get(column), int | float | None) for row in rows)
        # A heading is never broken within a word.
        least = max(map(len, column.split()))
        table.add_column(column, justify="right" if numeric else "left", overflow="fold", min_width=least)
    for row in rows:
        table.add_row(*(_shown(c, row.get(c)) for c in kept))
    return table


def _shown(column: str, value: Any) -> str:
    text = cell(column, value)
    if column == "where":
        text = short_places(text)
    return text if column in _WHOLE or len(text) <= _CROPPED_TO else f"{text[: _CROPPED_TO - 3]}..."
