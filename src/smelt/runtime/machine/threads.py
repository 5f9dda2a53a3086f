"""What a region of threads needs from the process: how many may come, whether they may at all, and how one yields.

Invariant: the number of threads is torch's own at each region, for it is torch's pool that runs it; here is only the
most that memory is prepared for.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache

import torch

from smelt.runtime.encoding.table import TeamWord

_MOST = 256


def team_limit() -> int:
    """The most threads that can help in a region of a frame made now."""
    return max(1, min(_MOST, max(os.cpu_count() or 1, torch.get_num_threads())))


@lru_cache(maxsize=1)
def team_words() -> ctypes.Array[ctypes.c_int64]:
    """The process's `TeamWord`s. Threads are not allowed in the child of a fork.

    The library's threads do not come along into a child, and entering a region there waits for them for ever.
    """
    words = (ctypes.c_int64 * len(TeamWord))()
    words[TeamWord.ALLOWED] = 1

    def in_child() -> None:
        words[TeamWord.ALLOWED] = 0

    os.register_at_fork(after_in_child=in_child)
    return words


@lru_cache(maxsize=128)
def c_function(name: str) -> int | None:
    """Address of a function of the C library that this process has loaded, or None."""
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    except AttributeError:
        return None
