"""The terminal as all of Smelt writes to it: text as it is, without markup, emoji names or a notebook's display.

Invariant: every console and progress bar is made here. Paths, messages and source hold brackets and colons (`x[0]`,
`pip install "name[extra]"`), which rich would take for its own words; emphasis is a `Text` or a style.
"""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

_PAGE = 100  # characters, where there is no terminal
_LEAST = 40


def console(file: TextIO | None = None, *, stderr: bool = False, width: int | None = None) -> Console:
    """A console on `file` (standard output, or standard error) that shows text as it is."""
    return Console(
        file=file, stderr=stderr, width=width, markup=False, emoji=False, highlight=False, force_jupyter=False
    )


def page_width(width: int | None = None) -> int:
    """The width of a text in characters: the one given, else the terminal's (COLUMNS first), else that of a page."""
    return max(_LEAST, shutil.get_terminal_size((_PAGE, 24)).columns if width is None else width)


def text_column(text: str) -> TextColumn:
    """A column of a progress bar that shows text as it is."""
    return TextColumn(text, markup=False)


def progress(
    *more: ProgressColumn, wanted: bool | None = None, transient: bool = True, auto_refresh: bool = True
) -> Progress:
    """A progress bar on standard error: what is being done, how much of it, since when; `more` columns behind.

    wanted: None for one on a terminal only; True for its last state in a file, too. transient: on a terminal it goes
    when it is done. auto_refresh: a thread draws it, so that its clock goes on between the updates.
    """
    columns = (text_column("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), *more)
    log = console(sys.stderr)
    return Progress(
        *columns, console=log, transient=transient and log.is_terminal, auto_refresh=auto_refresh,
        disable=not (log.is_terminal if wanted is None else wanted), redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
