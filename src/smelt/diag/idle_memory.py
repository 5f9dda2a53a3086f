"""Memory that a build leaves idle in the process, given back to the system.

A build needs memory of kinds that the compiled program does not: the recorded run has eager's tensors, graphs and
modules come and go by the hundred thousand, and the code of torch and of LLVM that ran once, at import or in a build,
is larger than many models. What the C library has freed amid its heap stays in the process otherwise, and code that
once ran stays mapped.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

MUCH_NBYTES: Final = 32 << 20
"""Less freed memory than this is not worth the system's while."""

NEW_CODE_NBYTES: Final = 16 << 20
"""The same of code."""

_MADV_DONTNEED = 4  # on Linux
_LARGE_CODE_NBYTES = 8 << 20
_WRITTEN = [flags for flags in range(256) if flags & 0x80 and not flags & 0x20]
"""Flags (`pagemap`) of pages that are there (bit 63) and no longer the file's (bit 61)."""


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
    global _used_nbytes
    resident, allocator = _resident_nbytes(), _allocator()
    # To count what is free takes a look at each free block: milliseconds in a process that is old and large.
    if allocator is None or resident is None or resident - _used_nbytes < MUCH_NBYTES:
        return
    ask, trim = allocator
    free = ask().free
    if free >= MUCH_NBYTES:
        trim(0)
        resident, free = _resident_nbytes() or resident, 0
    _used_nbytes = resident - free


_used_nbytes = 0
"""What was resident and not free at the last count: no more can have become free since than what came on top."""


def give_back_code() -> None:
    """Have the pages of large libraries' code leave the process until they run again, where much has come since the
    last time. They are those of the files, which the system keeps as long as it has room."""
    global _left_nbytes
    before = _nbytes_of_files()
    if before is None or before - _left_nbytes < NEW_CODE_NBYTES:
        return
    for begin, nbytes in _clean_code():
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(nbytes), _MADV_DONTNEED)
    _left_nbytes = _nbytes_of_files() or 0


_left_nbytes = 0


def _nbytes_of_files() -> int | None:
    """What is resident of mapped files; None where the system does not say."""
    return _statm(2)


def _resident_nbytes() -> int | None:
    """What of the process is resident; None where the system does not say."""
    return _statm(1)


def _statm(field: int) -> int | None:
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[field]) * mmap.PAGESIZE
    except (OSError, IndexError, ValueError):
        return None


def _clean_code() -> Iterator[tuple[int, int]]:
    """Begin and length of the code of large libraries in which nobody, as a debugger at a breakpoint, wrote."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            ranges = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) r-xp \S+ \S+ \S+ +/", maps.read(), re.MULTILINE)
        with open("/proc/self/pagemap", "rb", buffering=0) as pages:
            for begin, end in ((int(begin, 16), int(end, 16)) for begin, end in ranges):
                if end - begin < _LARGE_CODE_NBYTES:
                    continue
                pages.seek(begin // mmap.PAGESIZE * 8)
                flags = pages.read((end - begin) // mmap.PAGESIZE * 8)[7::8]  # the top byte of each page's word
                if flags and not any(flag in flags for flag in _WRITTEN):
                    yield begin, end - begin
    except OSError:
        return
