"""Tokens of the graph's text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from smelt.diag import SmeltError
from smelt.diag.records import record

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r]+|\#[^\n]*)
  | (?P<newline>\n)
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<value>%(?:[A-Za-z0-9_.]+|"(?:[^"\\\n]|\\.)*"))
  | (?P<number>-?\d+\.\d*(?:[eE][+-]?\d+)?|-?\d+(?:[eE][+-]?\d+)?|-inf\b)
  | (?P<arrow>->)
  | (?P<floordiv>//)
  | (?P<name>[A-Za-z_<][A-Za-z0-9_<>]*(?:\.[A-Za-z0-9_<>]+)*)
  | (?P<punct>[()\[\]{},:=@+\-*%?])
    """,
    re.VERBOSE,
)


@record
class Token:
    """One token: its kind (the group above), its text, its 1-based line and column."""

    kind: str
    text: str
    line: int
    column: int


class TextError(SmeltError):
    """The graph's text does not parse; names the line and column, and shows them."""


def text_error(source: str, line: int, column: int, what: str, fix: str = "") -> TextError:
    """An error at a place of the text, with the line and a caret below it."""
    lines = source.splitlines()
    shown = lines[line - 1] if 0 < line <= len(lines) else ""
    caret = " " * (column - 1) + "^"
    return TextError(
        f"{what} (line {line}, column {column})",
        why=f"the text reads\n       {shown}\n       {caret}",
        fix=fix or "correct the text; docs/graph.md gives the grammar",
        code="S0201",
    )


def tokenize(source: str) -> Iterator[Token]:
    """All tokens but blanks, line ends and comments. Raises: TextError at a character that starts no token."""
    position, line, start = 0, 1, 0
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None:
            raise text_error(source, line, position - start + 1, f"unexpected character {source[position]!r}")
        kind = match.lastgroup or ""
        if kind == "newline":
            line, start = line + 1, match.end()
        elif kind != "space":
            yield Token(kind, match.group(), line, position - start + 1)
        position = match.end()
    yield Token("end", "", line, position - start + 1)
