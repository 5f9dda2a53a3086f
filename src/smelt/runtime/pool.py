"""Memory for the frames of one plan at many sizes, so that a size seen for the first time need not ask the system."""

from __future__ import annotations

import threading
from collections import deque

import torch

from smelt.runtime.machine.heap import on_large_pages

_MOST = 4
_ROOM = 1.25
"""A new block has more than is asked for: what grows with each call fits for a while."""


class Pool:
    """Blocks of bytes that are lent and come back."""

    def __init__(self) -> None:
        self._free: deque[torch.Tensor] = deque()
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> torch.Tensor:
        """At least so many bytes, 64-byte aligned: the smallest free block that has them, else a new one."""
        with self._lock:
            blocks: list[torch.Tensor] = []
            while self._free:
                blocks.append(self._free.popleft())
            blocks.sort(key=torch.Tensor.numel)
            found = next((i for i, block in enumerate(blocks) if block.numel() >= nbytes), None)
            taken = blocks.pop(found) if found is not None else None
            self._free.extend(blocks[-_MOST:])
        if taken is not None:
            return taken
        with torch.inference_mode(False), torch.no_grad():
            return on_large_pages(torch.empty(max(int(nbytes * _ROOM), 1), dtype=torch.uint8))

    def give(self, block: torch.Tensor) -> None:
        """Take a block back. Called wherever a frame dies, also amid `take`, so it waits for nothing."""
        self._free.append(block)
