"""Loads object code into executable memory without LLVM: a running model needs no compiler package.

Invariant: memory is written while it is not executable and executable once it is not written any more. Whatever is
wrong with the bytes is found before anything runs, as an exception: LLVM itself ends the process on a truncated
object and links a missing symbol to address 0 in silence, which is why it is not asked. (A checksum, not this module,
tells that well-formed bytes are also the right ones; see `cache.py`.)

Source: System V ABI AMD64 supplement 4.4 (relocation types); ELF for the Arm 64-bit architecture 5.7.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from smelt.diag import PackageError
from smelt.runtime.machine.elf import (
    MACHINE_AARCH64,
    MACHINE_X86_64,
    ObjectFile,
    Relocation,
    Section,
    external_names,
    parse_object,
)

_HOSTS = {"x86_64": MACHINE_X86_64, "AMD64": MACHINE_X86_64, "aarch64": MACHINE_AARCH64}
# A stub jumps to an absolute address anywhere: code, then the address at +8 (which also serves as its slot in a GOT).
_STUB_SIZE = 16
_STUBS = {
    MACHINE_X86_64: bytes.fromhex("ff2502000000 9090"),  # jmp [rip+2]
    MACHINE_AARCH64: bytes.fromhex("50000058 00021fd6"),  # ldr x16, #8; br x16
}
_X86_ABS64, _X86_PC32, _X86_GOTPCREL, _X86_PLT32, _X86_PC64 = 1, 2, 9, 4, 24
_X86_GOT_KINDS = {_X86_GOTPCREL, 41, 42}
_ARM_ABS64, _ARM_PREL64, _ARM_PREL32 = 257, 260, 261
_ARM_CALLS = {282, 283}
_ARM_PAGE21, _ARM_ADD12 = 275, 277
_ARM_GOT_KINDS = {311: 275, 312: 286}  # the same fix-ups, towards the slot that holds the address
_ARM_LDST_SHIFT = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4}


def _bad(why: str, fix: str = "build it again") -> PackageError:
    return PackageError("the object code cannot be loaded", why=why, fix=fix, code="S0402")


def host_machine() -> int | None:
    """The ELF machine number this process runs, or None where the loader does not apply (other systems and CPUs)."""
    return _HOSTS.get(platform.machine()) if sys.platform == "linux" else None


def python_functions(names: Iterable[str]) -> dict[str, int]:
    """The addresses of functions of Python's C API. Raises: AttributeError if there is none of a name."""
    return {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in names}


class LoadedCode:
    """Machine code in memory; lives as long as this object does. `address(name)` finds its functions.

    targets: of code that can be replaced, where each function's address is read by the jump that is called for it.
    """

    __slots__ = ("__weakref__", "_memory", "_next", "_symbols", "_targets")

    def __init__(self, memory: mmap.mmap, symbols: dict[str, int], targets: Mapping[str, int] | None = None) -> None:
        self._memory = memory
        self._symbols = symbols
        self._targets = targets or {}
        self._next: LoadedCode | None = None

    def replace(self, by: LoadedCode) -> None:
        """Have calls of this code's functions, from now on, go to those of other code, which lives as long.

        A call that has begun ends in the code where it began.
        Raises: PackageError (S0402) if the other code lacks a function.
        """
        addresses = {target: by.address(name) for name, target in self._targets.items()}
        self._next = by
        for target, address in addresses.items():
            ctypes.c_int64.from_address(target).value = address  # one aligned word, so a call sees the old or the new

    def address(self, name: str) -> int:
        """Address of a defined symbol.

        Raises: PackageError (S0402) if the object does not define it.
        """
        try:
            return self._symbols[name]
        except KeyError:
            raise _bad(f"it does not define {name!r}") from None


def load_object(data: bytes, externals: Mapping[str, int] | None = None, *, replaceable: bool = False) -> LoadedCode:
    """Map the object's sections, bind `externals` by name, apply its relocations, and make it executable.

    replaceable: functions are called through jumps, so that other code can take their place.
    Raises: PackageError (S0402) for garbled bytes, another CPU, an unknown relocation or a symbol without an address;
        OSError if the system grants no executable memory.
    """
    return load_parsed(parse_object(data), externals, replaceable=replaceable)


def load_parsed(
    parsed: ObjectFile, externals: Mapping[str, int] | None = None, *, replaceable: bool = False
) -> LoadedCode:
    """`load_object` for an object that has been read already. Raises: as `load_object`."""
    machine = host_machine()
    if machine is None or parsed.machine != machine:
        raise _bad(f"it is for ELF machine {parsed.machine}, this process runs {machine}")
    resolved = _external_addresses(parsed, externals or {})
    code = [s for s in parsed.sections if s.is_code]
    rest = [s for s in parsed.sections if not s.is_code]
    offsets: dict[int, int] = {}
    end = _place(code, 0, offsets)
    stubs_at = _align(end, 16)
    functions = [s for s in parsed.symbols if s.name and s.section in offsets] if replaceable else []
    jumps_at = stubs_at + _STUB_SIZE * len(resolved)
    data_at = _align(jumps_at + _STUB_SIZE * len(functions), mmap.PAGESIZE)
    targets_at = _align(_place(rest, data_at, offsets), 8)
    nbytes = _align(targets_at + 8 * len(functions), mmap.PAGESIZE) or mmap.PAGESIZE
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for section in parsed.sections:
        memory[offsets[section.index] : offsets[section.index] + len(section.data)] = section.data
    stubs: dict[str, int] = {}
    for i, (name, target) in enumerate(resolved.items()):
        at = stubs_at + i * _STUB_SIZE
        memory[at : at + _STUB_SIZE] = _STUBS[machine] + struct.pack("<Q", target)
        stubs[name] = base + at
    linker = _Linker(memory, base, offsets, parsed, resolved, stubs)
    for relocation in parsed.relocations:
        linker.apply(relocation)
    defined = {s.name: base + offsets[s.section] + s.value for s in parsed.symbols if s.name and s.section in offsets}
    targets = {}
    for i, symbol in enumerate(functions):
        at, target = jumps_at + i * _STUB_SIZE, targets_at + 8 * i
        memory[at : at + 8] = _jump(machine, target - at)
        memory[target : target + 8] = struct.pack("<Q", defined[symbol.name])
        defined[symbol.name], targets[symbol.name] = base + at, base + target
    _protect(base, data_at or nbytes, mmap.PROT_READ | mmap.PROT_EXEC)
    if machine == MACHINE_AARCH64:
        _clear_instruction_cache(base, base + data_at)
    return LoadedCode(memory, defined, targets)


def _jump(machine: int, distance: int) -> bytes:
    """Eight bytes that jump to the address that lies so many bytes behind them."""
    if machine == MACHINE_X86_64:
        return bytes.fromhex("ff25") + struct.pack("<i", distance - 6) + b"\x90\x90"  # jmp [rip+..]
    return struct.pack("<II", 0x58000010 | distance // 4 << 5, 0xD61F0200)  # ldr x16, ..; br x16


def _align(value: int, to: int) -> int:
    return (value + to - 1) // to * to


def _place(sections: list[Section], at: int, offsets: dict[int, int]) -> int:
    for section in sections:
        at = _align(at, section.align)
        offsets[section.index] = at
        at += len(section.data)
    return at


def _external_addresses(parsed: ObjectFile, externals: Mapping[str, int]) -> dict[str, int]:
    used = external_names(parsed)
    missing = [name for name in used if not externals.get(name)]
    if missing:
        raise _bad(f"no address is known for {', '.join(missing)}", "use a library that exports them, or other kernels")
    return {name: externals[name] for name in used}


class _Linker:
    """Applies relocations to the still writable image."""

    def __init__(
        self,
        memory: mmap.mmap,
        base: int,
        offsets: dict[int, int],
        parsed: ObjectFile,
        externals: dict[str, int],
        stubs: dict[str, int],
    ) -> None:
        self._memory, self._base, self._offsets = memory, base, offsets
        self._parsed, self._externals, self._stubs = parsed, externals, stubs
        self._lengths = {s.index: len(s.data) for s in parsed.sections}

    def apply(self, r: Relocation) -> None:
        symbol = self._parsed.symbols[r.symbol]
        at = self._offsets[r.section] + r.offset
        room = self._lengths[r.section] - r.offset
        place = self._base + at
        if symbol.section == 0:
            target, near = self._externals[symbol.name], self._stubs[symbol.name]
        elif symbol.section in self._offsets:
            target = near = self._base + self._offsets[symbol.section] + symbol.value
        else:
            raise _bad(f"symbol {symbol.name!r} is in a section that is not loaded")
        apply = self._apply_x86 if self._parsed.machine == MACHINE_X86_64 else self._apply_arm
        if not apply(r, at, place, room, target, near):
            raise _bad(f"relocation type {r.kind} towards {symbol.name!r} is not supported")

    def _put(self, at: int, room: int, kind: str, value: int) -> bool:
        size = struct.calcsize(kind)
        try:
            packed = struct.pack(kind, value)
        except struct.error:
            raise _bad("a relocation's target is too far away") from None
        if size > room:
            raise _bad("a relocation is outside its section")
        self._memory[at : at + size] = packed
        return True

    def _apply_x86(self, r: Relocation, at: int, place: int, room: int, target: int, near: int) -> bool:
        is_external = self._parsed.symbols[r.symbol].section == 0
        if r.kind == _X86_ABS64:
            return self._put(at, room, "<Q", (target + r.addend) & (2**64 - 1))
        if r.kind in (_X86_PC32, _X86_PLT32):
            return self._put(at, room, "<i", near + r.addend - place)
        if r.kind == _X86_PC64:
            return self._put(at, room, "<q", target + r.addend - place)
        if r.kind in _X86_GOT_KINDS and is_external:
            return self._put(at, room, "<i", near + 8 + r.addend - place)
        return False

    def _apply_arm(self, r: Relocation, at: int, place: int, room: int, target: int, near: int) -> bool:
        if r.kind == _ARM_ABS64:
            return self._put(at, room, "<Q", (target + r.addend) & (2**64 - 1))
        if r.kind == _ARM_PREL64:
            return self._put(at, room, "<q", target + r.addend - place)
        if r.kind == _ARM_PREL32:
            return self._put(at, room, "<i", near + r.addend - place)
        word = struct.unpack_from("<I", self._memory, at)[0]
        value, kind = near + r.addend, r.kind
        if kind in _ARM_GOT_KINDS and self._parsed.symbols[r.symbol].section == 0:
            value, kind = value + 8, _ARM_GOT_KINDS[kind]
        if kind in _ARM_CALLS:
            field = (value - place) >> 2
            if not -(1 << 25) <= field < 1 << 25:
                raise _bad("a branch target is too far away")
            return self._put(at, room, "<I", (word & 0xFC000000) | (field & 0x3FFFFFF))
        if kind == _ARM_PAGE21:
            pages = (value >> 12) - (place >> 12)
            if not -(1 << 20) <= pages < 1 << 20:
                raise _bad("a page is too far away")
            return self._put(at, room, "<I", (word & 0x9F00001F) | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5)
        if kind == _ARM_ADD12:
            return self._put(at, room, "<I", (word & ~(0xFFF << 10)) | (value & 0xFFF) << 10)
        if kind in _ARM_LDST_SHIFT:
            low = (value & 0xFFF) >> _ARM_LDST_SHIFT[kind]
            return self._put(at, room, "<I", (word & ~(0xFFF << 10)) | low << 10)
        return False


@lru_cache(maxsize=1)
def _mprotect() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc.mprotect


def _protect(address: int, nbytes: int, flags: int) -> None:
    if _mprotect()(address, nbytes, flags) != 0:
        raise OSError(ctypes.get_errno(), "the system grants no executable memory")


def _clear_instruction_cache(begin: int, end: int) -> None:
    # AArch64 caches instructions apart from data; libgcc's helper is the portable way to make new code visible.
    libgcc = ctypes.CDLL("libgcc_s.so.1")
    clear = getattr(libgcc, "__clear_cache")
    clear.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    clear(begin, end)
