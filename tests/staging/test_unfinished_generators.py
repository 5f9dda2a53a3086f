"""Generators that a staging run leaves unfinished: what they do as they end is put back like all else."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt

Tensor = torch.Tensor


def _world() -> tuple[Callable[[Tensor], Any], list[Any]]:
    log: list[Any] = []

    def parts(x: Tensor) -> Iterator[Tensor]:
        try:
            for i in range(5):
                log.append(i)
                yield x * i
                if x > 3:
                    return
        finally:
            log.append("closed")

    def f(x: Tensor) -> Any:
        s = sum(v for v in parts(x))
        return s, next((v for v in parts(x) if v > 1), None)

    return f, log


@pytest.mark.usefixtures("young_heap")
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_they_end_once() -> None:
    (f, theirs), (g, ours) = _world(), _world()
    compiled = smelt.compile(g)
    with torch.no_grad():
        for value in (1.0, 2.0, -1.0, 0.0, 3.0, 5.0):
            x = torch.tensor(value)
            expected, found = f(x), compiled(x)
            gc.collect()
            assert expected[0] == found[0] and ours == theirs
