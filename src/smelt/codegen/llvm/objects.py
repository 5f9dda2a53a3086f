"""Own kernels from LLVM text to object code, from the cache where they are already there.

Invariant: a kernel is known by the digest of its text, so equal kernels are built once in a process and kept once on
disk; so are functions that several kernels call. A process that finds all its kernels in the cache imports no compiler
package.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib.metadata import version

from smelt.codegen.llvm.batches import batches
from smelt.codegen.llvm.isa import Isa, is_for_elsewhere
from smelt.codegen.llvm.joined import joined
from smelt.codegen.llvm.parted import Module, Parts, parted
from smelt.diag import InternalError
from smelt.diag.records import record
from smelt.runtime.machine.cache import CodeCache
from smelt.runtime.plan import KernelCode

PLACEHOLDER = "@KERNEL"
# Raised whenever the meaning of a kernel's arguments changes, so that no object of another version is loaded.
_VERSION = "1"


@record
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

    Private functions are modules, too (`parted`): one that fails harms the kernels that call it.

    A kernel that LLVM refuses is told to `failed` and left out. Raises: InternalError for the first such one if nobody
    is told; ImportError if something must be built and there is no llvmlite.
    """
    found: dict[str, KernelCode] = {}
    missing: dict[str, Parts] = {}
    for source in {s.symbol: s for s in sources}.values():
        known = cache.get(_key(source.symbol, isa)) if cache is not None else None
        if known is None:
            missing[source.symbol] = parted(source.symbol, source.text)
        else:
            found[source.symbol] = KernelCode(source.symbol, known)
    if not missing:
        return found
    built = _built(missing.values(), isa, cache)
    for symbol, parts in missing.items():
        code = _whole(parts, built)
        if isinstance(code, bytes):
            found[symbol] = KernelCode(symbol, code)
            if cache is not None:
                cache.put(_key(symbol, isa), code)
        elif failed is None:
            raise code
        else:
            failed(KernelSource(symbol, parts.kernel.text), code)
    return found


def _built(kernels: Iterable[Parts], isa: Isa, cache: CodeCache | None) -> dict[str, bytes | InternalError]:
    """The object of each module by its symbol, or the error; functions of several kernels are built once."""
    modules: dict[str, Module] = {}
    found: dict[str, bytes | InternalError] = {}
    for parts in kernels:
        modules[parts.kernel.symbol] = parts.kernel
        for symbol, function in parts.functions.items():
            if symbol in modules or symbol in found:
                continue
            code = cache.get(_key(symbol, isa)) if cache is not None else None
            if code is None:
                modules[symbol] = function
            else:
                found[symbol] = code
    emit = importlib.import_module("smelt.codegen.llvm.emit")
    triple = isa.triple if is_for_elsewhere() else ""

    def emitted(texts: list[str]) -> list[bytes | InternalError]:
        return list(emit.emit_objects(texts, isa.cpu, isa.features, triple)) if texts else []

    # The longest first, so that no thread waits for another at the end.
    wanted = batches(modules.values())
    apart: list[Module] = []
    for batch, made in zip(wanted, emitted([batch.text for batch in wanted]), strict=True):
        try:
            found.update(batch.cut(made) if isinstance(made, bytes) else {batch.only.symbol: made})
        except InternalError:
            apart += batch.modules
    found.update(zip((module.symbol for module in apart), emitted([m.text for m in apart]), strict=True))
    for module in modules.values():
        made = found[module.symbol]
        if module.is_function and cache is not None and isinstance(made, bytes):
            cache.put(_key(module.symbol, isa), made)
    return found


def _whole(parts: Parts, built: Mapping[str, bytes | InternalError]) -> bytes | InternalError:
    """The object of a kernel with all that it calls."""
    codes = [built[symbol] for symbol in (parts.kernel.symbol, *parts.functions)]
    objects = [code for code in codes if isinstance(code, bytes)]
    if len(objects) < len(codes):
        return next(code for code in codes if not isinstance(code, bytes))
    return joined(parts.kernel.symbol, objects) if len(objects) > 1 else objects[0]


def assembly_of(text: str, isa: Isa) -> str:
    """The assembly of a kernel's LLVM text, for people. Raises: InternalError if LLVM does not accept the text."""
    return str(importlib.import_module("smelt.codegen.llvm.emit").emit_assembly(text, isa.cpu, isa.features))


def _key(symbol: str, isa: Isa) -> str:
    parts = ("kernel", _VERSION, _llvmlite_version(), isa.key, symbol)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@lru_cache(maxsize=1)
def _llvmlite_version() -> str:
    return version("llvmlite")
