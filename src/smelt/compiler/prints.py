"""What a program prints, when its graph prints it, too: never shown twice.

Invariant: text that a thread writes while it is muted goes nowhere; what other threads write is not touched.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from smelt.ir import Graph
from smelt.ops.python_ops import written

_STREAMS = ("stdout", "stderr")


def prints(graph: Graph) -> bool:
    """Whether a run of the graph prints something."""
    return any(node.op == "py.print" for node in graph.walk())


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
    """Drop what this thread writes to the standard streams in the block; `pieces`: only so many first ones of each."""
    before = {name: getattr(sys, name) for name in _STREAMS}
    made = {name: _Muted(before[name], None if pieces is None else pieces.get(name, 0)) for name in _STREAMS}
    for name in _STREAMS:
        setattr(sys, name, made[name])
    try:
        yield
    finally:
        for name in _STREAMS:
            if getattr(sys, name) is made[name]:
                setattr(sys, name, before[name])


def muted_again(printed: dict[str, int] | None) -> contextlib.AbstractContextManager[None]:
    """Drop what was printed before a program is run once more."""
    return muted(printed) if printed is not None and any(printed.values()) else contextlib.nullcontext()


def pieces_written() -> dict[str, int]:
    """How many pieces of text graphs have written in this thread, by stream."""
    return {name: getattr(written, name, 0) for name in _STREAMS}


def pieces_since(before: dict[str, int]) -> dict[str, int]:
    """How many were written since then."""
    return {name: count - before[name] for name, count in pieces_written().items()}
