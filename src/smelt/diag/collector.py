"""Python's garbage collector while a program is recorded and compiled.

A capture makes tens of thousands of objects, after which Python looks through all that the process holds for garbage
cycles, everything that was imported before included: 150 ms where torch and a model library are loaded. Most often it
finds nothing that the collections of young objects, which go on, have not found.

Those come after as many new objects of the program as ever: a hundred times as many and more are the capture's own,
and stay (BERT-base: 115 are its own, 20,000 its capture's, 60,000 those of its first compiled call).
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 2**31 - 1
_OBJECTS_PER_OBJECT = 100  # that a capture makes, for each that the recorded program makes and keeps


class _Postponed:
    """Who wants full collections to wait, and the thresholds that they are under otherwise."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.is_silent = False
        self.before = gc.get_threshold()
        self.begun_after = self.ended_after = 0

    @property
    def meanwhile(self) -> tuple[int, int, int]:
        """The thresholds in the block; collections that are switched off stay so."""
        more = _NEVER if self.is_silent else _OBJECTS_PER_OBJECT
        return min(self.before[0] * more, _NEVER), self.before[1], _NEVER

    def enter(self) -> None:
        with self.lock:
            self.users += 1
            if self.users == 1:
                self.begun_after = _collections_of_new()
                self.before = gc.get_threshold()
                gc.set_threshold(*self.meanwhile)

    def leave(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:
                self.ended_after = _collections_of_new()
                self.restore()

    def be_silent(self) -> None:
        """Let there be no collections until nobody wants full ones to wait."""
        with self.lock:
            is_ours = self.users > 0 and gc.get_threshold() == self.meanwhile
            self.is_silent = self.users > 0
            if is_ours:
                gc.set_threshold(*self.meanwhile)

    def restore(self) -> None:
        # Whoever set them meanwhile, as the recorded program may, has them.
        if gc.get_threshold() == self.meanwhile:
            gc.set_threshold(*self.before)
        self.is_silent = False

    @property
    def youngest(self) -> int:
        """The generation of what the last block has made: none was collected in it, or those that lived are older."""
        with self.lock:
            return 0 if not self.users and self.ended_after == self.begun_after else 1

    def in_child(self) -> None:
        self.lock = threading.Lock()
        if self.users:
            self.users = 0
            self.restore()


def _collections_of_new() -> int:
    """How often the newest objects of the process were collected."""
    count: int = gc.get_stats()[0]["collections"]
    return count


_postponed = _Postponed()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _postponed.in_child())


def collect_young() -> None:
    """Free the cycles of what was made of late, unless collections are switched off.

    Graphs, and the frames that an exception has passed, refer to themselves, and to tensors. A collection of all
    objects, which would find them, may not come for long; what a build has made is young, so that this one looks at
    little else: most often at the newest objects alone.
    """
    if gc.isenabled():
        gc.collect(_postponed.youngest)


@contextmanager
def full_collections_later() -> Iterator[None]:
    """Let collections of all objects wait until the block ends, in every thread; those of young ones are rarer."""
    _postponed.enter()
    try:
        yield
    finally:
        _postponed.leave()


def collections_later() -> None:
    """In the rest of such a block, let collections of young objects wait, too: what a compiler makes stays for long."""
    _postponed.be_silent()
