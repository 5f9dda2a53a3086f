"""The native profile hook, made known to the recorder of reads as soon as there is one.

To record needs no compiler, and does not load one: there the hook is used that something compiled on this machine has
left. A recording that is to be compiled makes it first, in a fraction of what Python's hook would take.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from smelt.codegen.llvm.profiler import profiler_at_hand, profiler_object
from smelt.diag import Options, events
from smelt.runtime.machine.cache import code_cache
from smelt.runtime.machine.loader import host_machine
from smelt.runtime.machine.profiler import load_profiler

_lock = threading.Lock()


def watch_natively(options: Options, *, makes: bool = False) -> None:
    """Let recordings of this process use the native hook, if its code is at hand; elsewhere they use Python's.

    makes: what is recorded is going to be compiled: the hook may be, too.
    """
    if events.native.is_known or not _lock.acquire(blocking=False):
        return
    try:
        cache = code_cache(options.cache_dir, options.cache_limit_mb)
        machine_code = profiler_at_hand(cache)
        if machine_code is None and makes and host_machine() is not None:
            with suppress(Exception):  # of LLVM's or its absence, which the build itself tells of
                machine_code = profiler_object(cache)
        if machine_code is not None:
            events.native.set(load_profiler(machine_code))
    finally:
        _lock.release()
