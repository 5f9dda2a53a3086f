"""What a `functools.lru_cache` holds. It is out of sight of Python; the garbage collector knows it.

Where the collector tells nothing, nothing is found: a tensor that comes out of a cache is then of unknown origin.
"""

from __future__ import annotations

import functools
import gc
from itertools import pairwise
from typing import Any

import torch

from smelt._torch.seen.staged_fakes import is_fake

LRU_CACHE: type = functools._lru_cache_wrapper
_DEEPEST = 4


def cached_tensors(cache: Any) -> tuple[Any, ...]:
    """The very results (and arguments) in a cache that are tensors, or plain containers with tensors in them."""
    found: list[Any] = []
    for held in gc.get_referents(cache):
        if type(held) is not dict:
            found.append(held)  # of a bounded cache, each key and each result
        elif held is not getattr(cache, "__dict__", None):
            found.extend(held.values())  # of an unbounded one, the table itself
    return tuple(value for value in found if has_tensor(value))


def still_cached(cache: Any, seen: tuple[Any, ...]) -> bool:
    """Whether a cache holds all of these very objects: what it holds it gives again for the same arguments."""
    held = {id(value) for value in cached_tensors(cache)}
    return all(id(value) in held for value in seen)


def table_of(cache: Any) -> dict[Any, Any] | None:
    """The table of a cache by key, where it can be told: a key taken out of it is as if it had never been asked for.

    A bounded cache then still holds the result, out of reach, until newer ones push it out.
    """
    function = getattr(cache, "__wrapped__", None)
    for held, after in pairwise(gc.get_referents(cache)):
        if type(held) is dict and after is function and len(held) == cache.cache_info().currsize:
            return held
    return None


def asked(cache: Any) -> int:
    """How often a cache was asked for a result until now."""
    info = cache.cache_info()
    return int(info.hits + info.misses)


def results_of(cache: Any) -> list[tuple[Any, Any]]:
    """What a cache holds, as (key, result), of a bounded one in the order in which it was asked for them, the latest
    last; empty where it cannot be told.
    """
    table = table_of(cache) or {}
    if cache.cache_parameters()["maxsize"] is None:
        return list(table.items())
    keys = set(map(id, table))
    return [(held, result) for held, result in pairwise(gc.get_referents(cache)) if id(held) in keys]


def has_tensor(value: Any, depth: int = 0) -> bool:
    """Whether a value is a tensor, or a plain container with one in it."""
    if isinstance(value, torch.Tensor):
        return not is_fake(value)
    items = value.values() if type(value) is dict else value if type(value) in (tuple, list) else ()
    return depth < _DEEPEST and any(has_tensor(item, depth + 1) for item in items)
