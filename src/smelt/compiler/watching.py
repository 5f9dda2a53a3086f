"""The native profile hook, made known to the recorder of reads as soon as there is one.

Which it is not before something was compiled on this machine: to record needs no compiler, and does not load one.
"""

from __future__ import annotations

import threading

from smelt.capture import events
from smelt.codegen.llvm.profiler import profiler_at_hand
from smelt.diag import Options
from smelt.runtime.cache import code_cache
from smelt.runtime.profiler import load_profiler

_lock = threading.Lock()


def watch_natively(options: Options) -> None:
    """Let recordings of this process use the native hook, if its code is at hand; elsewhere they use Python's."""
    if events.native.is_known or not _lock.acquire(blocking=False):
        return
    try:
        machine_code = profiler_at_hand(code_cache(options.cache_dir, options.cache_limit_mb))
        if machine_code is not None:
            events.native.set(load_profiler(machine_code))
    finally:
        _lock.release()
