"""Places of the program: files become sources of the page, with the lines that something points at and those around.

Invariant: a place that the page has points at a line which it has; a file that nobody can read has no place.
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence

from smelt.diag import Span
from smelt.inspect.page.model import Place, Source
from smelt.inspect.places import is_installed, short_file

_WHOLE = 400  # lines of a file that is shown from end to end
_AROUND = 12


class Places:
    """Collects the lines that a page points at."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._lines: list[set[int]] = []

    def at(self, span: Span | None) -> list[Place]:
        """The place of a span, then the places that led to it."""
        found: list[Place] = []
        while span is not None:
            place = self.line(span.file, span.line)
            if place is not None and place not in found:
                found.append(place)
            span = span.caller
        return found

    def line(self, file: str, line: int) -> Place | None:
        """One line of a file; None where it cannot be read."""
        if line < 1 or not linecache.getline(file, line):
            return None
        index = self._files.setdefault(file, len(self._files))
        if index == len(self._lines):
            self._lines.append(set())
        self._lines[index].add(line)
        return index, line

    def named(self, text: str) -> Place | None:
        """A place as reports spell it: `file:line in function`, of several the first."""
        file, _, line = text.split(", ")[0].partition(" in ")[0].rpartition(":")
        return self.line(file, int(line)) if file and line.isdigit() else None

    def sources(self) -> Sequence[Source]:
        """The files, in the order in which they were first named."""
        return [
            Source(short_file(file), not is_installed(file), _shown(linecache.getlines(file), self._lines[index]))
            for file, index in self._files.items()
        ]


def _shown(lines: Sequence[str], wanted: set[int]) -> list[tuple[int, str]]:
    """The lines of a file with their numbers: all of a short one, else those around what is pointed at."""
    numbers = range(1, len(lines) + 1)
    if len(lines) > _WHOLE:
        near = {number for line in wanted for number in range(line - _AROUND, line + _AROUND + 1)}
        numbers_shown = [number for number in numbers if number in near]
    else:
        numbers_shown = list(numbers)
    return [(number, lines[number - 1].rstrip("\n")) for number in numbers_shown]
