"""A loop nest as a Triton kernel: its text, and all that a launch of it needs beside the addresses."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Final, Literal

from smelt.diag.records import record

PLACEHOLDER: Final = "KERNEL"
"""What a kernel's function is called in its text before the text has a name."""

HINTS: Final = (16, 8, 4, 2)
"""Numbers that a word may be told to be a multiple of; 4 are enough for loads of 128 bits of f32, 8 of bf16."""


@record
class Word:
    """A number that a kernel takes when it is launched. multiple: what it is told to be a multiple of; 1: nothing."""

    value: int
    multiple: int

    @staticmethod
    def of(value: int) -> Word:
        """A number with the largest hint that holds for it."""
        return Word(value, next((hint for hint in HINTS if value % hint == 0), 1))


@record
class TritonSource:
    """The text of a kernel and what else decides about its code; equal ones have one name.

    pointers: Triton's types of the buffers, as signatures spell them. multiples: the words' hints. is_wide: the words
    are 64 bits long. constants: the values of R, B and K that the text uses. can_fail: an address of an i32 follows the
    buffers, which becomes 1 where the kernel refuses its data. stages: how many iterations of a product's loop have
    their loads under way at once.
    """

    name: str
    text: str
    pointers: tuple[str, ...]
    multiples: tuple[int, ...]
    is_wide: bool
    constants: tuple[tuple[str, int], ...]
    warps: int
    can_fail: bool
    is_aligned: bool = True
    stages: int = 3

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Names and types of all that a launch passes, in order; the two null pointers behind them are Triton's own."""
        word = "i64" if self.is_wide else "i32"
        found = [(f"b{k}", kind) for k, kind in enumerate(self.pointers)]
        if self.can_fail:
            found.append(("error", "*i32"))
        return (*found, *((f"w{k}", word) for k in range(len(self.multiples))))

    @property
    def digest(self) -> str:
        """Stands for all of it."""
        parts = (self.text, self.parameters, self.multiples, self.constants, self.warps, self.is_aligned, self.stages)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def named(self, form: str) -> TritonSource:
        """The same under the name that stands for all of it."""
        name = f"smelt_{form}_{self.digest[:16]}"
        return replace(self, name=name, text=self.text.replace(f"def {PLACEHOLDER}(", f"def {name}("))


@record
class TritonKernel:
    """A nest's kernel with its words and the number of its programs, each of which is a block of threads."""

    source: TritonSource
    form: Literal["flat", "tile", "rows", "chunk", "serial", "dot", "attention"]
    words: tuple[int, ...]
    programs: int

    def __str__(self) -> str:
        """The text with the numbers of this launch, for people."""
        words = ", ".join(
            f"w{k} = {value}{f' (a multiple of {hint})' if hint > 1 else ''}"
            for k, (value, hint) in enumerate(zip(self.words, self.source.multiples, strict=True))
        )
        constants = ", ".join(f"{name} = {value}" for name, value in self.source.constants)
        blocks = f"{self.programs} programs of {self.source.warps} warps"
        head = f"# {self.form}: {'; '.join(t for t in (blocks, constants, words) if t)}"
        return f"{head}\n{self.source.text}"
