"""What a `functools.lru_cache` holds. It is out of sight of Python; the garbage collector knows it.

Where the collector tells nothing, nothing is found: a tensor that comes out of a cache is then of unknown origin.
"""

from __future__ import annotations

import functools
import gc
from typing import Any

import torch

LRU_CACHE: type = functools._lru_cache_wrapper


def cached_tensors(cache: Any) -> tuple[Any, ...]:
    """The very results (and arguments) in a cache that are tensors, or plain containers with tensors in them."""
    found: list[Any] = []
    for held in gc.get_referents(cache):
        if type(held) is not dict:
            found.append(held)  # of a bounded cache, each key and each result
        elif held is not getattr(cache, "__dict__", None):
            found.extend(held.values())  # of an unbounded one, the table itself
    return tuple(value for value in found if _has_tensor(value))


def still_cached(cache: Any, seen: tuple[Any, ...]) -> bool:
    """Whether a cache holds all of these very objects: what it holds it gives again for the same arguments."""
    held = {id(value) for value in cached_tensors(cache)}
    return all(id(value) in held for value in seen)


def _has_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    items = value.values() if type(value) is dict else value if type(value) in (tuple, list) else ()
    return any(isinstance(item, torch.Tensor) for item in items)
