"""Large memory is asked for in large pages: the right range, whatever the system answers, and eager's values."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch

import smelt
from smelt.runtime.encoding import addresses, encode
from smelt.runtime.machine import heap

ADVISE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
SIZE = heap.LARGE_NBYTES // 4


@pytest.mark.parametrize("answer", [0, -1])
def test_large_results_are_asked_for_in_whole_pages(monkeypatch: pytest.MonkeyPatch, answer: int) -> None:
    asked: list[tuple[int, int, int]] = []

    def advise(start: int, nbytes: int, advice: int) -> int:
        asked.append((start, nbytes, advice))
        return answer

    callback = ADVISE(advise)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    monkeypatch.setattr(addresses, "advises", lambda: address)
    monkeypatch.setattr(encode, "ADVICE", 14)
    program = smelt.compile(lambda x, y: (x + 1, y + 1))
    large, small = torch.ones(SIZE), torch.ones(SIZE - 1)
    with torch.no_grad():
        program(large, small)
        asked.clear()
        found = program(large, small)
    assert torch.equal(found[0], large + 1) and torch.equal(found[1], small + 1)
    ((start, nbytes, advice),) = asked
    begin, end = found[0].data_ptr(), found[0].data_ptr() + found[0].nbytes
    assert advice == 14 and start % mmap.PAGESIZE == nbytes % mmap.PAGESIZE == 0
    assert begin <= start < begin + mmap.PAGESIZE and end - mmap.PAGESIZE < start + nbytes <= end


def test_memory_that_is_large_is_the_same_tensor() -> None:
    for count in (1, SIZE, 3 * SIZE + 17):
        memory = torch.empty(count)
        assert heap.on_large_pages(memory) is memory
        assert torch.equal(memory.fill_(2.0), torch.full((count,), 2.0))


def test_nothing_is_asked_where_the_system_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "ADVICE", None)
    heap.advises.cache_clear()
    try:
        assert heap.advises() == 0
        heap.on_large_pages(torch.empty(SIZE))
    finally:
        heap.advises.cache_clear()
