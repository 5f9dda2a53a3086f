"""Objects of several modules as one: a kernel with the private functions that it calls.

    kernel.o, needs smelt_part_a     smelt_part_a.o, needs smelt_part_b     ...     ==>     one object, needs nothing

Invariant: only the kernel's symbol can be seen from outside, so that objects of two kernels that hold the same function
may be linked into one library. Constants are no longer merged by a linker, which changes no value.

Source: System V ABI, chapters 4 and 5 (ELF-64 object files).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from smelt.diag import InternalError
from smelt.runtime.machine.elf import MACHINE_X86_64, ObjectFile, Section, Symbol, parse_object

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_IDENT = b"\x7fELF\x02\x01\x01" + bytes(9)
_RELOCATABLE = 1
_PROGBITS, _SYMTAB, _STRTAB, _RELA_TYPE = 1, 2, 3, 4
_ALLOC, _EXEC, _INFO_LINK = 0x2, 0x4, 0x40
_LOCAL, _GLOBAL, _FUNC = 0, 1, 2
_NOP = b"\x90"
_NO_STACK_CODE = ".note.GNU-stack"
_Fixup: TypeAlias = tuple[int, int, Symbol, int]  # offset, kind, symbol, addend


def joined(symbol: str, objects: Sequence[bytes]) -> bytes:
    """One relocatable ELF object of several, of which `symbol` is defined by the first and is all that others see.

    Raises: PackageError (S0402) for garbled bytes; InternalError for objects of different machines or one with memory
        that code writes.
    """
    parsed = [parse_object(code) for code in objects]
    if len({one.machine for one in parsed}) != 1:
        raise InternalError("objects for different machines cannot be joined")
    writer = _Writer(symbol, parsed[0].machine)
    for one in parsed:
        writer.add(one)
    return writer.finish()


def write_object(symbol: str, machine: int, parts: ObjectFile) -> bytes:
    """An object file of these parts, of which others see `symbol` alone. Raises: InternalError as of `joined`."""
    writer = _Writer(symbol, machine)
    writer.add(parts)
    return writer.finish()


@dataclass
class _Written:
    """A section of the new object: its header's fields but for the place, and its bytes."""

    name: str
    kind: int
    flags: int
    data: bytearray
    align: int = 1
    link: int = 0
    info: int = 0
    entry: int = 0


class _Writer:
    """The parts of the new object: all code, all constants, and what relocates each."""

    def __init__(self, visible: str, machine: int) -> None:
        self.visible, self.machine = visible, machine
        self.sections = (
            _Written(".text", _PROGBITS, _ALLOC | _EXEC, bytearray()),
            _Written(".rodata", _PROGBITS, _ALLOC, bytearray()),
        )
        self.named: dict[str, Symbol] = {}
        self.relocations: tuple[list[_Fixup], list[_Fixup]] = ([], [])

    def add(self, one: ObjectFile) -> None:
        """Take an object's sections, symbols and relocations."""
        places = {section.index: self._place(section) for section in one.sections}
        symbols = []
        for symbol in one.symbols:
            number, begin = places.get(symbol.section, (0, 0))
            symbols.append(Symbol(symbol.name, number, begin + symbol.value))
            if number and symbol.name:
                self.named[symbol.name] = symbols[-1]
        for r in one.relocations:
            number, begin = places[r.section]
            self.relocations[number - 1].append((begin + r.offset, r.kind, symbols[r.symbol], r.addend))

    def _place(self, section: Section) -> tuple[int, int]:
        """The number of the section that takes in another one, and where that begins in it."""
        if section.name.startswith((".data", ".bss")):
            raise InternalError(f"a kernel's object has the section {section.name}, which is not constant")
        number = 1 if section.is_code else 2
        into = self.sections[number - 1]
        gap = _NOP if section.is_code and self.machine == MACHINE_X86_64 else bytes(1)
        into.data += gap * (-len(into.data) % section.align)
        into.align = max(into.align, section.align)
        begin = len(into.data)
        into.data += section.data
        return number, begin

    def finish(self) -> bytes:
        """The new object's bytes."""
        numbers, table, strings, nlocal = self._symbol_table()
        relocated = [number for number, fixups in enumerate(self.relocations, 1) if fixups]
        symtab = len(self.sections) + 1 + len(relocated) + 1
        written = [*self.sections, _Written(_NO_STACK_CODE, _PROGBITS, 0, bytearray())]
        for number in relocated:
            data = bytearray()
            for offset, kind, symbol, addend in self.relocations[number - 1]:
                data += _RELA.pack(offset, numbers[self._resolved(symbol)] << 32 | kind, addend)
            name = f".rela{self.sections[number - 1].name}"
            written.append(_Written(name, _RELA_TYPE, _INFO_LINK, data, 8, symtab, number, _RELA.size))
        written.append(_Written(".symtab", _SYMTAB, 0, table, 8, symtab + 1, nlocal, _SYMBOL.size))
        written.append(_Written(".strtab", _STRTAB, 0, strings))
        return _file(self.machine, written)

    def _resolved(self, symbol: Symbol) -> Symbol:
        """What a relocation means: of an undefined symbol, the one of that name in another object."""
        return symbol if symbol.section else self.named.get(symbol.name, symbol)

    def _is_visible(self, symbol: Symbol) -> bool:
        return symbol.section == 0 or symbol.name == self.visible

    def _symbol_table(self) -> tuple[dict[Symbol, int], bytearray, bytearray, int]:
        """The number of each symbol, the table, its names (of what others see), and how many symbols are local."""
        used = [self._resolved(symbol) for fixups in self.relocations for _, _, symbol, _ in fixups]
        found = dict.fromkeys((*used, self.named[self.visible]))
        ordered = sorted(found, key=self._is_visible)
        table, strings = bytearray(_SYMBOL.size), bytearray(1)
        for symbol in ordered:
            is_visible = self._is_visible(symbol)
            bind = _GLOBAL if is_visible else _LOCAL
            kind = _FUNC if symbol.section == 1 and symbol.name else 0
            name = len(strings) if is_visible else 0
            table += _SYMBOL.pack(name, bind << 4 | kind, 0, symbol.section, symbol.value, 0)
            if is_visible:
                strings += symbol.name.encode() + bytes(1)
        nlocal = 1 + sum(not self._is_visible(symbol) for symbol in ordered)
        return {symbol: number for number, symbol in enumerate(ordered, 1)}, table, strings, nlocal


def _file(machine: int, sections: Sequence[_Written]) -> bytes:
    """The header, the sections' bytes, and their table, whose last is that of their names."""
    named = [*sections, _Written(".shstrtab", _STRTAB, 0, bytearray())]
    names, places = bytearray(1), {}
    for section in named:
        places[section.name] = len(names)
        names += section.name.encode() + bytes(1)
    named[-1].data = names
    body, rows = bytearray(_HEADER.size), bytearray(_SECTION.size)
    for s in named:
        body += bytes(-len(body) % s.align)
        row = (places[s.name], s.kind, s.flags, 0, len(body), len(s.data), s.link, s.info, s.align, s.entry)
        rows += _SECTION.pack(*row)
        body += s.data
    body += bytes(-len(body) % 8)
    counts = (_HEADER.size, 0, 0, _SECTION.size, len(named) + 1, len(named))
    body[: _HEADER.size] = _HEADER.pack(_IDENT, _RELOCATABLE, machine, 1, 0, 0, len(body), 0, *counts)
    return bytes(body + rows)
