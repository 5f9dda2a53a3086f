"""The threads of this process that help in regions: their words, how many may come, and what makes and wakes them.

Invariant: a region has no more threads than torch would use at that moment; `team_limit` is only the most that memory
is prepared for. Threads are made by the executor when they are first wanted, and stay: what they read is never freed,
not even at the end of the interpreter (`never_freed`).
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from typing import Any

import torch

from smelt._torch.library import shim
from smelt.runtime.encoding.table import (
    FRAME_ALIGNMENT,
    POOL_AT,
    POOL_NWORDS,
    TEAMS,
    TEAMS_AT,
    PoolWord,
    Team,
    TeamWord,
)

_MOST = 256
_FUNCTIONS = {
    PoolWord.CREATE: "pthread_create", PoolWord.LOCK: "pthread_mutex_lock", PoolWord.UNLOCK: "pthread_mutex_unlock",
    PoolWord.WAIT: "pthread_cond_wait", PoolWord.WAKE: "pthread_cond_broadcast", PoolWord.YIELD: "sched_yield",
}  # fmt: skip
THREADS = "torch_get_num_threads"
"""The shim function that says how many threads torch would use now."""
_ATTRIBUTES_NBYTES = 256
_DETACHED = 1  # PTHREAD_CREATE_DETACHED of Linux


def team_limit() -> int:
    """The most threads that can help in a region of a frame made now."""
    return max(1, min(_MOST, max(os.cpu_count() or 1, torch.get_num_threads())))


def never_freed(kept: Any) -> None:
    """Keep an object until the process ends, whatever the interpreter takes down before."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


@lru_cache(maxsize=1)
def team_words() -> ctypes.Array[ctypes.c_int64]:
    """The process's `TeamWord`s, `PoolWord`s and teams. The child of a fork begins with none, and makes its own."""
    memory = (ctypes.c_byte * (8 * POOL_NWORDS + FRAME_ALIGNMENT))()
    never_freed(memory)
    at = ctypes.addressof(memory)
    words = (ctypes.c_int64 * POOL_NWORDS).from_address(at + -at % FRAME_ALIGNMENT)
    words[TeamWord.ALLOWED] = 1
    for word, name in _FUNCTIONS.items():
        words[POOL_AT + word] = c_function(name) or 0
    words[POOL_AT + PoolWord.THREADS] = shim.address(THREADS) or 0
    words[POOL_AT + PoolWord.ATTRIBUTES] = _attributes()
    _begin(words)
    os.register_at_fork(after_in_child=lambda: _begin(words))
    return words


def has_pool() -> bool:
    """Whether this process can have threads that help."""
    words = team_words()
    return shim.address(THREADS) is not None and all(words[POOL_AT + word] for word in PoolWord)


def _attributes() -> int:
    """Those of a thread that nobody joins; 0 where there are none."""
    attributes = (ctypes.c_int64 * (_ATTRIBUTES_NBYTES // 8))()
    never_freed(attributes)
    try:
        library = ctypes.CDLL(None)
        at = ctypes.c_void_p(ctypes.addressof(attributes))
        failed = library.pthread_attr_init(at) or library.pthread_attr_setdetachstate(at, _DETACHED)
    except AttributeError:
        return 0
    return 0 if failed else ctypes.addressof(attributes)


def _begin(words: ctypes.Array[ctypes.c_int64]) -> None:
    """Teams that nobody has, without threads."""
    library, base = ctypes.CDLL(None), ctypes.addressof(words)
    for number in range(TEAMS):
        first = TEAMS_AT + number * Team.NCELLS
        for word in range(first, first + Team.NCELLS):
            words[word] = 0
        words[first + Team.POOL] = base + 8 * POOL_AT
        library.pthread_mutex_init(ctypes.c_void_p(base + 8 * (first + Team.MUTEX)), None)
        library.pthread_cond_init(ctypes.c_void_p(base + 8 * (first + Team.CONDITION)), None)


@lru_cache(maxsize=128)
def c_function(name: str) -> int | None:
    """Address of a function of the C library that this process has loaded, or None."""
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    except AttributeError:
        return None
