"""Calls of a program whose state is one of its arguments: what its places hold is read, and given to it.

    c(x)    ==>    core(x, **{STATE: (self.n, self.ema)})       which is served like any call, natively where it can be

Invariant: what places hold is read right before the call and put by the compiled program; no other call of the same
compiled object comes between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.capture.state import STATE, Place, reader

SLOT = "_smelt_dispatcher"


class Core:
    """What native code is called through: it finds the dispatcher, as in a compiled object."""

    __slots__ = (SLOT,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        dispatcher = object.__getattribute__(self, SLOT)
        return dispatcher(args, kwargs)


class StateCalls:
    """The places of one program, and calls with what they hold."""

    __slots__ = ("_read", "places")

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = tuple(places)
        self._read = reader(places)

    @staticmethod
    def core(dispatcher: Any) -> Core:
        """A callable with the program's rows. It is made for one call: it keeps the dispatcher alive."""
        found = Core()
        object.__setattr__(found, SLOT, dispatcher)
        return found

    def run(self, dispatcher: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer, while no other call runs.

        Raises: StateGone where a place holds nothing; what the program raises.
        """
        try:
            kwargs[STATE] = self._read()
        except (LookupError, ValueError, AttributeError):
            raise StateGone from None
        return self.core(dispatcher)(*args, **kwargs)


class StateGone(Exception):
    """A place of the state holds nothing."""
