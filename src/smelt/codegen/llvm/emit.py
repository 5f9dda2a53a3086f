"""LLVM text to object code for this machine. Only this package's modules know llvmlite.

Invariant: text goes through code generation at level 2 and no other pass. Level 0 aborts the process on lane masks and
the mid-end brings explicit-vector text nothing, so neither can be asked for.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm

from smelt.diag import InternalError


@lru_cache(maxsize=8)
def _target_machine(cpu: str, features: str) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(cpu=cpu, features=features, opt=2, reloc="pic", codemodel="small")


def emit_object(text: str, cpu: str = "", features: str = "") -> bytes:
    """Object file (ELF on Linux) of a module given as LLVM text, for the plain instruction set unless `cpu` is named.

    Raises: InternalError if LLVM does not accept the text.
    """
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise InternalError("emitted code is not valid LLVM text", why=str(error), notes=(text[:2000],)) from error
    return bytes(_target_machine(cpu, features).emit_object(module))
