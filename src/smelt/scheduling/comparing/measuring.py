"""How long two ways of computing the same take, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt._torch import gpu

ROUNDS = 9
_LEAST_S = 2e-3
_MOST = 64


def seconds(ways: Sequence[Callable[[], Any]]) -> list[float]:
    """The least time of each, of several rounds in which they take turns; without gradients."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        counts = []
        for way in ways:
            way()  # compiles, and fills caches
            gpu.finish()
            start = time.perf_counter()
            way()
            gpu.finish()
            counts.append(max(1, min(_MOST, int(_LEAST_S / max(time.perf_counter() - start, 1e-7)))))
        best = [float("inf")] * len(ways)
        for _ in range(ROUNDS):
            for i, (way, count) in enumerate(zip(ways, counts, strict=True)):
                start = time.perf_counter()
                for _ in range(count):
                    way()
                gpu.finish()
                best[i] = min(best[i], (time.perf_counter() - start) / count)
    return best
