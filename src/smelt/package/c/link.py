"""Compiling and linking: by a C compiler of the system, or by the `ziglang` package, which makes code for any target.

Invariant: nothing is downloaded; what is missing is named, with what to install.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from smelt.diag import PackageError
from smelt.diag.records import record
from smelt.runtime.machine.elf import MACHINE_X86_64
from smelt.runtime.machine.loader import host_machine

SOURCES = ("call.c", "context.c", "copy.c", "numbers.c", "pool.c", "sha256.c", "sizes.c", "tensors.c", "weights.c")
TORCH_SOURCE = "torch.c"
PUBLIC = ("smelt.h", "smelt.hpp")
RUNTIME = Path(__file__).with_name("runtime")
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-Wall")
_GLIBC = "2.17"


@record
class Toolchain:
    """The commands that compile, link and archive for a machine. flags: more flags for the compiler."""

    name: str
    compiler: tuple[str, ...]
    archiver: tuple[str, ...]
    flags: tuple[str, ...] = ()


def toolchain(machine: str, wanted: str = "") -> Toolchain:
    """What builds for a machine ("x86_64", "aarch64"); wanted: a compiler's command, "zig", or "" for what there is.

    Raises: PackageError (S0704) where there is none.
    """
    is_here = host_machine() is not None and (host_machine() == MACHINE_X86_64) == (machine == "x86_64")
    if wanted == "zig":
        return _zig(machine) or _missing(machine, "the package ziglang is not installed")
    if wanted:
        found = shutil.which(wanted.split()[0])
        prefix = Path(wanted.split()[0]).name.removesuffix("gcc").removesuffix("clang").removesuffix("cc")
        if found is None:
            return _missing(machine, f"there is no command {wanted.split()[0]!r}")
        return Toolchain(wanted, tuple(wanted.split()), (_archiver(prefix),))
    if is_here:
        own = os.environ.get("CC", "").split()
        names = [own] if own else [["cc"], ["gcc"], ["clang"]]
        for command in names:
            if shutil.which(command[0]):
                return Toolchain(" ".join(command), tuple(command), (_archiver(""),))
    elif shutil.which(f"{machine}-linux-gnu-gcc"):
        name = f"{machine}-linux-gnu-gcc"
        return Toolchain(name, (name,), (_archiver(f"{machine}-linux-gnu-"),))
    return _zig(machine) or _missing(machine, "there is no C compiler")


def _archiver(prefix: str) -> str:
    return f"{prefix}ar" if shutil.which(f"{prefix}ar") else "ar"


def _zig(machine: str) -> Toolchain | None:
    if importlib.util.find_spec("ziglang") is None:
        return None
    zig = (sys.executable, "-m", "ziglang")
    return Toolchain("zig", (*zig, "cc"), (*zig, "ar"), ("-target", f"{machine}-linux-gnu.{_GLIBC}"))


def _missing(machine: str, why: str) -> Toolchain:
    debian = "gcc" if machine == "x86_64" else f"gcc-{machine}-linux-gnu"
    raise PackageError(
        f"the program cannot be linked for {machine}",
        why=why,
        fix=f"install a C compiler (Debian: {debian}), or the package ziglang, which needs nothing else",
        code="S0704",
    )


def build(
    tools: Toolchain, folder: Path, out: Path, name: str, objects: Sequence[Path], flags: Sequence[str] = (),
    libtorch: Path | None = None,
) -> None:  # fmt: skip
    """Compile the runtime and the tables, and link them with kernels: `lib<name>.so` and `lib<name>.a` in `out`.

    folder: where the tables' source is and objects go. flags: more for compiling and linking. libtorch: the folder of
    the library that is linked.
    """
    more = (*tools.flags, *flags)
    names = SOURCES if libtorch is None else (*SOURCES, TORCH_SOURCE)
    sources = [*(RUNTIME / source for source in names), folder / "program.c"]
    made = [folder / f"{name}_{source.stem}.o" for source in sources]

    def compiled(pair: tuple[Path, Path]) -> None:
        source, target = pair
        _run(tools, [*tools.compiler, *more, *_FLAGS, "-I", str(RUNTIME), "-c", str(source), "-o", str(target)])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compiled, zip(sources, made, strict=True)))
    exported = folder / "exported.map"
    exported.write_text(f"{{ global: smelt_error; {'; '.join(_PUBLIC_FUNCTIONS)}; {name}_program; local: *; }};\n")
    together = [str(path) for path in (*made, *objects)]
    shared = out / f"lib{name}.so"
    link = ["-shared", f"-Wl,--version-script={exported}", f"-Wl,-soname,{shared.name}", "-Wl,-z,noexecstack"]
    link += [] if "-g" in flags else ["-s"]
    _run(tools, [*tools.compiler, *more, "-O2", *link, *together, "-o", str(shared), *_libraries(libtorch)])
    static = out / f"lib{name}.a"
    static.unlink(missing_ok=True)
    _run(tools, [*tools.archiver, "rcs", str(static), *together])


def _libraries(libtorch: Path | None) -> list[str]:
    own = ["-lpthread", "-lm"]
    if libtorch is None:
        return own
    return [f"-L{libtorch}", f"-Wl,-rpath,{libtorch}", *(f"-l{name}" for name in TORCH_LIBRARIES), *own]


TORCH_LIBRARIES = ("torch_cpu", "c10")


def libtorch_folder(wanted: str) -> Path:
    """The folder that has libtorch_cpu.so; wanted: it, or one above it, or "torch": that of the installed package.

    Raises: PackageError (S0704) where it is not there.
    """
    start = Path(torch.__file__).parent if wanted == "torch" else Path(wanted).absolute()
    for folder in (start, start / "lib"):
        if (folder / "libtorch_cpu.so").is_file():
            return folder
    raise PackageError(
        "the program cannot be linked to libtorch",
        why=f"there is no libtorch_cpu.so in {start}, nor in {start / 'lib'}",
        fix="name the folder of libtorch (--libtorch), or torch for that of the installed package",
        code="S0704",
    )


_PUBLIC_FUNCTIONS = (
    "smelt_open", "smelt_close", "smelt_entries", "smelt_describe", "smelt_find", "smelt_context_new",
    "smelt_context_free", "smelt_set_threads", "smelt_call", "smelt_cancel", "smelt_reset", "smelt_state",
    "smelt_itemsize", "smelt_needs",
)  # fmt: skip


def _run(tools: Toolchain, command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PackageError(
            f"{tools.name} failed",
            why=(done.stderr or done.stdout).strip()[-2000:] or f"it ended with {done.returncode}",
            fix="use another compiler, by smelt export --compiler" + (" zig" if tools.name != "zig" else ""),
            code="S0704",
        )
