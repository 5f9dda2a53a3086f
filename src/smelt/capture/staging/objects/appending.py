"""Lists outside the program that it only appends to: in a staged run something else stands there, which takes in what
the program appends and ends the run where it is used for anything else.

    self.log.append(x)          the recorded run did no more with `self.log`; another way, which it did not take, may

What the list holds is no argument of the graph, so nothing may follow from it. Invariant: what stood there does again
once the run is over.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from smelt.capture.recording.spans import is_users
from smelt.capture.staging.flow.stops import CannotStage
from smelt.capture.structure.state import Place

_USES = (
    "__len__", "__bool__", "__iter__", "__reversed__", "__getitem__", "__setitem__", "__delitem__", "__contains__",
    "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__add__", "__radd__", "__iadd__", "__mul__",
    "__rmul__", "__imul__", "__repr__", "__str__", "__format__", "__reduce_ex__", "__copy__", "__deepcopy__",
    "__call__", "__hash__",
)  # fmt: skip


class Appending:
    """Stands for one such list; items: those of this run, in a list of Python's or a staged one.

    It has no slots: a walk over what a program holds follows the attributes of any object.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.items: Any = []

    @property
    def append(self) -> Any:
        """For code that is not converted. Raises: CannotStage where the graph holds the list."""
        return self.items.append if type(self.items) is list else self.refuse()

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # what `isinstance` asks
        return self.refuse() if is_users(sys._getframe(1).f_code.co_filename) else Appending

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # as Smelt itself asks of any object
            raise AttributeError(name)
        self.refuse()

    def refuse(self) -> NoReturn:
        """Raises: CannotStage."""
        raise CannotStage(f"{self.place.name} is not only appended to on all paths", "its items are no argument", None)


for _name in _USES:
    setattr(Appending, _name, lambda self, *args: self.refuse())


@contextlib.contextmanager
def appending(places: Iterable[Place]) -> Iterator[None]:
    """Have these stand there for the time of the block."""
    before: list[tuple[Place, object]] = []
    try:
        for place in places:
            if place.is_appended:
                before.append((place, place.read()))
                place.put(Appending(place))
        yield
    finally:
        for place, held in before:
            place.put(held)
