"""Freed memory stays in the process, so that a call's results need no new pages.

The C library gives memory above a threshold back to the system when it is freed, and the next call pays a page fault
for every 4 KiB of its results: far more than it takes to fill them. glibc raises the threshold to the size of the
largest such block that was freed (`mallopt(3)`, M_MMAP_THRESHOLD, "dynamic"), up to 32 MiB, and keeps twice as much.
Where MALLOC_MMAP_THRESHOLD_ or MALLOC_TRIM_THRESHOLD_ is set it does not, and the setting holds.
"""

from __future__ import annotations

import torch

_NBYTES = 31 << 20  # What is asked for must stay below 32 MiB with the allocator's own header and alignment.


def keep_freed_memory() -> None:
    """Free a block that nobody touched (no page of it is ever made), from which the allocator learns to keep others."""
    torch.empty(_NBYTES, dtype=torch.uint8, device="cpu")
