"""Object code of the native entry, from the cache where it is already there."""

from __future__ import annotations

import hashlib
import importlib
from functools import lru_cache
from importlib.metadata import version

from smelt.codegen.llvm.entry_call_ir import entry_module_text
from smelt.runtime.cache import CodeCache
from smelt.runtime.cpu import cpu_fingerprint


@lru_cache(maxsize=1)
def _text_and_key() -> tuple[str, str]:
    text = entry_module_text()
    parts = ("entry", version("llvmlite"), cpu_fingerprint(), text)
    return text, hashlib.sha256("\0".join(parts).encode()).hexdigest()


def entry_object(cache: CodeCache) -> bytes:
    """Object code of `smelt_call` and `smelt_guards`; a pure function of the version of llvmlite and this CPU.

    Raises: InternalError if the emitted text is not valid.
    """
    text, key = _text_and_key()
    return cache.get_or_build(key, lambda: _build(text))


def _build(text: str) -> bytes:
    # A process that finds the object in the cache must not pay for importing llvmlite.
    emit = importlib.import_module("smelt.codegen.llvm.emit")
    return bytes(emit.emit_object(text))
