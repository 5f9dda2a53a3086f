"""What the matrix found: a row for each configuration, kept as JSON, and what follows from them in numbers."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from smelt.bench.matrix.cell import Cell, Sizes, Times
from smelt.bench.matrix.configurations import EAGER
from smelt.bench.rows import as_plain
from smelt.diag.records import record


@record
class Row:
    """One configuration of one program; the fields are those of `Cell`, and `warm_s` of a process that starts later.

    problem: why there are no numbers, or only some. exact: whether it computes in the program's dtypes.
    """

    configuration: str
    how: str
    exact: bool = True
    problem: str = ""
    compile_s: float | None = None
    compile_cpu_s: float | None = None
    warm_s: float | None = None
    warm_cpu_s: float | None = None
    compile_mb: float | None = None
    run_mb: float | None = None
    error: float | None = None
    times: Sequence[Times] = ()
    sizes: Sizes | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def on(self, threads: int) -> Times | None:
        """The times on so many threads."""
        return next((t for t in self.times if t.threads == threads), None)


@record
class Clock:
    """Which of the times count: those of the clock on `threads`, or, on a busy machine, the processor's."""

    threads: int
    cpu: bool = False

    def ms(self, row: Row) -> float | None:
        """Milliseconds of a call."""
        times = row.on(self.threads)
        return None if times is None else times.cpu_ms if self.cpu else times.wall_ms

    def speed_up(self, row: Row) -> float | None:
        """Eager's time over the row's, both of one process; of eager itself 1."""
        ratio = self.ratio(row)
        return 1.0 if ratio is not None and row.configuration == EAGER else ratio

    def ratio(self, row: Row) -> float | None:
        """The same as it was measured: of eager, how far two equal programs come out apart."""
        times = row.on(self.threads)
        if times is None:
            return None
        return times.eager_cpu_ms / times.cpu_ms if self.cpu else times.eager_wall_ms / times.wall_ms

    def compile_s(self, row: Row, warm: bool = False) -> float | None:
        """Seconds until the first result."""
        if warm:
            return row.warm_cpu_s if self.cpu else row.warm_s
        return row.compile_cpu_s if self.cpu else row.compile_s

    def other_sizes_s(self, sizes: Sizes) -> float:
        """Seconds of the first calls with other numbers of rows."""
        return sizes.first_calls_cpu_s if self.cpu else sizes.first_calls_s

    def pays_after(self, row: Row, eager_ms: float, warm: bool = False) -> int | None:
        """From how many calls on compiling and calling takes less than eager's calls do; None: never, or not known."""
        speed_up, seconds = self.speed_up(row), self.compile_s(row, warm)
        if speed_up is None or seconds is None or speed_up <= 1.0:
            return None
        saved_ms = eager_ms - eager_ms / speed_up
        return max(1, math.ceil(seconds * 1e3 / saved_ms))


@record
class Matrix:
    """All rows of one program, eager's first, and the conditions they were measured under."""

    program: str
    summary: str
    clock: Clock
    rows: Sequence[Row]
    machine: Mapping[str, Any]
    load: float = 0.0
    advice: Sequence[str] = ()

    def write(self, path: Path) -> None:
        """So that a reader sees the old file or the whole new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            json.dump(as_plain(asdict(self)), file, indent=1, allow_nan=False)
            file.write("\n")
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)


def row_of(given: Cell) -> dict[str, Any]:
    """The fields of a row that a cell fills."""
    return {name: getattr(given, name) for name in Cell.__dataclass_fields__}


def cell_of(found: Mapping[str, Any]) -> Cell:
    """A cell as its process has sent it."""
    sizes = found["sizes"]
    times = [Times(**one) for one in found["times"]]
    return Cell(**{**found, "times": times, "sizes": None if sizes is None else Sizes(**sizes)})


def read(path: Path) -> Matrix:
    """A matrix that `write` wrote. Raises: ValueError where the file is none."""
    try:
        data = json.loads(path.read_text())
        rows = [
            Row(**{
                **row,
                "error": None if row["error"] is None else float(row["error"]),
                "times": [Times(**t) for t in row["times"]],
                "sizes": None if row["sizes"] is None else Sizes(**row["sizes"]),
            })
            for row in data["rows"]
        ]  # fmt: skip
        return Matrix(**{**data, "rows": rows, "clock": Clock(**data["clock"])})
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is not what `smelt matrix` wrote: {error}") from None
