"""Run the tests on the releases of torch and of Python that Smelt is made for, one environment after the other.

    python -m tests.matrix.run                       all: the smoke set, then the folders
    python -m tests.matrix.run --only "torch 2.14"   those whose names contain it (again for more)
    python -m tests.matrix.run --smoke               the smoke set alone
    python -m tests.matrix.run --interpreter 3.14=/opt/python3.14/bin/python3

Each environment is made in a temporary folder (`--in DIR`), and deleted after its tests (`--keep` leaves it). What was
found is written to docs/versions.md, a row for each combination; rows of those that did not run stay as they were. Ends
with 1 if a test failed, or if an environment could not be made.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from tests.matrix.environment import ROOT, CannotMake, Combination, Environment, make

COMBINATIONS: Final = (
    *(Combination(torch, "3.11") for torch in ("2.11.0", "2.13.0", "2.14.1", "2.15.0")),
    *(Combination("2.14.1", python) for python in ("3.12", "3.13", "3.14")),
)
FOLDERS: Final = tuple(f"tests/{name}" for name in ("capture", "runtime", "guards", "promises", "staging"))
SMOKE: Final = ("tests/matrix/test_smoke.py", "tests/ingots/test_versions.py")
# It changes whatever a program can reach, and is run in processes of its own.
_LEFT_OUT: Final = ("--ignore=tests/guards/test_fuzzer.py",)
REPORT: Final = ROOT / "docs" / "versions.md"
_ROW: Final = re.compile(r"^\| (?P<torch>\d[\d.]*) \| (?P<python>\d[\d.]*) \|", re.MULTILINE)
_HEAD: Final = """# Versions

Smelt is made for torch 2.11 to 2.15 and Python 3.11 to 3.14. `make matrix` makes an environment for each combination,
runs a smoke set (`tests/matrix/test_smoke.py`, and saved programs of all formats, `tests/ingots/test_versions.py`)
and the tests of capture, runtime, guards, promises and staging there, and writes this table: only what ran is in it.
Small substitutes replace the GPU libraries that a build of torch wants. Outside of these ranges Smelt warns once.

| torch | Python | date | smoke set | folders | native entry | fallbacks |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Count:
    """How many tests passed and failed, and the names of those that failed."""

    passed: int
    failed: int
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.passed} passed" + (f", {self.failed} failed" if self.failed else "")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a combination showed. folders: None where the smoke set alone ran; part: those that ran, unless all did."""

    combination: Combination
    torch: str
    python: str
    native_entry: bool
    fallbacks: tuple[str, ...]
    smoke: Count
    folders: Count | None
    part: tuple[str, ...] = ()

    def row(self, day: date) -> str:
        """Its row of the report."""
        folders = "not run" if self.folders is None else str(self.folders)
        folders += f" ({', '.join(Path(folder).name for folder in self.part)})" if self.part else ""
        entry, others = "yes" if self.native_entry else "no", "; ".join(self.fallbacks) or "none"
        return f"| {self.torch} | {self.python} | {day} | {self.smoke} | {folders} | {entry} | {others} |"


def counted(output: str) -> Count:
    """What pytest's output says. Raises: ValueError where it ran nothing."""
    found = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?)\b", output)}
    if not found:
        raise ValueError(output[-2000:])
    names = tuple(re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE))
    return Count(found.get("passed", 0), sum(found.values()) - found.get("passed", 0), names)


def _tests(environment: Environment, workers: int, *what: str) -> Count:
    options = ("-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", "-m", "not nightly")
    options += ("-o", "addopts=--strict-markers --import-mode=importlib", "-n", str(workers), "-q")
    done = environment.run(*options, *what, log=environment.folder / "tests.log")
    try:
        found = counted(done.stdout)
    except ValueError:
        raise CannotMake(f"pytest ended with {done.returncode}: {done.stdout[-300:]}") from None
    if found.failed:
        print(done.stdout[-20000:], file=sys.stderr)
    return found


def attempt(combination: Combination, environment: Environment, folders: Sequence[str], workers: int) -> Outcome:
    """Run the tests there. Raises: CannotMake."""
    probed = environment.run("-m", "tests.matrix.probe")
    if probed.returncode != 0:
        raise CannotMake(probed.stderr.strip().splitlines()[-1])
    told = json.loads(probed.stdout.splitlines()[-1])
    smoke = _tests(environment, workers, *SMOKE)
    whole = _tests(environment, workers, *folders, *_LEFT_OUT) if folders else None
    version = told["torch"].partition("+")[0]
    ways, part = tuple(told["fallbacks"]), () if {*folders} == {*FOLDERS} else tuple(folders)
    return Outcome(combination, version, told["python"], told["native_entry"], ways, smoke, whole, part)


def _key(row: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    found = _ROW.match(row)
    assert found is not None
    torch, python = (tuple(map(int, found[name].split("."))) for name in ("torch", "python"))
    return python[:2], torch[:2]


def write(outcomes: Sequence[Outcome], day: date, report: Path = REPORT) -> None:
    """Put rows into the report; sections behind the table stay."""
    table, *sections = re.split(r"(?=\n## )", report.read_text() if report.exists() else "")
    rows = {_key(line): line for line in table.splitlines() if _ROW.match(line)}
    rows |= {_key(row): row for row in (outcome.row(day) for outcome in outcomes)}
    report.write_text(_HEAD + "".join(f"{rows[key]}\n" for key in sorted(rows)) + "".join(sections))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.run")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--in", dest="folder", type=Path)
    parser.add_argument("--interpreter", action="append", default=[], metavar="VERSION=PATH")
    parser.add_argument("--folder", dest="folders", action="append", default=[])
    given = parser.parse_args()
    interpreters = dict(word.split("=", 1) for word in given.interpreter)
    chosen = [c for c in COMBINATIONS if not given.only or any(word in c.name for word in given.only)]
    folders = () if given.smoke else tuple(given.folders) or FOLDERS
    place = given.folder or Path(tempfile.mkdtemp(prefix="smelt-matrix-"))
    place.mkdir(parents=True, exist_ok=True)
    failed = not chosen
    for combination in chosen:
        folder = place / re.sub(r"[ ,]+", "-", combination.name)
        try:
            made = Environment(folder) if folder.exists() else make(combination, folder, interpreters)
            outcome = attempt(combination, made, folders, given.workers)
        except (CannotMake, subprocess.CalledProcessError) as error:
            print(f"{combination.name}: {error}", flush=True)
            failed = True
            continue
        finally:
            if not given.keep:
                shutil.rmtree(folder, ignore_errors=True)
        write([outcome], date.today())
        print(outcome.row(date.today()), flush=True)
        for count in (outcome.smoke, *([outcome.folders] if outcome.folders is not None else [])):
            failed = failed or count.failed > 0
            for name in count.names:
                print(f"  {name}", flush=True)
    if given.folder is None and not given.keep:
        shutil.rmtree(place, ignore_errors=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
