"""Triton's stages from a kernel's text to its cubin, for an architecture that this machine need not have.

The only module that imports `triton`, which must be version 3.6. Invariants: nothing asks for a driver; a product and
a sum are never contracted to one operation, for that drops the rounding between two operators; libdevice keeps
denormals; no line information is written, which halves a cubin.
"""

from __future__ import annotations

import linecache
import os
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from triton import __file__ as triton_file
from triton import __version__, knobs
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend

from smelt.codegen.triton.kernel import TritonSource
from smelt.diag import InternalError
from smelt.runtime.cuda.code import CudaCode

VERSION: str = __version__
_POINTER_ALIGNMENT = 16

_parsing = Lock()
"""Triton parses a kernel's text; Python below 3.11.8 counts the depth of a syntax tree for all threads together
(CPython issue 106905), and fails where two parse at once."""


class Compiled:
    """A kernel's code, and the text of the stages before it by name: ttir, ttgir, llir, ptx."""

    def __init__(self, code: CudaCode, texts: dict[str, str]) -> None:
        self.code, self.texts = code, texts


def compile_all(sources: Sequence[TritonSource], arch: int) -> list[CudaCode | InternalError]:
    """The code of each text, side by side in threads; an error for one that is refused."""
    with ThreadPoolExecutor(min(len(sources), os.cpu_count() or 1) or 1) as pool:
        return list(pool.map(lambda source: _or_error(source, arch), sources))


def _or_error(source: TritonSource, arch: int) -> CudaCode | InternalError:
    try:
        return compile_one(source, arch).code
    except InternalError as error:
        return error


def compile_one(source: TritonSource, arch: int) -> Compiled:
    """The code of a text for an architecture (80, 90, 100), with the stages' texts. Raises: InternalError."""
    # What is contracted in one process only would give other numbers there: it is said anew for each kernel.
    knobs.compilation.disable_line_info = True
    try:
        return _through_stages(source, arch)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise InternalError(
            f"a Triton kernel cannot be compiled for sm_{arch}: {reason}", notes=(source.text,)
        ) from error


def disassembled(code: CudaCode) -> str:
    """The machine instructions of a kernel, by the disassembler that Triton brings. Raises: InternalError."""
    tool = Path(triton_file).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code.cubin)
        file.flush()
        try:
            done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, timeout=60, check=False)
        except OSError as error:
            raise InternalError(f"nvdisasm of Triton cannot be run: {error}") from error
    if done.returncode:
        raise InternalError(f"nvdisasm of Triton refuses a kernel: {done.stderr.strip()}")
    return done.stdout


def _through_stages(source: TritonSource, arch: int) -> Compiled:
    target = GPUTarget("cuda", arch, 32)
    backend = make_backend(target)
    wished = {
        "num_warps": source.warps, "num_stages": source.stages,
        "enable_fp_fusion": False, "enable_reflect_ftz": False,
    }  # fmt: skip
    options = backend.parse_options(wished)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    made = _ast(source)
    functions, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, made.language)
    metadata: dict[str, Any] = {"target": target, **options.__dict__}
    with _parsing:
        module = made.make_ir(target, options, functions, modules, context)
    texts: dict[str, str] = {}
    for name, stage in stages.items():
        module = stage(module, metadata)
        if name != "cubin":
            texts[name] = str(module)
    if metadata["global_scratch_size"] or metadata["profile_scratch_size"]:
        raise InternalError("a kernel wants scratch memory of its own")
    multiples = (*_pointer_multiples(source), *source.multiples)
    code = CudaCode(
        source.name, arch, source.parameters, multiples, source.warps, int(metadata["shared"]), bytes(module)
    )
    return Compiled(code, texts)


def _pointer_multiples(source: TritonSource) -> tuple[int, ...]:
    buffer = _POINTER_ALIGNMENT if source.is_aligned else 1
    return (*(buffer for _ in source.pointers), *(1 for _ in range(source.can_fail)))


def _ast(source: TritonSource) -> ASTSource:
    file = f"<{source.name}>"
    # Triton reads a function's text where Python keeps that of files.
    linecache.cache[file] = (len(source.text), None, source.text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": source.name}
    exec(compile(source.text, file, "exec"), namespace)
    function = namespace[source.name]
    signature = dict(source.parameters) | {name: "constexpr" for name, _ in source.constants}
    multiples = (*_pointer_multiples(source), *source.multiples)
    hints = {(k,): [["tt.divisibility", multiple]] for k, multiple in enumerate(multiples) if multiple > 1}
    return ASTSource(function, signature, dict(source.constants), hints)
