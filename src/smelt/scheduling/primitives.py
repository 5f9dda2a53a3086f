"""What primitives and the typed methods of a schedule are made of.

Invariant: a primitive edits the draft that it is given and nothing else. It raises ScheduleError before or during its
edits as it likes: a draft that is not finished leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from smelt.scheduling.draft import Draft, Selected


class Primitive:
    """Base of all primitives: a name, and what it does to a draft.

    keeps_meaning: whether the program computes the same afterwards, so that the original may run instead.
        own_randomness: whether drawing other random numbers is its purpose. on_graphs: whether it changes no module,
            and applies steps to graphs only, also when it is applied to a module.
    """

    name: ClassVar[str] = ""
    keeps_meaning: ClassVar[bool] = True
    own_randomness: ClassVar[bool] = False
    on_graphs: ClassVar[bool] = False

    @classmethod
    def allowed_error(cls, arguments: Mapping[str, Any]) -> float:
        """The error that a step with these arguments causes on purpose, relative to the rms of the result."""
        return 0.0

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        """Edit the draft. Called once for each module that the step's path names.

        Raises: ScheduleError where the step is not legal; then nothing has changed.
        """
        raise NotImplementedError


class Steps:
    """What a schedule, and a selection of several modules, can be told to do; the base of all typed methods."""

    def take(self, primitive: str, arguments: Mapping[str, Any], matches: Any = None, scope: str | None = None) -> Self:
        """Take a step here: check it and apply it, or raise and leave everything as it is.

        matches: what the step is about, a match of `find` or several; None for the module itself. scope: the module
            whose graph is edited, by its path from the whole model; by default the smallest that holds the matches.
        Raises: ScheduleError: S0606 for a primitive that there is not, and whatever the primitive raises.
        """
        raise NotImplementedError
