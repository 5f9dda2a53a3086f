"""What a run returns, taken apart: what the run made is made anew at each call, and is one object wherever it stands.

Invariant: what was there before the run, outside its arguments, is that very object in every result: which object stood
where the run found it is guarded.
"""

from __future__ import annotations

import contextvars
import decimal
import dis
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from smelt.capture.reads.reads_values import kind_of
from smelt.capture.structure.tree import (
    ConstantLeaf,
    Container,
    Flattener,
    Made,
    Tree,
    has_parts,
    held_inside,
    is_called_only,
)

# Each changes, or is one of its own, and nothing that is watched tells.
_APART = (contextvars.ContextVar, contextvars.Context, decimal.Context, types.CellType, torch.Generator)
_CHANGING = ("array", "hidden", "lock", "logger", "random")
OWN = "each call makes one of its own, and what becomes of it is nothing to the others"


class Result(Flattener):
    """Takes apart what a run returns, where it leaves nothing else.

    was_there: whether the run came to an object, or could, before it made any; None where nobody knows, and objects
    without tensors are then the same ones at each call. convert: a value as it is to be taken apart.
    """

    def __init__(
        self,
        check: Callable[[object, str], None],
        same: Mapping[int, str],
        was_there: Callable[[object], bool] | None,
        convert: Callable[[object], object] = lambda value: value,
    ) -> None:
        super().__init__(check, same, convert=convert)
        self._was_there = was_there
        self._numbers: dict[int, int] = {}
        self._met_again: set[int] = set()
        # An id means an object for as long as that lives, and what a registered class comes apart into may not.
        self._keep: list[object] = []

    def result(self, value: object) -> Tree:
        """The structure of a result."""
        return _settled(self.flatten(value, "result"), self._met_again)

    def flatten(self, value: object, path: str) -> Tree:
        """The structure of a value, with a number for each container that may have a second place."""
        value = self.convert(value)
        if isinstance(value, torch.Tensor):
            return super().flatten(value, path)
        if self._was_there is not None and id(value) not in self.same and has_parts(value) and self._was_there(value):
            return ConstantLeaf(value)
        if id(value) in self._numbers and id(value) not in self._open:
            self._met_again.add(self._numbers[id(value)])
            return Made(self._numbers[id(value)], None)
        if type(value) is set and self._is_made(value):
            self.check(value, path)
            tree: Tree = self.of_set(value)
        elif type(value) is slice:
            tree = self.of_slice(value, path)
        else:
            tree = super().flatten(value, path)
        if not isinstance(tree, Container):
            if has_parts(value) and _changes(value):
                self.check(value, path)
            return tree
        number = self._numbers[id(value)] = len(self._numbers)
        self._keep.append(value)
        return Made(number, tree)

    def is_closed(self, value: object) -> bool:
        """Whether an object without tensors is returned as itself, for nothing can make another."""
        return not self._is_made(value)

    def _is_made(self, value: object) -> bool:
        if self._was_there is None or self._was_there(value):
            return False
        # An object is the attributes that were found in it, whatever its class makes of others.
        is_object = kind_of(type(value)) == "instance" and not isinstance(value, torch.nn.Module)
        return isinstance(value, dict) or type(value) is set or (is_object and not is_called_only(value))


def holds_its_own(value: object, was_there: Callable[[Any], bool]) -> bool:
    """Whether a leaf is, or holds, what may change and was made by the run: another call's must have its own."""
    # Of an error each call has one of its own, too: whoever raises it or adds a note changes it.
    if (_changes(value) or isinstance(value, BaseException)) and not was_there(value):
        return True
    for found in held_inside(value, was_there):
        if found is value and not isinstance(value, types.FunctionType):
            continue
        kind = kind_of(type(found))
        # A function's cells change by functions that assign to them, which are asked below.
        changes = not isinstance(found, types.CellType) and (_changes(found) or kind in ("iterator", "instance"))
        changes = changes or (kind == "container" and not isinstance(found, (tuple, frozenset)))
        if (changes or (kind == "function" and _rebinds(found.__code__))) and not was_there(found):
            return True
    return False


def _changes(value: object) -> bool:
    return kind_of(type(value)) in _CHANGING or type(value) is object or isinstance(value, _APART)


@lru_cache(maxsize=1024)
def _rebinds(code: types.CodeType) -> bool:
    """Whether a function, or one inside it, assigns to a variable of a function around it."""
    stores = (step.argval for step in dis.get_instructions(code) if step.opname in ("STORE_DEREF", "DELETE_DEREF"))
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return any(name in code.co_freevars for name in stores) or any(map(_rebinds, inner))


def _settled(tree: Tree, met_again: Collection[int]) -> Tree:
    """The structure with the numbers of those containers only that have several places."""
    match tree:
        case Made(number, inner) if inner is not None:
            inner = _settled(inner, met_again)
            return Made(number, inner) if number in met_again else inner
        case Container(items=items, attributes=attributes):
            items, attributes = (tuple(_settled(part, met_again) for part in of) for of in (items, attributes))
            return replace(tree, items=items, attributes=attributes)
    return tree
