"""The containers of Python's that can be copied and compared: what they hold, told without calling the user's code.

An object with slots is one, too: it holds what stands in them by name. So is a tensor: it holds its attributes.
"""

from __future__ import annotations

import operator
import types
from collections import OrderedDict, deque
from collections.abc import Collection
from typing import Any

import torch

from smelt._torch.seen.staged_fakes import attributes
from smelt.capture.reads.reads_arguments import slots_of
from smelt.capture.staging.fakes.symbols import StagedObject, wrap

MISSING: Any = type("_Missing", (), {"__repr__": lambda self: "MISSING"})()
WHOLE: object = type("_Whole", (), {"__repr__": lambda self: "WHOLE"})()


def put_slot(value: object, name: str, held: object) -> None:
    """Have an object's slot hold something (MISSING: nothing)."""
    if isinstance(value, torch.Tensor):
        space = object.__getattribute__(value, "__dict__")
        if held is MISSING:
            space.pop(name, None)
        else:
            space[name] = held
        return
    member = dict(slots_of(type(value)))[name]
    if held is not MISSING:
        member.__set__(value, held)
    elif name in _slots(value):
        member.__delete__(value)


def _slots(value: object) -> dict[str, Any]:
    """What an object holds in slots, by name."""
    if isinstance(value, torch.Tensor):
        return attributes(value)
    found = {}
    for name, member in slots_of(type(value)):
        try:
            found[name] = member.__get__(value)
        except AttributeError:
            continue
    return found


def has_slots_only(container: object) -> bool:
    """Whether what an object holds besides its attributes are slots."""
    return not isinstance(container, (dict, list, set, deque, type, types.CellType, StagedObject))


def _items(container: dict[object, object]) -> Any:
    """What a dictionary holds, in its order; a subclass's own `items` stays out."""
    return (OrderedDict if isinstance(container, OrderedDict) else dict).items(container)


def refill(container: Any, contents: Any) -> None:
    if has_slots_only(container):
        for name in {**_slots(container), **contents}:
            put_slot(container, name, contents.get(name, MISSING))
        return
    base = base_of(container)
    base.clear(container)
    if isinstance(container, dict):
        for key, value in contents.items():
            base.__setitem__(container, key, value)
    elif isinstance(container, set):
        base.update(container, contents)
    else:
        base.extend(container, contents)


def base_of(container: object) -> Any:
    """The builtin class that holds a container's contents: subclasses may load or compute what they show."""
    return next(base for base in (OrderedDict, dict, list, set, deque) if isinstance(container, base))


def contents(container: Any) -> Any:
    """A shallow copy of what a container holds, MISSING for an empty cell."""
    if isinstance(container, StagedObject):
        return wrap(container.slot)
    if isinstance(container, types.CellType):
        try:
            return container.cell_contents
        except ValueError:
            return MISSING
    if isinstance(container, type):
        return dict(vars(container))
    if isinstance(container, dict):
        return dict(_items(container))
    if has_slots_only(container):
        return _slots(container)
    base = base_of(container)
    return set(base.__iter__(container)) if base is set else list(base.__iter__(container))


def is_as_it_was(container: Any, old: Any) -> bool:
    """Whether a container of the kinds that there are most of holds just what it held; False where others may."""
    kind = type(container)
    if kind is dict or kind is OrderedDict:
        return len(container) == len(old) and (
            not old
            or (
                all(map(operator.is_, kind.keys(container), old))
                and all(map(operator.is_, kind.values(container), old.values()))
            )
        )
    if kind is list:
        return len(container) == len(old) and all(map(operator.is_, container, old))
    if kind is types.CellType:
        try:
            return container.cell_contents is old
        except ValueError:
            return old is MISSING
    return False


def holds_the_same(container: Any, old: Any) -> bool:
    """Whether a container of any kind holds just what it held, in the same order where it has one."""
    if isinstance(container, StagedObject):
        return container.slot is old.slot
    if isinstance(container, types.CellType):
        return is_as_it_was(container, old)
    if isinstance(container, type):
        now = vars(container)
        return are_the_same(now.keys(), old) and are_the_same(now.values(), old.values())
    if isinstance(container, dict):
        base = base_of(container)
        return are_the_same(base.keys(container), old) and are_the_same(base.values(container), old.values())
    if has_slots_only(container):
        held = _slots(container)
        return are_the_same(held.keys(), old) and are_the_same(held.values(), old.values())
    if isinstance(container, set):
        return len(container) == len(old) and set(map(id, set.__iter__(container))) == set(map(id, old))
    return are_the_same(contents(container), old)


def are_the_same(some: Collection[object], others: Collection[object]) -> bool:
    """Whether both have the very same objects, in the same order."""
    return len(some) == len(others) and all(map(operator.is_, some, others))
