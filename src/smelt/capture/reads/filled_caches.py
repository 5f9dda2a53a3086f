"""Tensors that a run makes and a cache keeps (`functools.lru_cache`, `functools.cached_property`).

A later call finds them where they are kept, and whoever holds them may write to them: so they are state of the graph
from the first use on, and what made them is no part of it.

Invariant: only what the run itself put in a cache is a fill; that it is still there is guarded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch

from smelt._torch.library.lru import asked, cached_tensors, results_of
from smelt.diag.records import record

if TYPE_CHECKING:
    from smelt.capture.reads.reads_facts import Site

KEEPS_PROPERTY: CodeType | None = getattr(functools.cached_property.__get__, "__code__", None)
_MISSING = object()
_DEEPEST = 8


@record
class Fill:
    """owner, key: an object's attributes and a name there; or a cache, and None. tensors: what the run put there."""

    owner: Any
    key: str | None
    holder: int
    tensors: tuple[torch.Tensor, ...]
    site: Site | None


@dataclass(slots=True)
class Fills:
    """The caches that a run came to, and what they held then."""

    _caches: dict[int, tuple[Any, frozenset[int], Site | None]] = field(default_factory=dict)
    _asked: dict[int, int] = field(default_factory=dict)
    _codes: dict[int, tuple[object, Site | None]] = field(default_factory=dict)
    _properties: dict[tuple[int, str], tuple[object, str, Site | None]] = field(default_factory=dict)

    def meet(self, cache: object, site: Site | None) -> None:
        """Note a `functools.lru_cache` before the run calls it."""
        self._caches.setdefault(id(cache), (cache, frozenset(map(id, cached_tensors(cache))), site))
        self._asked.setdefault(id(cache), asked(cache))
        code = getattr(getattr(cache, "__wrapped__", None), "__code__", None)
        if code is not None:
            self._codes.setdefault(id(code), (cache, site))

    def cache_of(self, code: CodeType) -> tuple[object, Site | None] | None:
        """The cache that will hold what a call of this code gives, and who came to it; None where none will."""
        return self._codes.get(id(code))

    def used(self) -> Iterator[tuple[Any, Any, Any, Site | None]]:
        """What a run may have been given out of caches, as (cache, key, result, site). What a cache without bounds was
        asked for is nowhere noted."""
        for cache, _, site in self._caches.values():
            times, held = asked(cache) - self._asked[id(cache)], results_of(cache)
            if cache.cache_parameters()["maxsize"] is not None:
                held = held[-times:]
            yield from ((cache, key, result, site) for key, result in (held if times else ()))

    def enter_property(self, frame: FrameType, site: Site | None) -> object:
        """A cached property is about to be computed; the object that will hold it."""
        owner, name = frame.f_locals.get("instance"), getattr(frame.f_locals.get("self"), "attrname", None)
        if owner is not None and name is not None:
            self._properties.setdefault((id(owner), name), (owner, name, site))
        return owner

    def found(self, rooted: Collection[int]) -> Iterator[Fill]:
        """What the run put in caches of objects that outlive it (`rooted`)."""
        for cache, before, site in self._caches.values():
            results = [value for value in cached_tensors(cache) if id(value) not in before]
            if results:
                yield Fill(cache, None, id(cache), tuple(_tensors_in(results)), site)
        for owner, name, site in self._properties.values():
            value = getattr(owner, "__dict__", {}).get(name, _MISSING)
            tensors = tuple(_tensors_in(value))
            if id(owner) in rooted and tensors:
                yield Fill(owner.__dict__, name, id(owner), tensors, site)


def is_filling(codes: Collection[int]) -> bool:
    """Whether the thread runs what a cache will keep; codes: ids of the code of functions whose results are kept."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        # By its id: Python hashes a code object instruction by instruction.
        code = frame.f_code
        if code is KEEPS_PROPERTY or id(code) in codes:
            return True
        frame = frame.f_back
    return False


def _tensors_in(value: object, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)) and depth < _DEEPEST:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item, depth + 1)
