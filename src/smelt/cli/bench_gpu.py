"""`smelt bench --device cuda`: models on a GPU, or, with `--dry-run`, their kernels compiled for one."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import typer
from rich.table import Table

from smelt.bench.models import Model
from smelt.bench.on_gpu import ARCHITECTURE, GpuRow, dry_run, run
from smelt.diag.console import console
from smelt.inspect.roofline import Ceilings


def bench_gpu(
    models: Sequence[Model], systems: Sequence[str], dtypes: Sequence[torch.dtype], json: Path | None, dry: bool
) -> None:
    """Print a table; write the rows where a file is named. Raises: typer.BadParameter where there is no GPU."""
    if not dry and not torch.cuda.is_available():
        raise typer.BadParameter(
            "there is no GPU here; --dry-run compiles the models' kernels for one", param_hint="--device"
        )
    rows: list[GpuRow] = []
    ceilings: Ceilings | None = None
    log = console(sys.stderr)
    for dtype in dtypes:
        if dry:
            for row in dry_run(models, dtype):
                log.print(f"{row.model} {row.dtype}: {row.note}", soft_wrap=True)
                rows.append(row)
            continue
        for found, of_model in run(models, systems, dtype):
            ceilings = found
            log.print(f"{of_model[0].model} {of_model[0].dtype}: done", soft_wrap=True)
            rows += of_model
    out = console()
    out.print(_table(rows, dry))
    if ceilings is not None:
        out.print(
            f"{ceilings.threads} multiprocessors: {ceilings.gbps:.0f} GB/s of copying, "
            f"{ceilings.gflops / 1000:.1f} TFLOP/s of bf16 products"
        )
    for row in rows:
        for line in row.waits:
            out.print(f"{row.model} waits for the GPU at {line}", soft_wrap=True)
    if dry:
        out.print(f"compiled for sm_{ARCHITECTURE} without a GPU: nothing was timed")
    if json is not None:
        json.write_text(json_.dumps([row.to_dict() for row in rows], indent=1) + "\n")


def _table(rows: Sequence[GpuRow], dry: bool) -> Table:
    heads = ("compile s",) if dry else ("first s", "ms", "x eager", "bound ms", "error")
    table = Table("model", "dtype", "system", *heads, "kernels", "note")
    for row in rows:
        seconds = _number(row.first_s, 2)
        numbers = (
            (seconds,)
            if dry
            else (seconds, _number(row.ms, 4), _number(row.ratio, 2), _number(row.bound_ms, 4), _number(row.error, 7))
        )
        table.add_row(row.model, row.dtype, row.system, *numbers, str(row.kernels or ""), row.note)
    return table


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
