"""What machine code depends on: the CPU's model and features, read without any compiler package.

Source: the kernel's /proc/cpuinfo, which leaves out what the system does not save on a context switch.
"""

from __future__ import annotations

import os
import platform
import sys
from functools import lru_cache
from pathlib import Path

_FIELDS = ("model name", "flags", "Features", "CPU implementer", "CPU part")


@lru_cache(maxsize=1)
def cpu_fingerprint() -> str:
    """Architecture, model and feature flags as one line of text; equal on machines that may share machine code."""
    parts = [sys.platform, platform.machine()]
    seen = _cpuinfo()
    if not seen:
        return " ".join([*parts, platform.processor()])
    return " ".join([*parts, *(f"{name}={seen[name]}" for name in _FIELDS if name in seen)])


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """Names of the CPU's features as Linux spells them (`avx2`, `avx512f`, `asimd`); empty where they are not told."""
    seen = _cpuinfo()
    return frozenset((seen.get("flags") or seen.get("Features") or "").split())


@lru_cache(maxsize=1)
def data_cache_nbytes() -> tuple[int, int]:
    """Bytes of a core's first- and second-level data cache; 32 KB and 1 MB where they are not told."""
    found = _caches()
    return found.get(1, 32 << 10), found.get(2, 1 << 20)


@lru_cache(maxsize=1)
def last_cache_nbytes() -> int:
    """Bytes of the last-level cache; 32 MB where they are not told."""
    found = _caches()
    return found[max(found)] if max(found, default=0) >= 3 else 32 << 20


def _caches() -> dict[int, int]:
    """Bytes of the first processor's data caches by level, as far as they are told."""
    found: dict[int, int] = {}
    for at in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level, kind, size = (at.joinpath(name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction" and level.isdigit() and size.endswith("K") and size[:-1].isdigit():
            found[int(level)] = int(size[:-1]) << 10
    return found


@lru_cache(maxsize=1)
def memory_nbytes() -> int:
    """Bytes of the machine's memory; 8 GB where they are not told."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 8 << 30


@lru_cache(maxsize=1)
def _cpuinfo() -> dict[str, str]:
    """The first processor's entry; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    seen: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _FIELDS:
            seen.setdefault(name.strip(), value.strip())
    return seen
