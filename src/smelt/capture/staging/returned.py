"""What a staged run returns or leaves, on its way into a structure: numbers of the graph get places, or are refused.

Invariant: nothing of the run itself, a staged number or a size that is a symbol, gets into a constant of a structure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from smelt.capture.dynamic.values import is_sized, plain
from smelt.capture.recording.results import OWN, holds_its_own
from smelt.capture.recording.tensor_slots import Slot
from smelt.capture.staging.fakes.symbols import is_staged, slot_of
from smelt.capture.staging.flow.iterables import StagedRange, StagedSequence
from smelt.capture.staging.flow.merge import Pending, Poison
from smelt.capture.staging.flow.stops import EFFECT, CannotStage
from smelt.capture.staging.objects.heap import Change
from smelt.capture.staging.session import Session
from smelt.capture.structure.roots import Roots
from smelt.capture.structure.tree import (
    ConstantLeaf,
    Container,
    Made,
    Tree,
    held_inside,
    hidden_tensors,
    is_iterator,
    is_lazy,
    leaves,
)


def check_effect(change: Change, roots: Roots) -> None:
    """Raises: CannotStage where a place outside keeps what depends on data."""
    if depends_on_data(change.new, roots):
        raise CannotStage(
            f"a {type(change.container).__name__} outside the program keeps what depends on data",
            EFFECT,
            None,
        )


def depends_on_data(value: object, roots: Roots) -> bool:
    """Whether a value is a tensor or a number of the run, or holds one."""
    if isinstance(value, (list, tuple, set)):
        return any(depends_on_data(item, roots) for item in value)
    if isinstance(value, dict):
        return any(depends_on_data(item, roots) for item in value.values())
    if isinstance(value, torch.Tensor):
        return True
    found = any(id(tensor) not in roots.entries for tensor in hidden_tensors(value))
    return found or any(map(_is_of_run, held_inside(value)))


def _is_of_run(value: object) -> bool:
    return is_staged(value) or is_sized(value) or isinstance(value, (Pending, Poison, StagedSequence))


def stand_in(value: object, found: dict[int, Slot], session: Session) -> object:
    """A tensor in the place of a staged number; other values as they are. Raises: CannotStage for what is no value."""
    slot = slot_of(value) if is_staged(value) else session.size_slot(value) if is_sized(value) else None
    if isinstance(slot, Slot):
        placed = torch.empty(0)
        session.keep.append(placed)
        found[id(placed)] = slot
        return placed
    if isinstance(value, torch.Size):
        return torch.Size(map(plain, value))
    if type(value) is frozenset:
        return as_key(value)
    if isinstance(value, StagedRange):
        return value.whole()
    if slot is not None:
        return slot
    if isinstance(value, Pending):
        raise CannotStage("a function returns a value on some paths only", "None and a value have no common form", None)
    if isinstance(value, Poison):
        session.unmerge(value.why)
    return value


def as_key(key: Any) -> object:
    """A key of a dictionary, or an item of a set, as it is there after a call: it was looked up, so the graph holds
    for the number that it is.
    """
    if type(key) in (tuple, frozenset):
        items = list(map(as_key, key))
        return key if all(a is b for a, b in zip(items, key, strict=True)) else type(key)(items)
    if is_staged(key):
        return slot_of(key).worlds[0]
    return plain(key) if is_sized(key) else key


def check_structure(tree: Tree, name: str = "result") -> None:
    """Raises: CannotStage where a constant, or a key, is or holds a number of the run."""
    for path, leaf in leaves(tree, name):
        if isinstance(leaf, ConstantLeaf):
            check_constant(leaf.value, path)
    for key in _keys_in(tree):
        check_constant(key, f"a key of {name}")


def check_constant(value: object, path: str) -> None:
    """Raises: CannotStage where a value that stays as it is is or holds a number of the run."""
    if any(map(_is_of_run, held_inside(value))):
        how = "depends on data" if _is_of_run(value) else "holds what depends on data"
        raise CannotStage(f"{path} is a {type(value).__qualname__} that {how}", "no graph returns it", None)


def _keys_in(tree: Tree) -> Iterator[object]:
    match tree:
        case Container():
            yield from tree.keys
            for part in (*tree.items, *tree.attributes):
                yield from _keys_in(part)
        case Made(_, inner) if inner is not None:
            yield from _keys_in(inner)


def check_result(roots: Roots, was_there: Callable[[object], bool]) -> Callable[[object, str], None]:
    """What refuses leaves of a result that are not the same at each call."""

    def check(value: object, path: str) -> None:
        if is_lazy(value) or (is_iterator(value) and not was_there(value)):
            raise CannotStage(f"{path} is a {type(value).__qualname__}", "it runs only when it is read", None)
        if holds_its_own(value, was_there):
            raise CannotStage(f"{path} is a {type(value).__qualname__} that holds what may change", OWN, None)
        if not isinstance(value, torch.Tensor):
            for tensor in hidden_tensors(value):
                if id(tensor) not in roots.entries:
                    raise CannotStage(f"{path} is a {type(value).__qualname__} that holds tensors",
                                      "they have no fixed access path in it", None)  # fmt: skip

    return check
