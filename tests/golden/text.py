"""Golden files: a source and the text that it becomes, side by side in one file.

A file holds cases. A case is a line `# name`, a line with what is done (`stage: graph`), the source, a line `==>`, and
the text. `pytest --bless` writes the texts; then read the diff.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One case. how: the line under its name; before: the source; after: the text."""

    name: str
    how: str
    before: str
    after: str


def read(path: Path) -> list[Case]:
    """The cases of a file."""
    cases = []
    for block in ("\n" + path.read_text(encoding="utf-8")).split("\n# ")[1:]:
        name, how, body = block.split("\n", 2)
        before, _, after = body.partition("\n==>")
        cases.append(Case(name, how, before.strip("\n"), after.strip()))
    return cases


def write(path: Path, cases: Sequence[Case]) -> None:
    """A file of cases."""
    blocks = [f"# {c.name}\n{c.how}\n{c.before}\n==>\n{c.after}\n" for c in cases]
    path.write_text("\n".join(blocks), encoding="utf-8")


def bless(path: Path, name: str, text: str) -> None:
    """Let a text be what is expected of one case."""
    write(path, [replace(case, after=text) if case.name == name else case for case in read(path)])


def check(path: Path, case: Case, outcome: Callable[[Case], str], is_blessed: bool) -> None:
    """Compare a case's text with what is expected, or write it."""
    found = outcome(case)
    if is_blessed:
        bless(path, case.name, found)
        return
    assert found == case.after, f"{path.name}: {case.name}\n{found}"
