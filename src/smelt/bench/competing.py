"""A process that keeps one core busy, for rows measured beside it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

_SPIN = "print(flush=True)\nwhile True: pass"


@contextlib.contextmanager
def competing_process() -> Iterator[int | None]:
    """Let another process spin on one core during the block; the core, or None where it cannot be pinned to one.

    It is pinned to the last core that this process may use, and has this process's priority. It is ended with the
    block, whatever happens there.
    """
    with subprocess.Popen([sys.executable, "-S", "-E", "-c", _SPIN], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it runs from here on
            yield _pin(process.pid)
        finally:
            process.kill()


def _pin(pid: int) -> int | None:
    """Give a process one core of those that this one may use; None where the system offers no such call."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(pid, {core})
    return core
