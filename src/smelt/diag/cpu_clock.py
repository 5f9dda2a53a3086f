"""A clock of the computing that a thread has caused: its own, and that of workers that it waited for.

Invariant: what other threads and other processes do on the machine does not move it, nor does waiting.
"""

from __future__ import annotations

import threading
from time import thread_time


class _Thread(threading.local):
    """What workers have computed for this thread."""

    workers_s: float = 0.0


_thread = _Thread()


def cpu_seconds() -> float:
    """The time by this thread's clock."""
    return thread_time() + _thread.workers_s


def add_workers(seconds: float) -> None:
    """Count what workers have computed while this thread waited for them."""
    _thread.workers_s += seconds
