"""A seeded bug, and the sources with it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TREE = "SMELT_MUTANT_TREE"
"""The variable that names the folder with the copy."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong line that somebody might write, and the tests that must not let it pass.

    file: below `src/smelt`. old: text that occurs there exactly once; new: what stands in its place. breaks: what goes
    wrong then. tests: what pytest is given. hangs: the bug shows as a run that never ends.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
    hangs: bool = False

    @property
    def path(self) -> Path:
        """The file, below the repository."""
        return Path("src/smelt") / self.file


def mutated(mutant: Mutant, root: Path = ROOT) -> str:
    """The text of the mutant's file with the bug in it.

    Raises: ValueError if the old text is not there exactly once, or if what comes out is no Python.
    """
    text = (root / mutant.path).read_text()
    count = text.count(mutant.old)
    if count != 1:
        raise ValueError(f"{mutant.name}: its text occurs {count} times in {mutant.path}, not once")
    if mutant.new == mutant.old:
        raise ValueError(f"{mutant.name}: changes nothing")
    changed = text.replace(mutant.old, mutant.new)
    try:
        ast.parse(changed)
    except SyntaxError as error:
        raise ValueError(f"{mutant.name}: {mutant.path} is no Python any more: {error}") from error
    return changed


def missing_tests(mutant: Mutant, root: Path = ROOT) -> list[str]:
    """The test files and functions it names that are not there."""
    missing = []
    for selection in mutant.tests:
        file, _, function = selection.partition("::")
        path = root / file
        name = function.partition("[")[0]
        if not path.exists() or (name and f"def {name}(" not in path.read_text()):
            missing.append(selection)
    return missing
