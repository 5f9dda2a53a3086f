"""Reading a relocatable ELF object: sections, symbols and relocations, every bound checked.

Invariant: whatever the bytes are, `parse_object` returns sections whose ranges lie inside the file or raises; nothing
is executed or mapped here.

Source: System V ABI, chapters 4 and 5 (ELF-64 object files).
"""

from __future__ import annotations

import struct

from smelt.diag import PackageError
from smelt.diag.records import record

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_RELOCATABLE = 1
_PROGBITS, _SYMTAB, _RELA_TYPE, _NOBITS = 1, 2, 4, 8
_ALLOC, _EXEC, _TLS = 0x2, 0x4, 0x400
_SHN_UNDEF, _SHN_ABS, _SHN_RESERVED = 0, 0xFFF1, 0xFF00
_MAX_IMAGE = 1 << 28

MACHINE_X86_64 = 62
MACHINE_AARCH64 = 183


@record
class Section:
    """A section that is loaded: its bytes (zeros for .bss), alignment, and whether it is code."""

    index: int
    name: str
    data: bytes
    align: int
    is_code: bool


@record
class Symbol:
    """A symbol: an offset in a loaded section, or undefined (`section` is 0). nbytes: of a function's code."""

    name: str
    section: int
    value: int
    nbytes: int = 0


@record
class Relocation:
    """One fix-up: at `offset` of section `section`, of machine-specific `kind`, towards `symbol` plus `addend`."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


@record
class ObjectFile:
    """What a loader needs of an object file."""

    machine: int
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]


def _bad(why: str) -> PackageError:
    return PackageError("the object file cannot be loaded", why=why, fix="build it again", code="S0402")


def _slice(data: bytes, offset: int, size: int) -> bytes:
    if offset < 0 or size < 0 or offset + size > len(data):
        raise _bad(f"a section at {offset} of {size} bytes is outside its {len(data)} bytes")
    return data[offset : offset + size]


def _string(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset)
    if offset >= len(table) or end < 0:
        raise _bad("a name is outside its string table")
    return table[offset:end].decode("utf-8", "replace")


def parse_object(data: bytes) -> ObjectFile:
    """Sections, symbols and relocations of an ELF-64 little-endian relocatable object.

    Raises: PackageError (S0402) if the bytes are not such an object or refer outside themselves.
    """
    if len(data) < _HEADER.size:
        raise _bad(f"{len(data)} bytes are less than a header")
    ident, kind, machine, _, _, _, shoff, _, _, _, _, shentsize, shnum, shstrndx = _HEADER.unpack_from(data)
    if ident[:6] != b"\x7fELF\x02\x01" or kind != _RELOCATABLE or shentsize != _SECTION.size:
        raise _bad("it is not a 64-bit little-endian relocatable ELF object")
    raw = _slice(data, shoff, shnum * _SECTION.size)
    headers = [_SECTION.unpack_from(raw, i * _SECTION.size) for i in range(shnum)]
    if shstrndx >= shnum:
        raise _bad("the table of section names is missing")
    names = _slice(data, headers[shstrndx][4], headers[shstrndx][5])
    sections = tuple(_sections(data, headers, names))
    loaded = {s.index: s for s in sections}
    tables = [h for h in headers if h[1] == _SYMTAB]
    if len(tables) != 1:
        raise _bad(f"it has {len(tables)} symbol tables")
    symbols = tuple(_symbols(data, headers, tables[0], loaded))
    relocations = tuple(_relocations(data, headers, loaded, len(symbols)))
    return ObjectFile(machine, sections, symbols, relocations)


def external_names(parsed: ObjectFile) -> tuple[str, ...]:
    """Names of the undefined symbols that the object's relocations refer to, sorted."""
    symbols = (parsed.symbols[r.symbol] for r in parsed.relocations)
    return tuple(sorted({s.name for s in symbols if s.section == 0}))


def _sections(data: bytes, headers: list[tuple[int, ...]], names: bytes) -> list[Section]:
    found = []
    total = 0
    for index, (name, kind, flags, _, offset, size, _, _, align, _) in enumerate(headers):
        text = _string(names, name)
        # Unwind tables are not registered: every callee catches its own exceptions, so none passes through this code.
        if not flags & _ALLOC or size == 0 or text == ".eh_frame":
            continue
        total += size + max(align, 1)
        if flags & _TLS or total > _MAX_IMAGE or align > 4096 or align & (align - 1):
            raise _bad(f"section {text} needs thread-local storage, is too large or has alignment {align}")
        content = bytes(size) if kind == _NOBITS else _slice(data, offset, size)
        found.append(Section(index, text, content, max(align, 1), bool(flags & _EXEC)))
    return found


def _symbols(
    data: bytes, headers: list[tuple[int, ...]], table: tuple[int, ...], loaded: dict[int, Section]
) -> list[Symbol]:
    if table[6] >= len(headers) or table[5] % _SYMBOL.size:
        raise _bad("the symbol table is garbled")
    strings = _slice(data, headers[table[6]][4], headers[table[6]][5])
    raw = _slice(data, table[4], table[5])
    found = []
    for at in range(0, len(raw), _SYMBOL.size):
        name, _, _, section, value, nbytes = _SYMBOL.unpack_from(raw, at)
        if section in loaded and value > len(loaded[section].data):
            raise _bad("a symbol is outside its section")
        if section >= _SHN_RESERVED and section != _SHN_ABS:
            raise _bad("a symbol is in a reserved section")
        found.append(Symbol(_string(strings, name) if name else "", section, value, nbytes))
    return found


def _relocations(
    data: bytes, headers: list[tuple[int, ...]], loaded: dict[int, Section], nsymbols: int
) -> list[Relocation]:
    found = []
    for _, kind, _, _, offset, size, _, target, _, _ in headers:
        if kind != _RELA_TYPE or target not in loaded:
            continue
        raw = _slice(data, offset, size)
        if size % _RELA.size:
            raise _bad("a relocation table is garbled")
        for at in range(0, size, _RELA.size):
            place, info, addend = _RELA.unpack_from(raw, at)
            symbol = info >> 32
            if symbol >= nsymbols or place + 4 > len(loaded[target].data):
                raise _bad("a relocation is outside its section or names no symbol")
            found.append(Relocation(target, place, info & 0xFFFFFFFF, symbol, addend))
    return found
