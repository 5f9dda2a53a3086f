"""How modules are called in a recorded run: the first arguments of each, as they reach its forward.

    notes = CallNotes(modules)
    with notes.watching():
        capture(model, args)
    notes.calls[id(model.layers[0])]       -> (args, kwargs), the very objects

Invariant: looking on changes nothing of what is recorded. More than `limit` bytes are not kept alive: then nothing is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import torch

LIMIT = 1 << 28  # bytes
Given = tuple[tuple[Any, ...], dict[str, Any]]


class CallNotes:
    """The first call of each of some modules.

    calls: arguments by the module's id. is_complete: whether all that was called is there.
    """

    def __init__(self, modules: Iterable[torch.nn.Module], limit: int = LIMIT) -> None:
        self.calls: dict[int, Given] = {}
        self.is_complete = True
        self._wanted = {id(module) for module in modules}
        self._memory: dict[int, int] = {}
        self._limit = limit

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """A block whose captures are watched."""
        token = _notes.set(self)
        try:
            yield
        finally:
            _notes.reset(token)

    def note(self, module: torch.nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """A module's forward is called."""
        if id(module) not in self._wanted or id(module) in self.calls or not self.is_complete:
            return
        for value in (*args, *kwargs.values()):
            for item in value if isinstance(value, list | tuple) else (value,):
                if isinstance(item, torch.Tensor):
                    self._memory[id(item)] = item.numel() * item.itemsize
        if sum(self._memory.values()) > self._limit:
            self.calls.clear()
            self.is_complete = False
        else:
            self.calls[id(module)] = args, dict(kwargs)


_notes: ContextVar[CallNotes | None] = ContextVar("smelt_call_notes", default=None)


def call_notes() -> CallNotes | None:
    """Who wants to know of the calls in this thread's captures."""
    return _notes.get()
