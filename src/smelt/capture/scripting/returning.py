"""What a scripted program returns, as a graph can give it: by values, and with what the run left in its containers."""

from __future__ import annotations

import copy
import enum
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import Any

from smelt.capture.scripting.domain import Open
from smelt.capture.scripting.values.sequences import OpenTuple, ShapeObject
from smelt.capture.staging.flow.iterables import StagedRange
from smelt.capture.staging.objects.heap import Change
from smelt.ops.python.python_calls import class_of

_MUTABLE = frozenset((list, dict, set, deque, OrderedDict, defaultdict))


class AsReturned:
    """A result with Python's own kind of sequence where the graph has lists, and what the run changed as it is now.

    changed: the places of containers that were there before and hold something else now. That is put back when the run
    has ended: the graph, which acts on no object of Python's, returns others that hold what these hold now.
    """

    def __init__(self, domain: Open, changed: Iterable[Change]) -> None:
        self.domain = domain
        self._changed = {id(change.container) for change in changed}
        self._made: dict[int, Any] = {}  # by the id of what it stands for

    def of(self, value: object) -> Any:
        """The result, or a part of one."""
        if isinstance(value, (ShapeObject, OpenTuple)):
            return self.domain.as_in_program(value)
        if isinstance(value, StagedRange) and value.known_length() is None:
            return value.itself()
        if isinstance(value, enum.Enum) and self.domain.session.paths.regions[-1].taken:
            # Another way may return another one.
            cls = f"{type(value).__module__}.{type(value).__qualname__}"
            if class_of(cls) is type(value) and value.name in type(value).__members__:
                return self.domain.emit("py.call", "enum.member", cls, value.name)
        if type(value) is not tuple and type(value) not in _MUTABLE:
            return value
        if id(value) not in self._made:
            self._made[id(value)] = value  # should it hold itself
            self._made[id(value)] = self._container(value)
        return self._made[id(value)]

    def _container(self, value: Any) -> object:
        if isinstance(value, set):
            return copy.copy(value) if id(value) in self._changed else value
        items = [self.of(item) for item in (value.values() if isinstance(value, dict) else value)]
        held = value.values() if isinstance(value, dict) else value
        if id(value) not in self._changed and all(a is b for a, b in zip(items, held, strict=True)):
            return value
        if isinstance(value, tuple):
            return tuple(items)
        made = copy.copy(value)
        if isinstance(made, dict):
            made.update(zip(value, items, strict=True))
        else:
            made.clear()
            made.extend(items)
        return made
