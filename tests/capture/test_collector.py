"""The garbage collector may start at any moment of a recorded run; what its callbacks do is not the program's."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator

import pytest
import torch

import smelt
from smelt.diag.collector import collect_young, collections_later, full_collections_later

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


def collections() -> int:
    count: int = gc.get_stats()[0]["collections"]
    return count


def test_what_a_compiler_makes_is_collected_once() -> None:
    before, least = gc.get_threshold(), gc.get_threshold()[0]
    with full_collections_later():
        count = collections()
        collections_later()
        kept = [[number] for number in range(300 * least)]
        assert collections() == count
    assert gc.get_threshold() == before
    collect_young()
    assert collections() > count and len(kept) == 300 * least
    collections_later()  # outside of a block it has no say
    assert gc.get_threshold() == before
    with full_collections_later():
        count = collections()
        kept = [[number] for number in range(300 * least)]
        assert collections() > count
    assert gc.get_threshold() == before


def test_the_programs_own_thresholds_stay() -> None:
    before = gc.get_threshold()
    try:
        with full_collections_later():
            gc.set_threshold(12345)
            collections_later()
            assert gc.get_threshold()[0] == 12345
        assert gc.get_threshold()[0] == 12345
        gc.set_threshold(0)
        with full_collections_later():
            collections_later()
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
