"""Source spans: where in the user's program something came from.

Invariant: a span is plain data (no frame, no code object), so it can be printed, parsed back, pickled and compared.
"""

from __future__ import annotations

import linecache
from dataclasses import field

from smelt.diag.records import record


@record
class Span:
    """One place in the user's source: `file`, 1-based `line`, and the qualified name of the function it is in.

    caller: where that is in an installed library, the user's own line that led to it. It is no part of a graph's text,
    and two spans are equal without it.
    """

    file: str
    line: int
    function: str = ""
    caller: Span | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        return f"{where} in {self.function}" if self.function else where

    @property
    def text(self) -> str:
        """The source line itself, stripped; empty where the file cannot be read (a REPL, a removed file)."""
        return linecache.getline(self.file, self.line).strip()
