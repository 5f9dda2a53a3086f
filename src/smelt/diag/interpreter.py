"""What kind of Python this is."""

from __future__ import annotations

import sys


def is_free_threaded() -> bool:
    """Whether it is built to run without the GIL."""
    return "t" in getattr(sys, "abiflags", "")
