"""How long modules take side by side, in rounds in which they take turns.

Invariant: what is compared was measured in one round: a machine that is busy for a while is so for both.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt._torch import gpu
from smelt.compiler.copies import copies_of
from smelt.diag.records import record
from smelt.scheduling.comparing.compare import items
from smelt.scheduling.comparing.compare_runs import Arguments

Clock = Callable[[], float]
_LEAST_S, _MOST = 2e-3, 64
_FEWEST_ROUNDS = 3
_NOTHING_S = 1e-9


@record
class Times:
    """Medians over the rounds: seconds of a call, and how many times as fast as the first way in the same round."""

    seconds: float
    gain: float


def medians(ways: Sequence[Callable[[], Any]], rounds: int, clock: Clock, deadline: float) -> list[Times]:
    """The times of each; in every second round they run in the opposite order.

    deadline: a time of the clock after which the fewest rounds must do. What is called may raise; so does this.
    """
    counts = []
    for way in ways:
        way()  # compiles, and fills caches
        gpu.finish()
        start = clock()
        way()
        gpu.finish()
        counts.append(max(1, min(_MOST, int(_LEAST_S / max(clock() - start, 1e-7)))))
    found: list[list[float]] = [[] for _ in ways]
    for done in range(rounds):
        if done >= _FEWEST_ROUNDS and clock() > deadline:
            break
        order = range(len(ways)) if done % 2 == 0 else reversed(range(len(ways)))
        for i in order:
            start = clock()
            for _ in range(counts[i]):
                ways[i]()
            gpu.finish()
            found[i].append((clock() - start) / counts[i])
    return [
        Times(
            statistics.median(times),
            statistics.median(first / max(own, _NOTHING_S) for first, own in zip(found[0], times, strict=True)),
        )
        for times in found
    ]


def call_of(module: torch.nn.Module, call: Arguments) -> Callable[[], Any]:
    """A call of a module on copies of the arguments, without gradients.

    Lists and objects that a call may add to (a cache) are as they were given in each call; tensors are copied once.
    """
    given = (call.args, dict(call.kwargs))
    tensors = [item.value for part in given for item in items(part, "") if isinstance(item.value, torch.Tensor)]
    memo = {id(tensor): copied for tensor, copied in zip(tensors, copies_of(tensors), strict=True)}
    args, kwargs = copy.deepcopy(given, dict(memo))
    is_fixed = all(map(_is_fixed, [*args, *kwargs.values()]))

    def way() -> Any:
        with torch.no_grad():
            if is_fixed:
                return module(*args, **kwargs)
            # The copies of tensors stand for themselves.
            own, named = copy.deepcopy((args, kwargs), {id(tensor): tensor for tensor in memo.values()})
            return module(*own, **named)

    return way


def _is_fixed(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_fixed, value))
    return value is None or isinstance(value, torch.Tensor | torch.dtype | torch.device | int | float | complex | str)
