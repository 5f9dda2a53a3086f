"""Object code of the executor."""

from __future__ import annotations

import hashlib
import importlib
import platform
from functools import lru_cache
from importlib.metadata import version

from smelt.codegen.llvm.cached import drafted_object
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.profiler import profiler_at_hand, profiler_text
from smelt.codegen.llvm.walkers.entry_ir import entry_text
from smelt.codegen.llvm.walkers.executor_ir import executor_text
from smelt.runtime.machine.cache import CodeCache


@lru_cache(maxsize=2)
def _text(profile: bool) -> str:
    # Whoever has this object cached has that of the same state's profile hook, too.
    beside = f"; beside {hashlib.sha256(profiler_text().encode()).hexdigest()}\n"
    return beside + executor_text(platform.machine(), profile=profile) + entry_text()


def executor_for(isa: Isa, cache: CodeCache) -> bytes:
    """Object code of `smelt_run` and `smelt_enter` for the kind of machine that a target is of."""
    name = isa.triple.partition("-")[0]
    text = executor_text(name, profile=False) + entry_text()

    def build() -> bytes:
        return bytes(importlib.import_module("smelt.codegen.llvm.emit").emit_object(text, triple=isa.triple))

    return cache.get_or_build(hashlib.sha256(f"{version('llvmlite')} {isa.triple}\0{text}".encode()).hexdigest(), build)


def executor_object(cache: CodeCache, *, profile: bool = False) -> bytes:
    """Object code of `smelt_run` and `smelt_enter`. With `profile` it measures each record.

    Raises: InternalError if the emitted text is not valid.
    """
    made = drafted_object("executor", _text(profile), cache)
    profiler_at_hand(cache)  # made now, if LLVM is here for the executor: recordings of later processes find it
    return made
