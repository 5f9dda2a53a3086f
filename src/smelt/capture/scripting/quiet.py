"""What torch warns of while a script is made: values without data, on ways that no run may take. None of it is shown.

Invariant: what torch says once in a process is still to be said afterwards; the runs say it. What `torch.ops` warns of
C++ prints, past Python's filters.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from types import GetSetDescriptorType
from typing import Any

import torch

_lock = threading.Lock()


class _State:
    """How many threads ask for silence, and what they found."""

    def __init__(self) -> None:
        self.depth = 0
        self.found: contextlib.ExitStack = contextlib.ExitStack()


_state = _State()


@contextlib.contextmanager
def unwarned() -> Iterator[None]:
    """Nothing that torch warns of is shown."""
    with _lock:
        if not _state.depth:
            _state.found.callback(torch.set_warn_always, torch.is_warn_always_enabled())
            _state.found.enter_context(warnings.catch_warnings())
            # What is to be said once counts as said, unless it is to be said always.
            torch.set_warn_always(True)
            warnings.simplefilter("ignore")
        _state.depth += 1
    try:
        yield
    finally:
        with _lock:
            _state.depth -= 1
            if not _state.depth:
                _state.found.close()


def read(tensor: torch.Tensor, name: str) -> Any:
    """`tensor.name`, of which torch may warn (`x.T`)."""
    if not isinstance(getattr(torch.Tensor, name, None), GetSetDescriptorType):
        return getattr(tensor, name)
    with unwarned():
        return getattr(tensor, name)
