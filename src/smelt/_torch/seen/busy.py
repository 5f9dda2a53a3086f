"""How many recordings there are in the process, as one word that native code can read.

Invariant: it is 0 only while no thread records a program; a compiled object then need not ask whose thread it is.
Levels of forward-mode gradients count as recordings.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Count:
    """The count, in one or more words."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.words = [ctypes.c_int64()]

    def add(self, more: int) -> None:
        with self.lock:
            for word in self.words:
                word.value += more


_count = _Count()


def share(memory: ctypes.Array[ctypes.c_int64]) -> None:
    """Keep the count in the first word of this memory, too, from now on and for ever."""
    with _count.lock:
        word = ctypes.c_int64.from_buffer(memory)
        word.value = _count.words[0].value
        _count.words.append(word)


def recordings() -> int:
    """How many there are now."""
    return _count.words[0].value


def count(more: int) -> None:
    """So many recordings begin, or end."""
    _count.add(more)


@contextmanager
def busy() -> Iterator[None]:
    """Count this block as a recording."""
    count(1)
    try:
        yield
    finally:
        count(-1)
