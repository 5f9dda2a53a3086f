"""Where what a table refers to lies: functions, kernels, constant data, and tensors that a plan holds.

Invariant: the encoder asks nothing else for an address, so that one table serves this process, which knows all of them
now, and a program that is linked later, for which each is a `Symbol`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch

from smelt._torch.library import shim, stable
from smelt.diag.records import distinct_record
from smelt.runtime.machine.heap import advises
from smelt.runtime.machine.loaded_kernels import kernels
from smelt.runtime.machine.threads import c_function, has_pool, team_limit, team_words
from smelt.runtime.plan import KernelCode

if TYPE_CHECKING:  # to the type checker a symbol is what it passes for, as a plan's `Word` is
    from builtins import int as _Int
else:
    _Int = object


@distinct_record
class Symbol(_Int):
    """An address that is known where the table is run: `offset` bytes behind what `kind` and `name` say."""

    kind: str
    name: Any
    offset: int = 0

    __class__ = property(lambda self: int)

    def __add__(self, other: int) -> Symbol:
        return Symbol(self.kind, self.name, self.offset + other)

    def __eq__(self, other: object) -> bool:
        # No number is a symbol, whatever it passes for.
        return type(other) is Symbol and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, Any, int]:
        return self.kind, self.name, self.offset


class Code(Protocol):
    """A kernel's code, which stays where it is for as long as this object lives."""

    def address(self, symbol: str) -> int:
        """Where a function begins."""
        ...


class Addresses(Protocol):
    """The addresses that a table is made with; None, and 0, for what is not there."""

    @property
    def limit(self) -> int:
        """The most threads that help in a region."""
        ...

    def library(self, symbol: str) -> int | None:
        """A function of libtorch's C shim."""
        ...

    def dispatcher(self, nouts: int) -> int | None:
        """The function that calls an operator by its name, of so many results."""
        ...

    def deleter(self, maker: str) -> int | None:
        """The function that deletes what a function of the dispatcher's stack makes (`stable.DELETERS`)."""
        ...

    def c_function(self, name: str) -> int | None:
        """A function of the C library."""
        ...

    def kernel(self, kernel: KernelCode) -> Code | None:
        """A kernel's code."""
        ...

    def held(self, slot: int, tensor: torch.Tensor) -> int:
        """The first element of a tensor that the plan holds, which does not move."""
        ...

    def array(self, kind: Any, values: tuple[Any, ...]) -> tuple[int, Any]:
        """A constant array of a type of ctypes, never null, and what keeps it there."""
        ...

    def text(self, value: str) -> tuple[int, Any]:
        """A constant C string, and what keeps it there."""
        ...

    def dtype_code(self, dtype: torch.dtype) -> int | None:
        """The library's number of a dtype."""
        ...

    def device_code(self) -> int | None:
        """The library's number of the CPU."""
        ...

    def team_words(self) -> int:
        """The words that all regions share."""
        ...

    def has_pool(self) -> bool:
        """Whether threads stand behind these words; else a function of the library may bring them (`PARALLEL`)."""
        ...

    def advises(self) -> int:
        """The function that asks for large pages."""
        ...


class Here:
    """The addresses of this process."""

    @property
    def limit(self) -> int:
        return team_limit()

    def library(self, symbol: str) -> int | None:
        return shim.address(symbol)

    def dispatcher(self, nouts: int) -> int | None:
        return shim.address(stable.CALL)

    def deleter(self, maker: str) -> int | None:
        return shim.address(stable.DELETERS[maker])

    def c_function(self, name: str) -> int | None:
        return c_function(name)

    def kernel(self, kernel: KernelCode) -> Code | None:
        return kernels().loaded(kernel)

    def held(self, slot: int, tensor: torch.Tensor) -> int:
        return int(tensor.data_ptr())

    def array(self, kind: Any, values: tuple[Any, ...]) -> tuple[int, Any]:
        held = (kind * max(len(values), 1))(*values)
        return ctypes.addressof(held), held

    def text(self, value: str) -> tuple[int, Any]:
        held = ctypes.create_string_buffer(value.encode())
        return ctypes.addressof(held), held

    def dtype_code(self, dtype: torch.dtype) -> int | None:
        return shim.dtype_code(dtype)

    def device_code(self) -> int | None:
        return shim.device_type_code("cpu")

    def team_words(self) -> int:
        return ctypes.addressof(team_words())

    def has_pool(self) -> bool:
        return has_pool()

    def advises(self) -> int:
        return advises()


HERE: Addresses = Here()
LoadKernel = Callable[[KernelCode], "Code | None"]
