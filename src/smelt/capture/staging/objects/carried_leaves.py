"""What a loop carries: nested containers taken apart to the values of the graph that are in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.capture.dynamic.values import is_sized, number_of
from smelt.capture.recording.tensor_slots import slot_type
from smelt.capture.staging.fakes.symbols import class_of, is_staged, slot_of
from smelt.capture.staging.session import Session
from smelt.capture.structure.tree import tuple_of
from smelt.ir import Type, type_of_arg
from smelt.ir.sizes import expression


class Unread:
    """Stands before a loop for a value that is not read before the loop made one. like: what it then makes."""

    def __init__(self, type_: Any, like: Any) -> None:
        self.type, self.like = type_, like


def take_apart(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The leaves of nested tuples, lists and dictionaries, and what builds the same around others."""
    if _has_items(value):
        parts = [take_apart(item) for item in value]
        sizes = [len(leaves) for leaves, _ in parts]
        kind = type(value)

        def build(leaves: list[Any]) -> object:
            items, at = [], 0
            for size, (_, inner) in zip(sizes, parts, strict=True):
                items.append(inner(leaves[at : at + size]))
                at += size
            return items if kind is list else tuple_of(kind, items)

        return [leaf for leaves, _ in parts for leaf in leaves], build
    if type(value) is dict:
        keys = list(value)
        leaves, inner = take_apart(list(value.values()))
        return leaves, lambda made: dict(zip(keys, inner(made), strict=True))
    return [value], lambda made: made[0]


def _has_items(value: object) -> bool:
    """Whether a value is a list, a tuple, a named tuple or one of torch.return_types."""
    is_named = isinstance(value, tuple) and (hasattr(value, "_fields") or hasattr(value, "n_sequence_fields"))
    return type(value) in (tuple, list) or is_named


def shape_of(value: Any) -> object:
    """The structure of nested containers without their leaves."""
    if _has_items(value):
        return (type(value), tuple(map(shape_of, value)))
    if type(value) is dict:
        return (dict, tuple((k, shape_of(v)) for k, v in value.items()))
    return class_of(value.like if isinstance(value, Unread) else value)


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same object, or plain numbers that nobody can tell apart."""
    if a is b:
        return True
    if is_staged(a) and is_staged(b):
        return slot_of(a) is slot_of(b)
    if is_staged(a) or is_staged(b) or type(a) is not type(b):
        return False
    if is_sized(a):
        return bool(is_sized(b)) and bool(expression(number_of(a)) == expression(number_of(b)))
    if isinstance(a, (bool, int, float, complex, str)):
        return repr(a) == repr(b)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return False


def is_carried(leaf: object) -> bool:
    """Whether a leaf can be a value of the graph."""
    return isinstance(leaf, (torch.Tensor, bool, int, float, complex, str, Unread)) or is_staged(leaf)


def leaf_type(session: Session, leaf: Any) -> Type | None:
    """The type of a leaf in the graph, None for what cannot stand in one."""
    if isinstance(leaf, torch.Tensor):
        return slot_type(session.recorder.slot_of(leaf))
    if is_staged(leaf):
        return slot_of(leaf).type
    if isinstance(leaf, Unread):
        return leaf.type
    return type_of_arg(leaf) if leaf is None or isinstance(leaf, (bool, int, float, complex, str)) else None
