"""The cells of a plan's frames under construction, with the constant data that they point to."""

from __future__ import annotations

import ctypes
import struct
from array import array
from dataclasses import dataclass, field
from typing import Any

from smelt.runtime.encoding.addresses import HERE, Addresses, Symbol
from smelt.runtime.encoding.table import Cell
from smelt.runtime.plan import Word


@dataclass
class FrameTemplate:
    """Cells as every frame of the plan has them at first.

    where: what functions and constant data have for addresses. addresses: cell -> the cell that holds its address.
    marks: cells that wait for a word; relocations: for an address that is known later. keep: what addresses in cells
    point to. known: cells and addresses of constants by value, so that equal ones are there once.
    """

    where: Addresses = HERE
    cells: array[int] = field(default_factory=lambda: array("q", bytes(8 * Cell.FIRST)))
    addresses: dict[int, int] = field(default_factory=dict)
    marks: list[tuple[int, Word]] = field(default_factory=list)
    relocations: list[tuple[int, Symbol]] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)
    known: dict[Any, int] = field(default_factory=dict)

    def cell(self, value: int = 0) -> int:
        """A new cell."""
        self.cells.append(0)
        self.put(len(self.cells) - 1, value)
        return len(self.cells) - 1

    def mark(self, cell: int, word: Word) -> None:
        """Let a cell wait for a word."""
        self.marks.append((cell, word))

    def put(self, cell: int, value: int) -> None:
        """Give a cell its number, or let it wait for one."""
        if type(value) is Word:
            self.mark(cell, value)
        elif type(value) is Symbol:
            self.relocations.append((cell, value))
        else:
            self.cells[cell] = value if value < 2**63 else value - 2**64

    def block(self, count: int) -> int:
        """The first of several new cells, all 0."""
        first = len(self.cells)
        self.cells.extend([0] * count)
        return first

    def const(self, value: int) -> int:
        """A cell with this constant, which no record writes."""
        if value == 0:
            return Cell.ZERO
        key = ("const", value)
        if key not in self.known:
            self.known[key] = self.cell(value)
        return self.known[key]

    def double(self, value: float | Word) -> int:
        """A cell with the bits of this constant."""
        if type(value) is Word:
            return self.const(value * 1.0)
        return self.const(struct.unpack("<q", struct.pack("<d", value))[0])

    def address_of(self, cell: int) -> int:
        """A cell that holds the address of another cell of the same frame."""
        if cell not in self.addresses:
            self.addresses[cell] = self.cell()
        return self.addresses[cell]

    def data(self, kind: Any, values: tuple[Any, ...]) -> int:
        """Address of a constant array (never null, also when it is empty)."""
        key = (kind.__name__, struct.pack(f"<{len(values)}d", *values) if kind is ctypes.c_double else values)
        if key not in self.known:
            self.known[key], held = self.where.array(kind, values)
            self.keep.append(held)
        return self.known[key]

    def text(self, value: str) -> int:
        """Address of a constant C string."""
        key = ("text", value)
        if key not in self.known:
            self.known[key], held = self.where.text(value)
            self.keep.append(held)
        return self.known[key]
