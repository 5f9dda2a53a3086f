"""Kernels for another instruction set than this machine's, run under qemu: `SMELT_EMULATE=neon` makes them the tests'.

The harnesses of the kernel tests ask `emulated_isas` for what to test and call `run` in the place of native code. What
is needed besides the tests' own packages: a user-mode qemu, and a compiler, linker and C library of that machine.
"""

from __future__ import annotations

import atexit
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch

from smelt.codegen.llvm.isa import NEON, Isa
from smelt.codegen.llvm.objects import KernelSource

EMULATE = "SMELT_EMULATE"
_TRIPLE = "aarch64-linux-gnu"
_QEMUS = ("qemu-aarch64-static", "qemu-aarch64")
_HELP = "install a user-mode qemu and a cross compiler"
_DEBIAN = "qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross"


def emulated_isas() -> list[Isa]:
    """What the environment asks to be tested instead of this machine's instruction sets."""
    wanted = os.environ.get(EMULATE, "")
    if wanted not in ("", NEON.name):
        raise ValueError(f"{EMULATE}={wanted}: only {NEON.name} can be emulated")
    return [NEON] if wanted else []


def is_emulated(isa: Isa) -> bool:
    """Whether kernels for it run in the emulator."""
    return isa.name == NEON.name


def run(
    source: KernelSource, tensors: Sequence[torch.Tensor], words: Sequence[int], ranges: Sequence[tuple[int, int]],
    scratch_nbytes: int,
) -> int:  # fmt: skip
    """Run a kernel over ranges of its items, each with scratch full of NaN; the first code that is not 0."""
    return _machine().run(source, tensors, words, ranges, scratch_nbytes)


class _Machine:
    """A process of the other machine, which keeps the kernels that it was given."""

    def __init__(self) -> None:
        qemu = next((found for found in map(shutil.which, _QEMUS) if found), None)
        gcc = shutil.which(f"{_TRIPLE}-gcc")
        if qemu is None or gcc is None:
            raise RuntimeError(f"there is no emulator or compiler for {_TRIPLE}: {_HELP} (Debian: {_DEBIAN})")
        self._folder = tempfile.TemporaryDirectory(prefix="smelt-emulated-")
        self._gcc = gcc
        self._kernels: dict[str, int] = {}
        server = Path(self._folder.name, "server")
        flags = ["-O1", "-Wall", "-Werror", "-o", str(server)]
        subprocess.run([gcc, *flags, str(Path(__file__).with_name("server.c")), "-ldl"], check=True)
        command = [qemu, "-L", f"/usr/{_TRIPLE}", str(server)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        atexit.register(self.close)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def run(
        self, source: KernelSource, tensors: Sequence[torch.Tensor], words: Sequence[int],
        ranges: Sequence[tuple[int, int]], scratch_nbytes: int,
    ) -> int:  # fmt: skip
        """The same as the module's `run`."""
        number = self._load(source)
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
        memories = [torch.empty(0, dtype=torch.uint8).set_(storage) for storage in storages.values()]
        sent = [_numbers(2, number, len(memories))]
        for memory in memories:
            sent += [_numbers(memory.numel()), memory.numpy().tobytes()]
        sent.append(_numbers(len(tensors) + len(words)))
        for tensor in tensors:
            base = tensor.untyped_storage().data_ptr()
            sent.append(_numbers(list(storages).index(base) + 1, tensor.data_ptr() - base))
        sent += [_numbers(0, word) for word in words]
        sent.append(_numbers(scratch_nbytes, len(ranges), *(end for bounds in ranges for end in bounds)))
        (code,) = struct.unpack("<q", self._ask(b"".join(sent), 8))
        for memory in memories:
            found = bytearray(self._ask(b"", memory.numel()))
            if found:
                memory.copy_(torch.frombuffer(found, dtype=torch.uint8))
        return int(code)

    def _load(self, source: KernelSource) -> int:
        if source.symbol not in self._kernels:
            path = Path(self._folder.name, source.symbol)
            path.with_suffix(".o").write_bytes(neon_object(source.text))
            linked = str(path.with_suffix(".so"))
            flags = ["-shared", "-nostdlib", "-Wl,--no-undefined", "-o", linked]
            subprocess.run([self._gcc, *flags, str(path.with_suffix(".o"))], check=True)
            given = [
                _numbers(1),
                *(part for name in (linked, source.symbol) for part in (_numbers(len(name)), name.encode())),
            ]
            (self._kernels[source.symbol],) = struct.unpack("<Q", self._ask(b"".join(given), 8))
        return self._kernels[source.symbol]

    def _ask(self, message: bytes, nbytes: int) -> bytes:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(message)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it ended: the answer that is missing tells
        found = self._process.stdout.read(nbytes)
        if len(found) != nbytes:
            _machine.cache_clear()
            raise AssertionError(
                f"the emulated process ended with code {self._process.wait()}: a kernel left its memory?"
            )
        return found


@lru_cache(maxsize=1)
def _machine() -> _Machine:
    return _Machine()


def neon_object(text: str) -> bytes:
    """Object code of a module's text."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu=NEON.cpu, features=NEON.features, opt=2, reloc="pic", codemodel="small")
    module = llvm.parse_assembly(text, llvm.create_context())
    module.verify()
    return bytes(machine.emit_object(module))


def _numbers(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)
