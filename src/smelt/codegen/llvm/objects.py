"""Own kernels from LLVM text to object code, from the cache where they are already there.

Invariant: a kernel is known by the digest of its text, so equal kernels are built once in a process and kept once on
disk. A process that finds all its kernels in the cache imports no compiler package.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version

from smelt.codegen.llvm.isa import Isa, is_for_elsewhere
from smelt.diag import InternalError
from smelt.runtime.machine.cache import CodeCache
from smelt.runtime.plan import KernelCode

PLACEHOLDER = "@KERNEL"
# Raised whenever the meaning of a kernel's arguments changes, so that no object of another version is loaded.
_VERSION = "1"


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A module of LLVM text that defines `symbol`, which stands for its content."""

    symbol: str
    text: str

    @staticmethod
    def of(text: str) -> KernelSource:
        """The source of a text that calls its own function `@KERNEL`.

        Raises: InternalError if it does not define it.
        """
        if PLACEHOLDER + "(" not in text:
            raise InternalError(f"a kernel's text does not define {PLACEHOLDER}", notes=(text[:500],))
        symbol = f"smelt_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
        return KernelSource(symbol, text.replace(PLACEHOLDER + "(", f"@{symbol}("))


def compile_kernels(
    sources: Iterable[KernelSource],
    isa: Isa,
    cache: CodeCache | None = None,
    failed: Callable[[KernelSource, InternalError], None] | None = None,
) -> dict[str, KernelCode]:
    """Object code by symbol, built where the cache has none; a module each, so that one that fails harms no other.

    A kernel that LLVM refuses is told to `failed` and left out. Raises: InternalError for the first such one if nobody
    is told; ImportError if something must be built and there is no llvmlite.
    """
    found: dict[str, KernelCode] = {}
    missing: list[KernelSource] = []
    for source in {s.symbol: s for s in sources}.values():
        code = cache.get(_key(source, isa)) if cache is not None else None
        if code is None:
            missing.append(source)
        else:
            found[source.symbol] = KernelCode(source.symbol, code)
    if not missing:
        return found
    emit = importlib.import_module("smelt.codegen.llvm.emit")
    triple = isa.triple if is_for_elsewhere() else ""
    built = emit.emit_objects([source.text for source in missing], isa.cpu, isa.features, triple)
    for source, code in zip(missing, built, strict=True):
        if isinstance(code, bytes):
            found[source.symbol] = KernelCode(source.symbol, code)
            if cache is not None:
                cache.put(_key(source, isa), code)
        elif failed is None:
            raise code
        else:
            failed(source, code)
    return found


def assembly_of(text: str, isa: Isa) -> str:
    """The assembly of a kernel's LLVM text, for people. Raises: InternalError if LLVM does not accept the text."""
    return str(importlib.import_module("smelt.codegen.llvm.emit").emit_assembly(text, isa.cpu, isa.features))


def _key(source: KernelSource, isa: Isa) -> str:
    parts = ("kernel", _VERSION, _llvmlite_version(), isa.key, source.symbol)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@lru_cache(maxsize=1)
def _llvmlite_version() -> str:
    return version("llvmlite")
