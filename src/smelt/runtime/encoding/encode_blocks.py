"""Records of numbers, expectations and jumps, and the Python steps behind records.

Invariant: a jump's word is filled in when all records are there; a step keeps its number, whatever is taken back.
"""

from __future__ import annotations

import math

import torch

from smelt.runtime.control import blocks_of
from smelt.runtime.encoding.encode_records import Missing, Records
from smelt.runtime.encoding.frame_template import FrameTemplate
from smelt.runtime.encoding.table import Cell, Element, Op
from smelt.runtime.plan import (
    NUMBER_DTYPES,
    Blit,
    Branch,
    Control,
    End,
    Exit,
    Expect,
    Instruction,
    Kind,
    Load,
    Loop,
    Otherwise,
    Plan,
    PyCall,
    Scalar,
    Use,
    Word,
)
from smelt.runtime.steps import is_same_number, python_step


class BlockRecords(Records):
    """places: for instructions that need to know where tensors lie, the cells with their addresses."""

    def __init__(self, frame: FrameTemplate, cell_of: list[int], plan: Plan) -> None:
        super().__init__(frame, cell_of)
        self.plan = plan
        self.places: dict[int, list[int]] = {}
        self.steps: list[PyCall] = []
        self.step_is_launch: list[bool] = []
        self.step_owners: list[int] = []
        self.blocks = blocks_of(plan.instructions)
        # The word behind each control instruction, and the words to fill in with one of these.
        self._labels: dict[int, int] = {}
        self._jumps: list[tuple[int, int]] = []

    def step(self, step: PyCall, *, is_launch: bool = False, owner: int | None = None) -> int:
        """The number of a new Python step, of the instruction at hand; those of launches see numbers as tensors."""
        self.step_owners.append(self.current if owner is None else owner)
        self.steps.append(step)
        self.step_is_launch.append(is_launch)
        return len(self.steps) - 1

    def link(self) -> None:
        """Fill in where jumps go."""
        for word, index in self._jumps:
            self.words[word] = self._labels[index]

    def number_or_jump(self, instruction: Instruction) -> None:
        """Write an instruction of these kinds. Raises: Missing."""
        match instruction:
            case Scalar(operation=operation, dst=dst, args=args):
                step = self.frame.const(self.step(python_step(instruction)))
                words = [self._number(a) for a in (*args, 0)[:2]]
                self.emit(Op.ARITH, operation, self.cell_of[dst], *words, step)
            case Load(dst=dst, dtype=dtype):
                element = _ELEMENTS.get(dtype)
                if element is None or self.current not in self.places:
                    raise Missing(str(dtype))
                self.emit(Op.LOAD, self.cell_of[dst], self.places[self.current][0], element)
            case Blit():
                self._blit(instruction)
            case Expect():
                self._expect(instruction)
            case Branch() | Otherwise() | Loop() | Exit() | End():
                self._control(instruction)
            case _:
                raise Missing(type(instruction).__name__)

    def _control(self, instruction: Control) -> None:
        index = self.current
        match instruction:
            case Branch(test=test) | Exit(test=test):
                self.emit(Op.UNLESS, self.cell_of[test], 0)
            case Otherwise():
                self.emit(Op.JUMP, 0)
            case End() if index in self.blocks.after:
                self.emit(Op.AGAIN, 0)
            case _:
                self._labels[index] = len(self.words)
                return
        self._jumps.append((len(self.words) - 1, self.blocks.after[index] - 1))
        self._labels[index] = len(self.words)

    def _number(self, arg: Use | int | float | bool) -> int:
        match arg:
            case Use(slot=slot):
                return self.cell_of[slot]
            case _ if type(arg) is Word:
                return self.frame.double(arg) if arg.is_double else self.frame.const(arg)
            case float():
                return self.frame.double(arg)
            case _:
                return self.frame.const(int(arg))

    def _blit(self, blit: Blit) -> None:
        cells = self.places.get(self.current)
        where = self.frame.where.c_function("memcpy")
        if cells is None or where is None:
            raise Missing("memcpy")
        self.frame.put(Cell.MEMCPY, where)
        row = Cell.ZERO if blit.row is None else self.cell_of[blit.row]
        self.emit(Op.BLIT, *cells, self.frame.const(blit.nbytes), row)

    def _expect(self, expected: Expect) -> None:
        cells = self.places.get(self.current)
        if cells is None:
            raise Missing("an address")
        bits = _expected_bits(expected, self.plan.kinds.get(expected.slot))
        if bits is None:
            # Of another type than the literal, or one that has no bits here: never equal, or Python's business.
            raise Missing("a literal")
        size, mask, low, high = bits
        self.emit(Op.EXPECT, cells[0], size, *(self.frame.const(word) for word in (mask, low, high)))


_ELEMENTS = {
    torch.float64: Element.F64,
    torch.float32: Element.F32,
    torch.bfloat16: Element.BF16,
    torch.int64: Element.I64,
    torch.int32: Element.I32,
    torch.int16: Element.I16,
    torch.int8: Element.I8,
    torch.uint8: Element.U8,
    torch.bool: Element.BOOL,
}
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _expected_bits(expected: Expect, kind: Kind | None) -> tuple[int, int, int, int] | None:
    """Bytes of the element, the mask of its bits that are compared, and their least and greatest value (unsigned);
    None where the element's type does not hold the literal as it is.
    """
    literal = expected.literal
    dtype = expected.dtype if kind is None else NUMBER_DTYPES[kind]
    if dtype is None or dtype not in _ELEMENTS or type(literal) is not type(torch.zeros((), dtype=dtype).item()):
        return None
    size = 1 if dtype is torch.bool else dtype.itemsize
    every = (1 << 8 * size) - 1

    def bits(value: torch.Tensor) -> int:
        return int(value.view(_WORDS[size]).item()) & every

    if isinstance(literal, float) and literal != literal:
        mask = every >> 1
        return size, mask, bits(torch.tensor(math.inf, dtype=dtype)) + 1, mask
    try:
        exact = torch.tensor(literal, dtype=dtype)
    except (OverflowError, RuntimeError):
        return None
    found = bits(exact)
    return (size, every, found, found) if is_same_number(exact.item(), literal) else None
