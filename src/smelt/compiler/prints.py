"""What a program prints, when its graph prints it, too: told apart from other effects, and never shown twice.

Invariant: text that a thread writes while it is muted goes nowhere; what other threads write is not touched.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

from smelt.capture.reads import ReadLog
from smelt.capture.reads_effects import PRINTS
from smelt.ir import Graph
from smelt.ops.python_ops import written

_STREAMS = ("stdout", "stderr")
_NAMES = frozenset(f"sys.{name}" for name in _STREAMS)
_ADDRESS = re.compile(r" at 0x[0-9a-f]")  # an object made anew at each call says where it lies


def prints(graph: Graph) -> bool:
    """Whether a run of the graph prints something."""
    return any(node.op == "py.print" for node in graph.walk())


def only_prints(log: ReadLog) -> bool:
    """Whether a run printed, and did nothing else outside that a replay would not."""
    # The streams themselves may be named (`file=sys.stderr`): whatever else was done with them is an effect of its own.
    others = [effect for effect in log.effects if effect.what != PRINTS and effect.name not in _NAMES]
    return len(log.effects) > len(others) == 0 and not log.mutations


def without_prints(log: ReadLog, graph: Graph) -> ReadLog:
    """The log without those effects that the graph has, at the same line."""
    shown = [node for node in graph.walk() if node.op == "py.print"]
    if any(isinstance(arg, str) and _ADDRESS.search(arg) for node in shown for arg in node.args):
        return log
    places = {(node.span.file, node.span.line) for node in shown if node.span is not None}
    kept = [
        effect for effect in log.effects
        if effect.span is None or (effect.what != PRINTS and effect.name not in _NAMES)
        or (effect.span.file, effect.span.line) not in places
    ]  # fmt: skip
    return ReadLog(log.reads, kept, log.mutations)


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
