"""Object code that is the same for every program, from the cache where it is already there.

A later process must not pay for importing llvmlite, so the module that does is reached only when something is built.
"""

from __future__ import annotations

import hashlib
import importlib
import platform
import sys
from functools import lru_cache
from importlib.metadata import version

from smelt.runtime.machine import drafts
from smelt.runtime.machine.cache import CodeCache
from smelt.runtime.machine.cpu import cpu_fingerprint

_EMIT = "smelt.codegen.llvm.emit"


@lru_cache(maxsize=8)
def _key(name: str, text: str) -> str:
    parts = (name, version("llvmlite"), cpu_fingerprint(), text)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def cached_object(name: str, text: str, cache: CodeCache) -> bytes:
    """Object code of a text; a pure function of it, the version of llvmlite and this CPU.

    Raises: InternalError if the text is not valid.
    """
    return cache.get_or_build(_key(name, text), lambda: bytes(importlib.import_module(_EMIT).emit_object(text)))


def drafted_object(name: str, text: str, cache: CodeCache) -> bytes:
    """The same of a text without vectors; where the cache has none, a draft, which `drafts` replaces later.

    Raises: InternalError if the text is not valid.
    """
    key = _key(name, text)
    found = cache.get(key)
    if found is None and platform.machine() in ("x86_64", "AMD64"):
        emit = importlib.import_module(_EMIT)
        found = _draft(text)
        drafts.promise(found, lambda: cache.get_or_build(key, lambda: bytes(emit.emit_apart(text))))
    return cached_object(name, text, cache) if found is None else found


@lru_cache(maxsize=4)
def _draft(text: str) -> bytes:
    return bytes(importlib.import_module(_EMIT).emit_draft(text))


def object_at_hand(name: str, text: str, cache: CodeCache) -> bytes | None:
    """The same where the cache has it or this process has LLVM loaded; None where LLVM would have to be."""
    return cached_object(name, text, cache) if _EMIT in sys.modules else cache.get(_key(name, text))
