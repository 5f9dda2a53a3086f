"""Memory that a build leaves idle in the process, given back to the system.

A build needs memory of kinds that the compiled program does not: the recorded run has eager's tensors, graphs and
modules come and go by the hundred thousand, and LLVM's own code is larger than many models. What the C library has
freed amid its heap stays in the process otherwise, and code that once ran stays mapped.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

MUCH_NBYTES: Final = 32 << 20
"""Less freed memory than this is not worth the system's while."""

_MADV_DONTNEED = 4  # on Linux


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "used", "free", "keepcost")
    )


@lru_cache(maxsize=1)
def _allocator() -> tuple[Callable[[], _MallocInfo], Callable[[int], int]] | None:
    """`mallinfo2` and `malloc_trim`, which glibc has from 2.33 on; None elsewhere."""
    library = ctypes.CDLL(None)
    try:
        ask, trim = library.mallinfo2, library.malloc_trim
    except AttributeError:
        return None
    ask.restype, trim.argtypes = _MallocInfo, (ctypes.c_size_t,)
    return ask, trim


def give_back_freed_memory() -> None:
    """Have the system take back what is free amid the C library's heap, where that is much."""
    allocator = _allocator()
    if allocator is not None and allocator[0]().free >= MUCH_NBYTES:
        allocator[1](0)


@lru_cache(maxsize=8)
def _code_of(path: str) -> tuple[tuple[int, int], ...]:
    """Begin and length of the mapped code of a loaded library, which code that is loaded stays at."""
    found = []
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                match = re.match(r"([0-9a-f]+)-([0-9a-f]+) r-xp \S+ \S+ \S+\s+(/.*)$", line)
                if match and match[3] == path:
                    begin, end = int(match[1], 16), int(match[2], 16)
                    found.append((begin, end - begin))
    except OSError:
        return ()
    return tuple(found)


def give_back_code(path: str) -> None:
    """Have the pages of a loaded library's code leave the process until it runs again; they are those of its file."""
    for begin, nbytes in _code_of(path):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(nbytes), _MADV_DONTNEED)
