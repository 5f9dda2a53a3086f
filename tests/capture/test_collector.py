"""The garbage collector may start at any moment of a recorded run; what its callbacks do is not the program's."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator

import pytest
import torch

import smelt

seen: list[float] = []


def note_the_time(phase: str, info: dict[str, int]) -> None:
    seen.append(time.perf_counter())
    os.environ.get("HOME")


@pytest.fixture
def callback() -> Iterator[None]:
    gc.callbacks.append(note_the_time)
    yield
    gc.callbacks.remove(note_the_time)
    seen.clear()


def collects(x: torch.Tensor) -> torch.Tensor:
    gc.collect(0)
    return x + 1


def test_a_collection_is_no_effect(callback: None) -> None:
    compiled = smelt.compile(collects, options={"cache_dir": "", "strict": True})
    x = torch.ones(3)
    for _ in range(2):
        assert torch.equal(compiled(x), x + 1)
    assert seen
    guards = [str(guard) for guard in compiled.stats().rows[0].guards.guards]
    assert not [text for text in guards if "seen" in text or "HOME" in text]
