"""What a program prints and warns of, when its graph does so, too: never shown twice.

Invariant: what a thread writes or warns of while it is muted goes nowhere; that of other threads is not touched.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from smelt.ir import Graph
from smelt.ops.python.python_ops import written
from smelt.ops.python.python_warnings import Given, given

SHOWING = ("py.print", "py.warn")
_STREAMS = ("stdout", "stderr")
_WARNINGS = "warnings"


def prints(graph: Graph) -> bool:
    """Whether a run of the graph prints something, or gives a warning."""
    return any(node.op in SHOWING for node in graph.walk())


class _Muted:
    """A stream that drops what this thread writes: all, or the first few pieces."""

    def __init__(self, stream: Any, pieces: int | None) -> None:
        self.stream, self.pieces, self.thread = stream, pieces, threading.get_ident()

    def write(self, text: str) -> Any:
        """As the stream does."""
        if threading.get_ident() != self.thread or self.pieces == 0:
            return self.stream.write(text)
        if self.pieces is not None:
            self.pieces -= 1
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def muted(pieces: dict[str, int] | None = None) -> Iterator[None]:
    """Drop what this thread writes to the standard streams and warns of in the block; `pieces`: only so many first ones
    of each, and as many warnings as graphs gave last.
    """
    before = {name: getattr(sys, name) for name in _STREAMS}
    made = {name: _Muted(before[name], None if pieces is None else pieces.get(name, 0)) for name in _STREAMS}
    for name in _STREAMS:
        setattr(sys, name, made[name])
    again = None if pieces is None else list(given.last)[-count:] if (count := pieces.get(_WARNINGS, 0)) else []
    try:
        with _unwarned(again):
            yield
    finally:
        for name in _STREAMS:
            made[name].pieces = 0  # another thread's block may have begun in this one, and put it back at its end
            if getattr(sys, name) is made[name]:
                setattr(sys, name, before[name])


@contextlib.contextmanager
def _unwarned(again: list[Given] | None) -> Iterator[None]:
    """Show no warning of this thread in the block, or none of these."""
    show, thread = getattr(warnings, "_showwarnmsg", None), threading.get_ident()
    if again == [] or show is None:
        yield
        return

    def showing(told: warnings.WarningMessage) -> None:
        if threading.get_ident() == thread:
            if again is None:
                return
            # Not by its place: with `stacklevel` that is whoever calls, which is Smelt this time.
            this = next((one for one in again if one[:2] == (str(told.message), told.category)), None)
            if this is not None:
                again.remove(this)
                return
        show(told)

    vars(warnings)["_showwarnmsg"] = showing
    try:
        yield
    finally:
        again = []  # another thread's block may have begun in this one, and put it back at its end
        if vars(warnings)["_showwarnmsg"] is showing:
            vars(warnings)["_showwarnmsg"] = show


def muted_again(printed: dict[str, int] | None) -> contextlib.AbstractContextManager[None]:
    """Drop what was printed before a program is run once more."""
    return muted(printed) if printed is not None and any(printed.values()) else contextlib.nullcontext()


def pieces_written() -> dict[str, int]:
    """How many pieces of text graphs have written in this thread, by stream, and how many warnings they gave."""
    return {**{name: getattr(written, name, 0) for name in _STREAMS}, _WARNINGS: given.count}


def pieces_since(before: dict[str, int]) -> dict[str, int]:
    """How many were written since then."""
    return {name: count - before[name] for name, count in pieces_written().items()}
