"""The matrix of one program: each configuration in processes of its own, with a limit of time.

Invariant: a configuration that fails, or takes too long, is a row that says why, and stops nothing else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from smelt.bench.fresh import NoAnswerError, ask
from smelt.bench.matrix.configurations import Configuration, absent
from smelt.bench.matrix.rows import Row, cell_of, row_of
from smelt.diag.records import record


@record
class Request:
    """What to measure, by names that the other process understands. module: what it runs as.

    threads: the first of them is the one that compile times are of. seconds: of timing, for each number of threads;
    limit_s: of one process.
    """

    module: str
    program: str
    trains: bool
    threads: Sequence[int]
    seconds: float
    limit_s: float


def rows(
    request: Request, configurations: Sequence[Configuration], step: Callable[[str], None] = lambda text: None
) -> Iterator[Row]:
    """A row for each configuration. step: called before each with its name."""
    for configuration in configurations:
        step(configuration.name)
        with tempfile.TemporaryDirectory(prefix="smelt-matrix-", ignore_cleanup_errors=True) as cache_dir:
            yield _row(request, configuration, Path(cache_dir))


def _row(request: Request, configuration: Configuration, cache_dir: Path) -> Row:
    empty = Row(configuration.name, configuration.how, configuration.exact)
    if why := absent(configuration):
        return replace(empty, problem=why)
    if request.trains and not configuration.trains:
        return replace(empty, problem="it runs inference only: no gradients flow through what it makes")
    asked = {
        "program": request.program, "trains": request.trains, "configuration": configuration.name,
        "threads": list(request.threads), "seconds": request.seconds, "cache_dir": str(cache_dir),
    }  # fmt: skip
    try:
        found = ask(request.module, {**asked, "again": False}, cache_dir, request.limit_s)
    except NoAnswerError as error:
        return replace(empty, problem=str(error))
    row = replace(empty, **row_of(cell_of(found)))
    try:
        again = ask(request.module, {**asked, "again": True}, cache_dir, request.limit_s)
    except NoAnswerError as error:
        return replace(row, problem=f"in a second process: {error}")
    return replace(row, warm_s=again["warm_s"], warm_cpu_s=again["warm_cpu_s"])
