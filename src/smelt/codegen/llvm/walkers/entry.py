"""Object code of the native entry."""

from __future__ import annotations

from functools import lru_cache

from smelt.codegen.llvm.cached import drafted_object
from smelt.codegen.llvm.walkers.entry_call_ir import entry_module_text
from smelt.runtime.machine.cache import CodeCache

_text = lru_cache(maxsize=1)(entry_module_text)


def entry_object(cache: CodeCache) -> bytes:
    """Object code of `smelt_call` and `smelt_guards`; a pure function of the version of llvmlite and this CPU.

    Raises: InternalError if the emitted text is not valid.
    """
    return drafted_object("entry", _text(), cache)
