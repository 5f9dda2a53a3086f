"""Kernels from Triton text to machine code, from the cache where it is already there; no GPU is needed.

Invariant: a kernel is known by the digest of its text, hints and constants, so equal kernels are compiled once. A
process that finds all its kernels in the cache imports no compiler.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable
from typing import Any, Final

from smelt.codegen.triton.kernel import TritonSource
from smelt.diag import InternalError, SmeltError
from smelt.runtime.cuda.code import CudaCode
from smelt.runtime.machine.cache import CodeCache

TRITON: Final = "3.6.0"
"""The version of Triton that kernels are written for: others round, and take options, in ways of their own."""

ARCHITECTURES: Final = (80, 90, 100)
"""Compute capabilities that kernels are compiled for: A100, H100 and H200, B200."""

# Raised whenever the meaning of a kernel's parameters changes, so that no cubin of another version is loaded.
_VERSION = "1"


def compile_cuda(sources: Iterable[TritonSource], arch: int, cache: CodeCache | None = None) -> dict[str, CudaCode]:
    """Machine code by the kernels' names, compiled where the cache has none.

    arch: the compute capability as two or three digits, 90 for 9.0. Raises: SmeltError (S0305) if something must be
    compiled and there is no Triton of that version; InternalError for a text that Triton refuses.
    """
    found: dict[str, CudaCode] = {}
    missing: list[TritonSource] = []
    for source in {s.name: s for s in sources}.values():
        code = None if cache is None else _from_cache(source, arch, cache)
        if code is None:
            missing.append(source)
        else:
            found[source.name] = code
    if missing:
        for source, made in zip(missing, stages().compile_all(missing, arch), strict=True):
            if isinstance(made, InternalError):
                raise made
            found[source.name] = made
            if cache is not None:
                cache.put(_key(source, arch), made.to_bytes())
    return found


def _from_cache(source: TritonSource, arch: int, cache: CodeCache) -> CudaCode | None:
    data = cache.get(_key(source, arch))
    return None if data is None else CudaCode.from_bytes(data)


def stage_texts(source: TritonSource, arch: int) -> dict[str, str]:
    """The text of a kernel's stages by name (ttir, ttgir, llir, ptx), for people. Raises: as `compile_cuda`."""
    texts: dict[str, str] = stages().compile_one(source, arch).texts
    return texts


def machine_text(source: TritonSource, arch: int) -> str:
    """The machine instructions of a kernel (SASS) as text, for people. Raises: as `compile_cuda`."""
    made = stages()
    text: str = made.disassembled(made.compile_one(source, arch).code)
    return text


def stages() -> Any:
    """The module that imports Triton. Raises: SmeltError (S0305) if there is none, or another version."""
    try:
        found = importlib.import_module("smelt.codegen.triton.stages")
    except ImportError as error:
        raise _no_triton(str(error)) from error
    if found.VERSION != TRITON:
        raise _no_triton(f"the version here is {found.VERSION}")
    return found


def _no_triton(why: str) -> SmeltError:
    return SmeltError(
        f"kernels for a GPU need Triton {TRITON}",
        why=why,
        fix=f"install it: pip install --no-deps triton=={TRITON}",
        code="S0305",
    )


def _key(source: TritonSource, arch: int) -> str:
    parts = ("cuda", _VERSION, TRITON, str(arch), source.digest)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
