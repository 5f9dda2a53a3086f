"""`smelt cache`: where compiled machine code and plans are kept, and how much of them."""

from __future__ import annotations

import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from smelt.diag import Options, SmeltError
from smelt.diag.console import console
from smelt.runtime.machine.cache import CacheFile, list_cache


class Action(StrEnum):
    """What to do with the cache."""

    SHOW = "show"
    CLEAR = "clear"


def cache(
    action: Annotated[Action, typer.Argument(help="Show what the disk cache contains, or remove it.")] = Action.SHOW,
    folder: Annotated[
        Path | None, typer.Option(help="The cache's folder. Default: $SMELT_CACHE_DIR, else ~/.cache/smelt.")
    ] = None,
    entries: Annotated[bool, typer.Option("--entries", help="Also list every entry, the last used first.")] = False,
) -> None:
    """Show or clear the machine code and the plans that Smelt caches between runs.

    Later processes load a compiled program from here: its kernels, and its
    plan, which has no weights in it. The Python files that Program.code
    writes are in source/ beside it. Clearing it loses nothing but time. The
    folder is readable by you alone, and stays below a limit (512 MB unless
    the option cache_limit_mb says otherwise): the least recently used
    entries are removed.

    \b
    Examples:
      smelt cache
          where it is, how large, how many entries
      smelt cache --entries
          each entry with its size and when it was last used
      smelt cache clear
          remove all of it
      SMELT_CACHE_DIR=/tmp/code smelt cache
          another folder
    """
    where = folder if folder is not None else Path(Options.make().cache_dir)
    try:
        files = list_cache(where)
        sources = sorted((where / "source").glob("*.py"))
        if action is Action.CLEAR:
            _clear(where, files, sources)
        else:
            _show(where, files, sources, entries)
    except OSError as error:
        raise SmeltError(
            f"the cache at {where} cannot be used",
            why=error.strerror or str(error),
            fix="check who owns the folder, or name another one with --folder or SMELT_CACHE_DIR",
            code="S0501",
        ) from error


def _clear(where: Path, files: list[CacheFile], sources: list[Path]) -> None:
    for path in (*(f.path for f in files), *sources):
        path.unlink(missing_ok=True)
    typer.echo(f"removed {_held(files, sources)}, from {where}")


def _show(where: Path, files: list[CacheFile], sources: list[Path], with_entries: bool) -> None:
    typer.echo(f"folder   {where}" + ("" if where.is_dir() else " (not there yet)"))
    typer.echo(f"holds    {_held(files, sources)}")
    if not with_entries or not files:
        return
    out = Table("entry", "holds", "size", "last used")
    for file in files:
        used = datetime.datetime.fromtimestamp(file.last_used).strftime("%Y-%m-%d %H:%M:%S")
        left = "" if file.is_entry else " (left by a killed process)"
        out.add_row(file.path.name, file.kind or "code", _size([file]), used + left)
    console().print(out)


def _held(files: list[CacheFile], sources: list[Path]) -> str:
    count = sum(f.is_entry for f in files)
    plans = sum(f.kind == "plan" for f in files)
    which = f" ({plans} {'plan' if plans == 1 else 'plans'})" if plans else ""
    entries = f"{count} {'entry' if count == 1 else 'entries'}{which}, {_size(files)}"
    return entries + (f", and {len(sources)} captured program(s) as Python" if sources else "")


def _size(files: list[CacheFile]) -> str:
    nbytes = sum(f.nbytes for f in files)
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:.1f} kB"
