"""Annotations of functions and classes as Python holds them.

Until Python 3.13 these are a dictionary. From 3.14 on they are a function that computes it, and the dictionary only
once somebody has read it.

Invariant: nothing of the user's is called, so nothing is computed.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any, Final

from smelt._torch.exact import MISSING

ARE_COMPUTED: Final = sys.version_info >= (3, 14)
"""Whether annotations are computed at the first read."""
NAMES: Final = frozenset({"__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"})
"""What functions, classes and modules have, and code reads, because of annotations."""


def annotations_held(owner: Any) -> Any:
    """The dictionary that a function or class itself holds; MISSING for none (yet)."""
    if isinstance(owner, type):
        own = owner.__dict__
        return own["__annotations__"] if "__annotations__" in own else own.get("__annotations_cache__", MISSING)
    return _held_by(owner)


def annotate_held(owner: Any) -> Any:
    """The function that computes them; None for none."""
    if isinstance(owner, type):
        found = owner.__dict__.get("__annotate__")
        return owner.__dict__.get("__annotate_func__") if found is None else found
    return getattr(owner, "__annotate__", None) if ARE_COMPUTED else None


def annotation_held(owner: Any, name: str) -> Any:
    """One of the two, by its name."""
    return annotate_held(owner) if name == "__annotate__" else annotations_held(owner)


def _computed(function: Any) -> Any:
    """Among all that the function refers to, the one dictionary that has no other name."""
    if function.__annotate__ is None:
        return function.__annotations__  # an empty one, if there is none yet
    named = (
        function.__globals__, function.__builtins__, function.__kwdefaults__, function.__dict__, function.__doc__,
        function.__module__,
    )  # fmt: skip
    others = list(map(id, named))
    for held in gc.get_referents(function):
        if issubclass(type(held), dict):
            if id(held) not in others:
                return held
            others.remove(id(held))
    return MISSING


_held_by: Callable[[Any], Any] = _computed if ARE_COMPUTED else lambda function: function.__annotations__


def put_annotations(function: Any, annotate: Any, held: Any) -> None:
    """Have a function hold these again. Nothing gives it both: then it holds the dictionary, which people read."""
    if not ARE_COMPUTED or held is not MISSING:
        if annotations_held(function) is not held:
            function.__annotations__ = held
    elif annotate_held(function) is not annotate or annotations_held(function) is not MISSING:
        function.__annotate__ = annotate
