"""What a run returns, taken apart: what the run made is made anew at each call, and is one object wherever it stands.

Invariant: what was there before the run, outside its arguments, is that very object in every result: which object stood
where the run found it is guarded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from smelt.capture.reads_values import kind_of
from smelt.capture.tree import ConstantLeaf, Container, Flattener, Made, Tree, has_parts, is_called_only


class Result(Flattener):
    """Takes apart what a run returns, where it leaves nothing else.

    was_there: whether the run came to an object, or could, before it made any; None where nobody knows, and objects
    without tensors are then the same ones at each call. convert: a value as it is to be taken apart.
    """

    def __init__(
        self,
        check: Callable[[Any, str], None],
        same: Mapping[int, str],
        was_there: Callable[[Any], bool] | None,
        convert: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        super().__init__(check, same, convert=convert)
        self._was_there = was_there
        self._numbers: dict[int, int] = {}
        self._met_again: set[int] = set()
        # An id means an object for as long as that lives, and what a registered class comes apart into may not.
        self._keep: list[Any] = []

    def result(self, value: Any) -> Tree:
        """The structure of a result."""
        return _settled(self.flatten(value, "result"), self._met_again)

    def flatten(self, value: Any, path: str) -> Tree:
        """The structure of a value, with a number for each container that may have a second place."""
        value = self.convert(value)
        if self._was_there is not None and id(value) not in self.same and has_parts(value) and self._was_there(value):
            return ConstantLeaf(value)
        if id(value) in self._numbers and id(value) not in self._open:
            self._met_again.add(self._numbers[id(value)])
            return Made(self._numbers[id(value)], None)
        if type(value) is set and self._is_made(value):
            self.check(value, path)
            tree: Tree = Container("sequence", set, tuple(map(ConstantLeaf, value)))
        else:
            tree = super().flatten(value, path)
        if not isinstance(tree, Container):
            return tree
        number = self._numbers[id(value)] = len(self._numbers)
        self._keep.append(value)
        return Made(number, tree)

    def is_closed(self, value: Any) -> bool:
        """Whether an object without tensors is returned as itself, for nothing can make another."""
        return not self._is_made(value)

    def _is_made(self, value: Any) -> bool:
        if self._was_there is None or self._was_there(value):
            return False
        # An object is the attributes that were found in it, whatever its class makes of others.
        is_object = kind_of(type(value)) == "instance" and not isinstance(value, torch.nn.Module)
        return isinstance(value, dict) or type(value) is set or (is_object and not is_called_only(value))


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
