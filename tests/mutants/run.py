"""Put each seeded bug into a copy of the sources and run the tests that must catch it.

    python -m tests.mutants.run                   all of them, two at a time, after the same tests without any bug
    python -m tests.mutants.run argmax cache      those whose names contain one of the words

Ends with 1 if a bug survives, if its text is no longer there, or if the tests fail without it. The working tree is only
read.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.table import Table

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import ROOT, TREE, Mutant, mutated

TIMEOUT_S = 300
HANG_S = 60
"""How long a bug that shows as an endless run is waited for."""

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_STYLES = {"caught": "green", "survived": "bold red", "stale": "bold red", "broken": "bold red"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant: caught, survived, stale (its text is gone) or broken (no test could run)."""

    mutant: Mutant
    status: str
    by: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """The end of a run of pytest. `code` is None where it did not come in time."""

    code: int | None
    output: str


def attempt(mutant: Mutant, root: Path = ROOT) -> Outcome:
    """Run a mutant's tests over a copy of `root / "src"` with its bug."""
    begin = perf_counter()
    try:
        text = mutated(mutant, root)
    except ValueError as error:
        return Outcome(mutant, "stale", str(error), 0.0)
    with tempfile.TemporaryDirectory(prefix="smelt-mutant-") as folder:
        file = _copied(root, Path(folder)) / mutant.file
        file.write_text(text)
        # Compiled files are told apart by seconds and size; this one must not be taken for the old.
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
            compiled.unlink()
        run = _pytest(Path(folder), mutant.tests, HANG_S if mutant.hangs else TIMEOUT_S)
    status, by = judged(mutant, run)
    return Outcome(mutant, status, by, perf_counter() - begin)


def control(mutants: Sequence[Mutant], root: Path = ROOT) -> Outcome | None:
    """The same tests over an unchanged copy: what fails there catches nothing. None where all pass."""
    begin = perf_counter()
    selected = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    with tempfile.TemporaryDirectory(prefix="smelt-mutant-") as folder:
        _copied(root, Path(folder))
        run = _pytest(Path(folder), selected, None)
    if run.code == 0:
        return None
    nothing = Mutant("(no bug)", "", "", "", "the tests fail without any", selected)
    return Outcome(nothing, "broken", _first_failure(run), perf_counter() - begin)


def _copied(root: Path, folder: Path) -> Path:
    """A copy of the package in a folder."""
    shutil.copytree(root / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    return folder / "src" / "smelt"


def _pytest(folder: Path, tests: Sequence[str], timeout_s: float | None) -> Run:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    env |= {"PYTHONPATH": str(folder / "src"), TREE: str(folder), "SMELT_CACHE_DIR": str(folder / "cache")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "--tb=line",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.mutants.plugin",
    ]
    # A session of its own, so that an endless run ends with the processes that it started.
    process = subprocess.Popen(
        [*command, "-m", "not nightly or spread", *tests], cwd=ROOT, env=env, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        return Run(None, output)
    return Run(process.returncode, output)


def judged(mutant: Mutant, run: Run) -> tuple[str, str]:
    """What a run says of a mutant, and by which test. An error before the tests begin catches nothing."""
    match run.code:
        case 0:
            return "survived", ""
        case 1:
            return "caught", _first_failure(run)
        case None:
            return ("caught" if mutant.hangs else "broken"), "it did not end"
        case code if code < 0 or code >= 128:
            return "caught", f"the process ended by signal {-code if code < 0 else code - 128}"
    return "broken", _first_failure(run)


def _first_failure(run: Run) -> str:
    found = _FAILED.search(run.output)
    if found is not None:
        return found[1]
    return "\n".join(run.output.strip().splitlines()[-3:])


def report(outcomes: Sequence[Outcome]) -> Table:
    """The outcomes as a table."""
    table = Table(title="seeded bugs")
    for column in ("bug", "what breaks", "status", "by", "s"):
        table.add_column(column, overflow="fold", justify="right" if column == "s" else "left")
    for one in outcomes:
        status = f"[{_STYLES[one.status]}]{one.status}[/]"
        # A name in brackets is no markup.
        by = one.by.removeprefix("tests/").replace("[", r"\[")
        table.add_row(one.mutant.name, one.mutant.breaks, status, by, f"{one.seconds:.0f}")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; the exit status."""
    parser = argparse.ArgumentParser(prog="mutants", description="Seed bugs and see the tests catch them.")
    parser.add_argument("words", nargs="*", help="only bugs whose names contain one of these")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-control", action="store_true", help="leave out the run without a bug")
    given = parser.parse_args(arguments)
    chosen = [m for m in MUTANTS if not given.words or any(word in m.name for word in given.words)]
    console = Console()
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="smelt-mutants-") as folder, ThreadPoolExecutor(given.jobs) as pool:
        # Compiled once, for all copies; and what is edited meanwhile does not count.
        compileall.compile_dir(_copied(ROOT, Path(folder)), quiet=2)
        checked = None if given.no_control else pool.submit(control, chosen, Path(folder))
        for one in pool.map(partial(attempt, root=Path(folder)), chosen):
            outcomes.append(one)
            console.print(f"{len(outcomes):3}/{len(chosen)} {one.mutant.name}: {one.status}", highlight=False)
        unchanged = checked.result() if checked is not None else None
    console.print(report([*outcomes, *([unchanged] if unchanged is not None else [])]))
    bad = [one for one in outcomes if one.status != "caught"]
    console.print(f"{len(outcomes) - len(bad)} of {len(outcomes)} seeded bugs are caught")
    return 1 if bad or unchanged is not None else 0


if __name__ == "__main__":
    sys.exit(main())
