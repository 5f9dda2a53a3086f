"""How busy the machine is: its load, and how long the threads of this process have waited for a core."""

from __future__ import annotations

import os
from pathlib import Path


def load_average() -> float:
    """Runnable processes over the last minute; 0.0 where the system does not tell."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return 0.0


def waited_ns() -> int:
    """Nanoseconds that the threads of this process were ready to run and had no core; 0 where nobody counts them.

    Source: the second number of Linux's /proc/<pid>/task/<tid>/schedstat.
    """
    total = 0
    try:
        for task in Path("/proc/self/task").iterdir():
            total += int((task / "schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return total
