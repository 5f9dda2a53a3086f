"""What machine code depends on: the CPU's model and features, read without any compiler package."""

from __future__ import annotations

import platform
import sys
from functools import lru_cache
from pathlib import Path

_FIELDS = ("model name", "flags", "Features", "CPU implementer", "CPU part")


@lru_cache(maxsize=1)
def cpu_fingerprint() -> str:
    """Architecture, model and feature flags as one line of text; equal on machines that may share machine code."""
    parts = [sys.platform, platform.machine()]
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return " ".join([*parts, platform.processor()])
    seen: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _FIELDS:
            seen.setdefault(name.strip(), value.strip())
    return " ".join([*parts, *(f"{name}={seen[name]}" for name in _FIELDS if name in seen)])
