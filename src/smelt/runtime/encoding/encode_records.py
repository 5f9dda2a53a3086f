"""Records of the native executor's code, one after the other: calls, arguments as words, the dispatcher's stack.

Invariant: a record is written whole or, where something is missing, `Missing` is raised; the caller then takes back
what was written of the instruction.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from smelt._torch.library import shim, stable
from smelt._torch.library.schemas import raw_schema
from smelt.runtime.check import fits_call
from smelt.runtime.encoding.frame_template import FrameTemplate
from smelt.runtime.encoding.table import CALL_CLASSES, HEADER_WORDS, MAX_DOUBLES, Cell, Op
from smelt.runtime.plan import (
    Dispatch,
    DoublePointers,
    Ints,
    Numbers,
    OptionalDouble,
    OptionalInt,
    OptionalText,
    OptionalUse,
    OptionalUses,
    Out,
    Text,
    Use,
    Uses,
    Word,
)


class Missing(Exception):
    """This instruction needs a symbol, an enum value or a call shape that is not there."""


class Records:
    """The words so far, and what goes with them.

    `starts[i]` is the word where record i begins, `owners[i]` its instruction, which is `current` when it is written.
    `cleanup` are (cell, cell of the function that deletes what it holds) if a run stops. `cell_of` gives a slot's cell.
    """

    def __init__(self, frame: FrameTemplate, cell_of: list[int]) -> None:
        self.frame = frame
        self.cell_of = cell_of
        self.words: list[int] = [0] * HEADER_WORDS
        self.starts: list[int] = []
        self.owners: list[int] = []
        self.cleanup: list[tuple[int, int]] = []
        self.current = 0

    def emit(self, op: Op, *operands: int) -> None:
        """Write a record."""
        self.starts.append(len(self.words))
        self.owners.append(self.current)
        self.words += [op, 2 + len(operands), *operands]

    def call(self, symbol: str, words: Sequence[int], doubles: Sequence[int] = ()) -> None:
        """Call a function of the shim with the contents of cells. Raises: Missing."""
        where = self.frame.where.library(symbol)
        if where is None or not fits_call(len(words), len(doubles)):
            raise Missing(symbol)
        self.call_cell(self.frame.const(where), words, doubles)

    def call_cell(self, function: int, words: Sequence[int], doubles: Sequence[int] = ()) -> None:
        """Call the function whose address is in a cell."""
        for limit, plain, with_doubles in CALL_CLASSES:
            if len(words) <= limit:
                padded = [*words, *([Cell.ZERO] * (limit - len(words)))]
                if doubles:
                    padded += [*doubles, *([Cell.ZERO] * (MAX_DOUBLES - len(doubles)))]
                self.emit(with_doubles if doubles else plain, function, *padded)
                return

    def code_of(self, dtype: torch.dtype) -> int:
        """The cell that holds a dtype's number in the shim. Raises: Missing."""
        code = self.frame.where.dtype_code(dtype)
        if code is None:
            raise Missing(f"dtype {dtype}")
        return self.frame.const(code)

    def code_of_cell(self, dtype: torch.dtype) -> int:
        """Like `code_of`, in a cell of its own where the code is 0: cell 0 means that any dtype will do."""
        cell = self.code_of(dtype)
        return self.frame.cell(0) if cell == Cell.ZERO else cell

    def ints(self, values: tuple[int, ...]) -> int:
        """The cell that holds the address of integers; those that wait for words stand in the frame itself."""
        if any(type(value) is Word for value in values):
            first = self.frame.block(len(values))
            for i, value in enumerate(values):
                self.frame.put(first + i, value)
            return self.frame.address_of(first)
        return self.frame.const(self.frame.data(ctypes.c_int64, values))

    def word(self, arg: Any, gathers: list[tuple[int, int]]) -> int:
        """The cell of an argument of a call; `gathers` are the cells to be copied together before it."""
        frame = self.frame
        match arg:
            case None | OptionalUse(slot=None) | OptionalInt(None) | OptionalDouble(None) | OptionalText(None):
                return Cell.ZERO
            case Use(slot=slot):
                return self.cell_of[slot]
            case Out(slot=slot) | OptionalUse(slot=int(slot)):
                return frame.address_of(self.cell_of[slot])
            case Uses(slots=slots):
                first = frame.block(max(len(slots), 1))
                gathers += [(first + i, self.cell_of[s]) for i, s in enumerate(slots)]
                return frame.address_of(first)
            case OptionalUses(slots=optional):
                sources = [Cell.ZERO if s is None else frame.address_of(self.cell_of[s]) for s in optional]
                first = frame.block(max(len(optional), 1))
                gathers += [(first + i, source) for i, source in enumerate(sources)]
                return frame.address_of(first)
            case Ints(values=values):
                return self.ints(values)
            case Numbers(values=numbers):
                first = frame.block(max(len(numbers), 1))
                for i, number in enumerate(numbers):
                    if isinstance(number, Use):
                        gathers.append((first + i, self.cell_of[number.slot]))
                    else:
                        frame.put(first + i, number)
                return frame.address_of(first)
            case OptionalInt(value=int(value)):
                return self.ints((value,))
            case _ if type(arg) is Word:
                return frame.double(arg) if arg.is_double else frame.const(arg)
            case _:
                return self._constant_word(arg)

    def _constant_word(self, arg: Any) -> int:
        frame = self.frame
        match arg:
            case OptionalDouble(value=value) if type(value) is Word:
                return self.ints((value * 1.0,))
            case DoublePointers(values=values) if any(type(value) is Word for value in values):
                raise Missing("pointers to numbers that are known later")
            case OptionalDouble(value=value):
                return frame.const(frame.data(ctypes.c_double, (value,)))
            case DoublePointers(values=values):
                pointers = tuple(0 if v is None else frame.data(ctypes.c_double, (v,)) for v in values)
                return self.ints(pointers)
            case Text(value=text):
                return frame.const(frame.text(text))
            case OptionalText(value=str(text)):
                return self.ints((frame.text(text),))
            case torch.dtype():
                return self.code_of(arg)
            case int():
                return frame.const(int(arg))
            case _:
                raise Missing(f"{arg!r}")

    # --- the dispatcher

    def dispatch(self, instruction: Dispatch) -> None:
        """Call an operator through torch's dispatcher: its stack is built, the results are moved to their slots."""
        words = stable.words_of(instruction.op, instruction.args, _slot_of)
        version = shim.abi_version()
        nouts = len(raw_schema(instruction.op).returns)
        target = self.frame.where.dispatcher(nouts)
        if target is None or version is None or self.frame.where.library(stable.NEW_HANDLE) is None:
            raise Missing(stable.CALL)
        ntemps = sum(_temporaries(w) for w in words)
        nstack = max(len(words), nouts)
        first = self.frame.block(nstack + ntemps)
        temps = iter(range(first + nstack, first + nstack + ntemps))
        for i, word in enumerate(words):
            self._build(word, first + i, temps)
        frame = self.frame
        schema = raw_schema(instruction.op)
        name, overload = str(schema.name), str(schema.overload_name)
        call = [frame.const(frame.text(name)), frame.const(frame.text(overload)), frame.address_of(first)]
        self.emit(Op.DISPATCH, frame.const(target), *call, frame.const(version), first, nstack, nouts)
        for i, slot in enumerate(instruction.outs):
            if slot is None:
                spare = frame.cell()
                self.emit(Op.MOVE, spare, first + i)
                self.emit(Op.RELEASE, 1, spare)
            else:
                self.emit(Op.MOVE, self.cell_of[slot], first + i)

    def _build(self, word: stable.Word, into: int, temps: Any) -> None:
        """Put a word of the dispatcher's stack into a cell; what it owns there is deleted if the building stops."""
        frame = self.frame
        at = frame.address_of(into)
        match word:
            case stable.Bits(value=value):
                self.emit(Op.SET, into, frame.const(value))
            case stable.Handle(slot=slot):
                self.call(stable.NEW_HANDLE, [self.cell_of[slot], at])
                self._cleans(into, stable.NEW_HANDLE)
            case stable.Cell(word=inner):
                temp = next(temps)
                self._build(inner, temp, temps)
                self.call(stable.NEW_CELL, [at])
                self._cleans(into, stable.NEW_CELL)
                self.emit(Op.POKE, into, temp)
                self.emit(Op.SET, temp, Cell.ZERO)
            case stable.List(words=words):
                self.call(stable.NEW_LIST, [frame.const(len(words)), at])
                self._cleans(into, stable.NEW_LIST)
                for item in words:
                    temp = next(temps)
                    self._build(item, temp, temps)
                    self.call(stable.PUSH, [into, temp])
                    self.emit(Op.SET, temp, Cell.ZERO)

    def _cleans(self, cell: int, maker: str) -> None:
        deleter = self.frame.where.deleter(maker)
        if deleter is None:
            raise Missing(stable.DELETERS[maker])
        self.cleanup.append((cell, self.frame.const(deleter)))


def _slot_of(value: Any) -> int | None:
    return value.slot if isinstance(value, Use) else None


def _temporaries(word: stable.Word) -> int:
    match word:
        case stable.Cell(word=inner):
            return 1 + _temporaries(inner)
        case stable.List(words=words):
            return sum(1 + _temporaries(w) for w in words)
        case _:
            return 0
