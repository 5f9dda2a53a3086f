"""Object code of the executor, from the cache where it is already there.

A later process must not pay for importing llvmlite, so the module that does is reached only when something is built.
"""

from __future__ import annotations

import hashlib
import importlib
import platform
from functools import lru_cache
from importlib.metadata import version

from smelt.codegen.llvm.entry_ir import entry_text
from smelt.codegen.llvm.executor_ir import executor_text
from smelt.runtime.cache import CodeCache
from smelt.runtime.cpu import cpu_fingerprint


@lru_cache(maxsize=2)
def _text_and_key(profile: bool) -> tuple[str, str]:
    text = executor_text(platform.machine(), profile=profile) + entry_text()
    parts = ("executor", version("llvmlite"), cpu_fingerprint(), text)
    return text, hashlib.sha256("\0".join(parts).encode()).hexdigest()


def executor_object(cache: CodeCache, *, profile: bool = False) -> bytes:
    """Object code of `smelt_run` and `smelt_enter`; a pure function of the versions of llvmlite and Python, and this
    CPU. With `profile` it measures each record.

    Raises: InternalError if the emitted text is not valid.
    """
    text, key = _text_and_key(profile)
    return cache.get_or_build(key, lambda: _build(text))


def _build(text: str) -> bytes:
    emit = importlib.import_module("smelt.codegen.llvm.emit")
    return bytes(emit.emit_object(text))
