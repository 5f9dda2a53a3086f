"""Values of Python's own classes, told so that a type checker knows them from there on."""

from __future__ import annotations

from typing import TypeGuard


def is_plain_sequence(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    """Whether this is a list or a tuple of no class of the program's."""
    return type(value) in (list, tuple)
