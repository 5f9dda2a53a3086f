"""Keeps tensors from becoming sequences: a class whose `__getitem__` was replaced once stays one for CPython.

`torch.tensor([loss, 2.0])` asks of each element whether it is a sequence, which a class is if it has a function in its
slot for items by number. Giving a class a `__getitem__` fills that slot beside the one for items by key; taking it away
fills it again, since two slots go by this name and both are in use by then. `items_by_key` empties it.

Invariant: nothing is written unless the layout of classes was seen to be as expected, on classes made for that.
Source: CPython, Objects/typeobject.c (`update_one_slot`, `resolve_slotdups`), Include/cpython/object.h.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any

# Words of a class: the address of its functions for sequences. Words there: that for items by number.
_AS_SEQUENCE, _ITEM = 13, 3
_WORD = ctypes.sizeof(ctypes.c_void_p)


def items_by_key(cls: type) -> None:
    """Have a class, and those below it that inherit `__getitem__`, give items by key only, as a mapping does."""
    if not _is_known():  # pragma: no cover - another Python
        return
    for kind in _below(cls):
        slot = _item_slot(kind)
        if slot is not None:
            slot.value = None


def has_items_by_number(cls: type) -> bool:
    """Whether a class has a function in the slot for items by number; False where nobody knows."""
    return _is_known() and _is_filled(cls)


def _is_filled(cls: type) -> bool:
    slot = _item_slot(cls)
    return slot is not None and bool(slot.value)


def _below(cls: type) -> list[type]:
    found, todo = [cls], [cls]
    while todo:
        kinds: list[type] = type.__subclasses__(todo.pop())
        for kind in kinds:
            if kind not in found and "__getitem__" not in vars(kind):
                found.append(kind)
                todo.append(kind)
    return found


def _item_slot(cls: type) -> Any:
    address = ctypes.c_void_p.from_address(id(cls) + _AS_SEQUENCE * _WORD).value
    return None if not address else ctypes.c_void_p.from_address(address + _ITEM * _WORD)


@lru_cache(maxsize=1)
def _is_known() -> bool:
    """Whether classes lie in memory as they do in the CPython that this was written for."""
    if sys.implementation.name != "cpython" or _WORD != 8 or (hasattr(sys, "abiflags") and "t" in sys.abiflags):
        return False  # pragma: no cover - another Python

    class Plain:
        pass

    class Listed:
        def __getitem__(self, key: object) -> object:
            return key

    class Below(Listed):
        pass

    wanted = ((Plain, False), (Listed, True), (Below, True), (list, True), (dict, False))
    if any(_is_filled(cls) != expected for cls, expected in wanted):
        return False  # pragma: no cover - another Python
    check = ctypes.pythonapi.PySequence_Check
    slot = _item_slot(Below)
    before, slot.value = slot.value, None
    instance = ctypes.py_object(Below())
    is_sequence, still_works = bool(check(instance)), Below()[3] == 3
    slot.value = before
    return not is_sequence and still_works and bool(check(instance))
