"""What a call was given is in its result as that very object, whichever way data chose, changed as the call left it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt


class Outputs(OrderedDict[str, Any]):
    """As transformers' outputs are."""


@dataclass
class Pair:
    """An answer and the cache."""

    y: Tensor
    cache: Any


RESULTS: dict[str, tuple[Callable[[Tensor, Any], Any], Callable[[Any], Any]]] = {
    "outputs": (lambda y, cache: Outputs(y=y, cache=cache), lambda out: out["cache"]),
    "dict": (lambda y, cache: {"y": y, "cache": cache}, lambda out: out["cache"]),
    "list": (lambda y, cache: [y, [cache]], lambda out: out[1][0]),
    "dataclass": (lambda y, cache: Pair(y, cache), lambda out: out.cache),
}


def grown(cache: Any, x: Tensor) -> None:
    """Append rows to what a cache of any kind holds."""
    if isinstance(cache, dict):
        cache["keys"] = torch.cat([cache["keys"], x])
    elif isinstance(cache, list):
        cache[0] = torch.cat([cache[0], x])
    else:
        cache.keys = torch.cat([cache.keys, x])


def held(cache: Any) -> Tensor:
    """What it holds."""
    return cache["keys"] if isinstance(cache, dict) else cache[0] if isinstance(cache, list) else cache.keys


def limited(x: Tensor) -> Tensor:
    if x.sum() > 3:
        raise ValueError("above 3")
    return x


CACHES: dict[str, Callable[[Tensor], Any]] = {
    "object": lambda t: SimpleNamespace(keys=t),
    "dict": lambda t: {"keys": t},
    "list": lambda t: [t],
}


@pytest.mark.spread(10)
@pytest.mark.parametrize("made", RESULTS)
@pytest.mark.parametrize("kind", CACHES)
def test_a_cache_in_the_result_is_the_callers(made: str, kind: str) -> None:
    make, cache_of = RESULTS[made]

    def early(x: Tensor, cache: Any) -> Any:
        grown(cache, x)
        if x.sum() > 0:
            return make(x + 1, cache)
        return make(x - 1, cache)

    def caught(x: Tensor, cache: Any) -> Any:
        grown(cache, x)
        try:
            out = make(limited(x) * 2, cache)
        except ValueError:
            out = make(x * 3, cache)
        return out

    for program in (early, caught):
        compiled = smelt.compile(program)
        mine, eagers = CACHES[kind](torch.zeros(1, 2)), CACHES[kind](torch.zeros(1, 2))
        for step, sign in enumerate((1.0, 1.0, -1.0, 1.0, -1.0, 1.0)):
            x = torch.full((2, 2), sign * (1 + step % 3))
            got, expected = compiled(x, mine), program(x, eagers)
            assert cache_of(got) is mine and cache_of(expected) is eagers, (program.__name__, step)
            assert torch.equal(held(mine), held(eagers)), (program.__name__, step)
