"""The `smelt` program: the list of commands, and what an error looks like at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

import smelt
from smelt.cli.bench import bench
from smelt.cli.cache import cache
from smelt.cli.demos.demo import demo
from smelt.cli.diff import diff
from smelt.cli.docs import docs
from smelt.cli.explore import explore
from smelt.cli.export import export
from smelt.cli.matrix import matrix
from smelt.cli.plan import plan
from smelt.cli.program import explain, show
from smelt.cli.run import run
from smelt.cli.terminal import plain_warnings, user_traceback
from smelt.diag import SmeltError

_COMMANDS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("demo", demo),
    ("run", run),
    ("show", show),
    ("explain", explain),
    ("explore", explore),
    ("plan", plan),
    ("bench", bench),
    ("matrix", matrix),
    ("diff", diff),
    ("export", export),
    ("cache", cache),
    ("docs", docs),
)
"""Name and function of every command, in the order of `smelt --help`."""


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"smelt {smelt.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Melt a PyTorch program down to one readable graph and run it as native code."""


def _build_app() -> typer.Typer:
    settings = {"help_option_names": ["-h", "--help"]}
    built = typer.Typer(
        no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False, context_settings=settings
    )
    built.callback()(_root)
    for name, function in _COMMANDS:
        built.command(name, context_settings=settings)(function)
    return built


app = _build_app()


def main() -> None:
    """The console entry.

    Exit codes: 0 done, 1 an error of Smelt's catalogue or of the user's program, 2 wrong usage, 130 interrupted.
    """
    with plain_warnings():
        try:
            app()
        except SmeltError as error:
            print(error, file=sys.stderr)
        except Exception as error:
            print(user_traceback(error), end="", file=sys.stderr)
        else:
            return
    sys.exit(1)
