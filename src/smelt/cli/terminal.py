"""What a user sees at the terminal of warnings, and of an exception that the program itself raised."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from smelt.diag import SmeltError, SmeltWarning
from smelt.inspect.places import short_file

_HIDDEN = ("smelt", "torch", "typer", "click", "importlib", "runpy")
"""Packages whose frames say nothing about the user's program."""


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Within it, Smelt's own warnings are printed as `warning: ...`; all others as ever."""
    with warnings.catch_warnings():
        as_ever = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], filename: str, lineno: int,
            file: TextIO | None = None, line: str | None = None,
        ) -> None:  # fmt: skip
            if issubclass(category, SmeltWarning):
                print(f"warning: {message}", file=file or sys.stderr)
            else:
                as_ever(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def user_traceback(error: BaseException) -> str:
    """The traceback of an exception, and of those it came from, with only the frames of the user's program.

    Where the program was not running the fault is ours, and all frames are shown.
    """
    shown = traceback.TracebackException.from_exception(error)
    if _is_of_user(error):
        _hide(shown, error)
    return "".join(shown.format())


def _is_of_user(error: BaseException) -> bool:
    """Whether the user's program was running: a frame of its own, or a call of a module."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(not is_hidden(frame) or frame.f_code.co_name == "_call_impl" for frame in frames)


def _hide(shown: traceback.TracebackException, error: BaseException) -> None:
    """Remove the hidden frames of `shown`, made from `error`, and of all that it was raised from."""
    seen = {id(shown)}
    pending = [(shown, error)]
    while pending:
        shown, error = pending.pop()
        kept = [not is_hidden(frame) for frame, _ in traceback.walk_tb(error.__traceback__)]
        shown.stack[:] = [line for line, is_kept in zip(shown.stack, kept, strict=False) if is_kept]
        for part, origin in ((shown.__cause__, error.__cause__), (shown.__context__, error.__context__)):
            if part is not None and origin is not None and id(part) not in seen:
                seen.add(id(part))
                pending.append((part, origin))


def is_hidden(frame: Any) -> bool:
    """Whether a frame is Smelt's, torch's or the command line's, not of the user's program."""
    module = str(frame.f_globals.get("__name__", ""))
    file = frame.f_code.co_filename
    if file.startswith(("<frozen", "<smelt")) or module.partition(".")[0] in _HIDDEN:
        return True
    return module == "__main__" and Path(file).stem == "smelt"  # the console script


def place_of(error: BaseException) -> str:
    """The innermost line of the user's program in a traceback: `model.py:12 in Block.forward`, or ""."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if not is_hidden(frame)]
    if not frames:
        return ""
    frame, line = frames[-1]
    return f"{short_file(frame.f_code.co_filename)}:{line} in {frame.f_code.co_qualname}"


def syntax_error(error: SyntaxError, file: str) -> SmeltError:
    """A file that Python cannot read, as a sentence with the line."""
    place = f"{short_file(error.filename or file)}:{error.lineno or 1}"
    text = (error.text or "").rstrip("\n")
    column = (error.offset or 1) - 1 - (len(text) - len(text.lstrip()))
    notes = (text.strip(), " " * max(column, 0) + "^") if text.strip() else ()
    return SmeltError(
        f"{place} is not Python: {error.msg}" + "".join(f"\n        {note}" for note in notes),
        fix="correct that line",
        code="S0504",
    )
