"""Memory that costs few page faults: freed memory stays in the process, large memory lies on large pages.

The C library gives memory above a threshold back to the system when it is freed, and the next call pays a page fault
for every 4 KiB of its results: far more than it takes to fill them. glibc raises the threshold to the size of the
largest such block that was freed (`mallopt(3)`, M_MMAP_THRESHOLD, "dynamic"), up to 32 MiB, and keeps twice as much.
Where MALLOC_MMAP_THRESHOLD_ or MALLOC_TRIM_THRESHOLD_ is set it does not, and the setting holds.

What is larger is new memory each time. Linux gives it in pages of 2 MiB instead of 4 KiB where it is asked to
(`madvise(2)`): one fault for 512, and addresses that the processor need not look up as often. It is advice: what the
system does not follow changes nothing.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import lru_cache
from typing import Final

import torch

from smelt.runtime.machine.threads import c_function

LARGE_NBYTES: Final = 4 << 20
"""Memory of at least so many bytes holds a large page wherever it begins."""
ADVICE: Final = getattr(mmap, "MADV_HUGEPAGE", None)
"""The number of the advice; None on other systems than Linux."""

KEPT_NBYTES: Final = 31 << 20
"""Freed memory of as many bytes stays in the process: what is asked for must be below 32 MiB with the allocator's own
header and alignment. More is the system's again."""


def keep_freed_memory() -> None:
    """Free a block that nobody touched (no page of it is ever made), from which the allocator learns to keep others."""
    torch.empty(KEPT_NBYTES, dtype=torch.uint8, device="cpu")


@lru_cache(maxsize=1)
def advises() -> int:
    """The address of `madvise`, 0 where large pages cannot be asked for."""
    if ADVICE is None:
        return 0
    try:
        with mmap.mmap(-1, LARGE_NBYTES) as memory:
            memory.madvise(ADVICE)
    except OSError:
        return 0
    return c_function("madvise") or 0


def on_large_pages(memory: torch.Tensor) -> torch.Tensor:
    """The same tensor, dense and new, whose memory the system is asked to give in large pages."""
    where, nbytes = advises(), memory.numel() * memory.element_size()
    if where and nbytes >= LARGE_NBYTES:
        first = -(-memory.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        end = memory.data_ptr() + nbytes
        call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(where)
        call(first, (end - first) // mmap.PAGESIZE * mmap.PAGESIZE, ADVICE)
    return memory
