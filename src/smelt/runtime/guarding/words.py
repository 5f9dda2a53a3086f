"""The words of native guards in the making: records, arrays and whatever they point to.

Invariant: an address that is written is of something that `keeps` holds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt._torch.tensor_layout import TensorLayout
from smelt.runtime.encoding.entry_table import Guard
from smelt.runtime.guarding.argument_kinds import TENSORS
from smelt.runtime.guarding.guard_sizes import LIMIT
from smelt.runtime.plan import Kind


class Unsupported(Exception):
    """This cannot be written as native guards."""


@dataclass(slots=True)
class Words:
    """The words, in the order in which they are walked, made from a call whose guards hold.

    asks: how many guards call Python. registers: place of an argument (`args[0]`) -> its register; numbers: place of a
    free number -> its kind, and the register with its bits; symbols: the registers of free names.
    """

    layout: TensorLayout
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    made: list[int] = field(default_factory=list)
    keeps: list[Any] = field(default_factory=list)
    asks: int = 0
    registers: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, tuple[Kind, int]] = field(default_factory=dict)
    symbols: Mapping[str, int] = field(default_factory=dict)

    def emit(self, op: Guard, *operands: int) -> None:
        """Append a guard."""
        self.made += (int(op), 2 + len(operands), *map(signed, operands))

    def keep(self, value: Any) -> int:
        """The address of an object, which stays alive."""
        self.keeps.append(value)
        return id(value)

    def array(self, values: Iterable[int]) -> int:
        """The address of words."""
        words = list(map(signed, values))
        memory = (ctypes.c_int64 * max(len(words), 1))(*words)
        self.keeps.append(memory)
        return ctypes.addressof(memory)

    def ask(self, callable: Callable[[], Any]) -> None:
        """A guard that only Python can decide."""
        self.asks += 1
        self.emit(Guard.PYTHON, self.keep(callable))


def signed(word: int) -> int:
    """The same 64 bits as a signed integer."""
    return word - (1 << 64) if word >= LIMIT else word


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether native code finds in memory what it asks of a tensor."""
    return type(tensor) in TENSORS and tensor.layout is torch.strided and tensor.device.type == "cpu"
