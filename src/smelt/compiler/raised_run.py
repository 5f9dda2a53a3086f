"""A recorded run that raised, and whether the program raises by itself as well.

    this = RaisedRun(target)                 before the run is recorded
    this.answer(error, args, kwargs)         the program's answer without a recorder, or the error that is its own

A recorder that the program can see may make it raise where it never would. Invariant: nothing is done twice: what has
changed anything that outlives the run is not run again, and its error stands as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from smelt.capture.reads.reads import ReadLog
from smelt.capture.structure.state import without_state
from smelt.ops.python.python_draws import Generators


class RaisedRun:
    """One run of a program, from before its beginning. log: what it had done when it raised."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self.log: ReadLog | None = None
        self._target = target
        self._wrote = True
        self._generators = Generators()

    def note(self, wrote: bool) -> None:
        """The program raised. wrote: whether it may have written to tensors from outside by then."""
        self._wrote = wrote

    @property
    def has_done_nothing(self) -> bool:
        """Whether it left all as it was but for the generators of random numbers."""
        return not self._wrote and self.log is not None and self.log.has_done_nothing

    def answer(self, error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The answer of the program without a recorder, from where the recorded run began.

        Raises: what it raises so; `error`, that of the recorded run, where it must not run once more.
        """
        if not self.has_done_nothing:
            raise error
        self._generators.restore()
        return self._target(*args, **without_state(kwargs))


def seen_only(error: Exception) -> str:
    """Why a program that raises where it is recorded, and not by itself, is not compiled."""
    return f"it raises {type(error).__name__} where it is recorded, and not by itself: {error}"
