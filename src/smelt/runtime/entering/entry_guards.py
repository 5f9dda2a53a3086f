"""A program's guards as the words that native code walks (`entry_table` has the encoding).

    code = native_guards(guards, args, kwargs, layout)       -> Guards, or None where something cannot be written so

Invariant: the words hold only if `guards.check` passes. They are made from a call whose guards hold, in its thread, and
say that a later call is like that one; they may ask for more than the guards do (the same dispatch keys, the same
object where an equal one would do): the Python check then decides.

Their order is `guard_kinds.NATIVE_ORDER`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smelt._torch.tensor_layout import TensorLayout
from smelt.runtime.encoding.entry_table import Guard
from smelt.runtime.guarding.guard_kinds import NATIVE_ORDER
from smelt.runtime.guarding.guards import GuardSet
from smelt.runtime.guarding.words import Unsupported, Words
from smelt.runtime.guarding.words_of_sizes import CannotWrite
from smelt.runtime.plan import Kind


@dataclass(slots=True)
class Guards:
    """Native guards. words: the table; registers: place of an argument (`args[0]`) -> its register.

    numbers: place of a free number -> its kind, and the register with its bits; symbols: the registers of free names.
    keeps: whatever the words point to. asks: how many guards call Python at each call.
    """

    words: Any
    registers: Mapping[str, int]
    numbers: Mapping[str, tuple[Kind, int]]
    symbols: Mapping[str, int]
    keeps: tuple[Any, ...]
    asks: int

    def inputs(self, places: Sequence[str], kinds: Sequence[Kind | None]) -> list[int] | None:
        """Where a plan finds its inputs (`Row.INPUTS`); None if one is not there, or is not what it takes."""
        if len(places) != len(kinds):
            return None
        found = []
        for place, kind in zip(places, kinds, strict=True):
            number, at = self.numbers.get(place, (None, -1))
            if number != kind or (number is None and place not in self.registers):
                return None
            found.append(self.registers[place] if number is None else ~at)
        return found

    @property
    def address(self) -> int:
        """Address of the first word."""
        return ctypes.addressof(self.words)


def native_guards(
    guards: GuardSet, args: tuple[Any, ...], kwargs: Mapping[str, Any], layout: TensorLayout
) -> Guards | None:
    """The guards as words, given a call that has just passed them, or None."""
    words = Words(layout, args, kwargs)
    try:
        for kind in NATIVE_ORDER:
            kind.words(guards, words)
    except (Unsupported, CannotWrite):
        return None
    words.emit(Guard.END)
    made = (ctypes.c_int64 * len(words.made))(*words.made)
    return Guards(made, words.registers, words.numbers, words.symbols, tuple(words.keeps), words.asks)
