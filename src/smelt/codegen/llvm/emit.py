"""LLVM text to object code for this machine. Only this package's modules know llvmlite.

Invariant: text goes through code generation at level 2 and no other pass; text without vectors may ask for level 0,
which takes a sixth of the time and makes code that is up to three times slower. Level 0 aborts the process on lane
masks, and the mid-end brings explicit-vector text nothing.

llvmlite lets one thread at a time into LLVM. Code generation of modules in contexts of their own needs no such order,
so it alone is called past that lock, where the lock is the wrapper that is expected; else modules come one by one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import string_at
from functools import lru_cache
from time import thread_time
from typing import Any

import llvmlite.binding as llvm

from smelt.diag import InternalError
from smelt.diag.cpu_clock import add_workers
from smelt.diag.idle_memory import give_back_code

_EMIT = "LLVMPY_TargetMachineEmitToMemory"
_MOST_THREADS = 8


def emit_object(text: str, cpu: str = "", features: str = "", triple: str = "") -> bytes:
    """Object file (ELF on Linux) of a module given as LLVM text, for the plain instruction set unless `cpu` is named.

    triple: of another system than this one.

    Raises: InternalError if LLVM does not accept the text.
    """
    module = _module(text)
    # Any number of threads may come here with this one machine: llvmlite's lock is what keeps them apart.
    code = bytes(_target_machine(cpu, features, triple).emit_object(module))
    give_back_code()  # LLVM runs once for each program: 50 MB of its code need not stay in memory
    return code


def emit_draft(text: str) -> bytes:
    """`emit_object` of a text without vectors, for this machine, made quickly: slower code that does the same.

    Raises: InternalError if LLVM does not accept the text.
    """
    code = bytes(_target_machine("", "", level=0).emit_object(_module(text)))
    give_back_code()  # LLVM runs once for each program: 50 MB of its code need not stay in memory
    return code


def emit_apart(text: str) -> bytes:
    """`emit_object` for this machine, past the lock: other threads may use LLVM meanwhile. Raises: as `emit_object`."""
    code = _emit_apart(text, _new_target_machine("", "", ""))
    give_back_code()
    return code


def emit_assembly(text: str, cpu: str = "", features: str = "") -> str:
    """What `emit_object` makes, as assembly for people. Raises: InternalError if LLVM does not accept the text."""
    return str(_target_machine(cpu, features).emit_assembly(_module(text)))


def emit_objects(
    texts: Sequence[str], cpu: str = "", features: str = "", triple: str = ""
) -> list[bytes | InternalError]:
    """`emit_object` of each text, by several threads; in the place of a text that LLVM refuses stands the error."""
    nthreads = min(len(texts), os.cpu_count() or 1, _MOST_THREADS)
    rest = iter(range(len(texts)))
    found: list[bytes | InternalError] = [b""] * len(texts)

    def work(machine: Any) -> float:
        start = thread_time()
        for i in rest:
            try:
                found[i] = _emit_apart(texts[i], machine)
            except InternalError as error:
                found[i] = error
        return thread_time() - start

    machines = [_new_target_machine(cpu, features, triple) for _ in range(nthreads)]
    with ThreadPoolExecutor(nthreads) as pool:
        add_workers(sum(pool.map(work, machines)))
    give_back_code()  # LLVM runs once for each program: 50 MB of its code need not stay in memory
    return found


def _module(text: str) -> Any:
    """The verified module of a text, in a context of its own. Raises: InternalError."""
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise InternalError("emitted code is not valid LLVM text", why=str(error), notes=(text[:2000],)) from error
    return module


def _emit_apart(text: str, machine: Any) -> bytes:
    """Object code by a machine that no other thread uses. Raises: InternalError."""
    module = _module(text)
    emit = _unlocked_emit()
    if emit is None:
        return bytes(machine.emit_object(module))
    library = llvm.ffi.lib
    with llvm.ffi.OutputString() as message:
        buffer = emit(machine, module, 1, message)
        if not buffer:
            raise InternalError("LLVM cannot make object code", why=str(message), notes=(text[:2000],))
    try:
        return string_at(library.LLVMPY_GetBufferStart(buffer), library.LLVMPY_GetBufferSize(buffer))
    finally:
        library.LLVMPY_DisposeMemoryBuffer(buffer)


@lru_cache(maxsize=1)
def _unlocked_emit() -> Any:
    """The C function itself, without the lock around it; None where llvmlite is built otherwise."""
    wrapped = getattr(getattr(llvm.ffi, "lib", None), _EMIT, None)
    function: Any = getattr(wrapped, "_cfn", None)
    names = ("LLVMPY_GetBufferStart", "LLVMPY_GetBufferSize", "LLVMPY_DisposeMemoryBuffer")
    if getattr(function, "argtypes", None) is None or len(function.argtypes) != 4:
        return None
    return function if all(hasattr(llvm.ffi.lib, name) for name in names) else None


@lru_cache(maxsize=8)
def _target_machine(cpu: str, features: str, triple: str = "", level: int = 2) -> Any:
    return _new_target_machine(cpu, features, triple, level)


def _new_target_machine(cpu: str, features: str, triple: str = "", level: int = 2) -> Any:
    if triple:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    else:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(triple or llvm.get_process_triple())
    return target.create_target_machine(cpu=cpu, features=features, opt=level, reloc="pic", codemodel="small")
