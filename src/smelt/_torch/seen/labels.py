"""How a place in nested data names the items of a dict: `[0]`, `['k']`, `[Side.LEFT]`, `[(1, 'k')]`.

Invariant: labels of one dict are distinct, and follow from its keys and their order alone. Dicts with the same keys
have the same ones, so that all who spell a place of the arguments (structure, guards, calls that were seen) mean the
same by one text; no code of a user's class runs for it. A key that Python reads back as it is printed is its own label.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from enum import Enum
from typing import Any

import torch

_PRINTED = (str, int, bool, float, complex, bytes, type(None), type(Ellipsis), range, torch.dtype, torch.device)
_BASES = (str, int, float, complex, bytes)


def key_labels(keys: Iterable[Any]) -> list[str]:
    """The label of each key of one dict, in order."""
    found: dict[str, None] = {}
    for key in keys:
        text = name = _text(key)
        number = 1
        while name in found:  # nan beside nan; objects of one class
            number += 1
            name = f"{text}#{number}"
        found[name] = None
    return [f"[{name}]" for name in found]


def attribute_label(name: str) -> str:
    """How a place in nested data names an attribute: `.name`; one that cannot be written in code, `.'a.b'`."""
    return f".{name}" if _is_written(name) else f".{name!r}"


def attribute_code(holder: str, name: str) -> str:
    """The code that reads an attribute of what the code `holder` gives."""
    return f"{holder}.{name}" if _is_written(name) else f"getattr({holder}, {name!r})"


def _is_written(name: str) -> bool:
    # Python reads other letters than these as others that look alike.
    return name.isidentifier() and name.isascii() and not keyword.iskeyword(name)


def _text(key: Any) -> str:
    cls = type(key)
    if cls in _PRINTED:
        return repr(key)
    if isinstance(key, Enum):
        return f"{cls.__qualname__}.{key._name_}"
    if isinstance(key, type):
        return key.__qualname__
    if isinstance(key, tuple):
        inner = ", ".join(map(_text, tuple.__iter__(key)))
        name = "" if cls is tuple else cls.__qualname__
        return f"{name}({inner},)" if tuple.__len__(key) == 1 else f"{name}({inner})"
    for base in _BASES:
        if issubclass(cls, base):  # a number of which only a capture knows says that it is one
            return f"{cls.__qualname__}({base.__repr__(key)})"
    # What the key prints may hold its address, or be computed.
    return cls.__qualname__
