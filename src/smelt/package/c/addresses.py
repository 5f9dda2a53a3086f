"""Addresses of a table that C code runs: none is known yet, so each is a symbol, which becomes a relocation.

Invariant: what has a symbol here is in the runtime (`runtime/smelt_program.h` lists its functions), and what is not is
refused before a plan is encoded.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt._torch.library import stable
from smelt.runtime.encoding.addresses import Code, Symbol
from smelt.runtime.plan import KernelCode

LIBRARY = frozenset(
    (
        "aoti_torch_empty_strided", "aoti_torch__reinterpret_tensor", "aoti_torch_delete_tensor_object",
        "aoti_torch_copy_", "aoti_torch_get_data_ptr", "aoti_torch_get_dim", "aoti_torch_get_sizes",
        "aoti_torch_get_strides", "aoti_torch_get_dtype", "smelt_parallel_for",
    )
)  # fmt: skip
"""Functions of torch's C shim that the runtime has under the same names."""
_TORCH = frozenset((stable.NEW_HANDLE, stable.NEW_CELL, stable.NEW_LIST, stable.PUSH))
"""Functions of libtorch's C interface that `runtime/torch.c` has under the same names, over the runtime's tensors."""
_DELETERS = {**stable.DELETERS, stable.NEW_HANDLE: "torch_delete_handle"}
_MOST_RESULTS = 8
_C = frozenset(
    (
        "PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch", "sched_yield", "clock_gettime",
        "memcpy", "pow",
    )
)  # fmt: skip
TEAM_LIMIT = 32
"""The most threads of one call."""
DTYPES: dict[torch.dtype, tuple[int, str, str]] = {
    torch.uint8: (0, "U8", "uint8_t"), torch.int8: (1, "I8", "int8_t"), torch.int16: (2, "I16", "int16_t"),
    torch.int32: (3, "I32", "int32_t"), torch.int64: (4, "I64", "int64_t"), torch.float16: (5, "F16", "uint16_t"),
    torch.float32: (6, "F32", "float"), torch.float64: (7, "F64", "double"), torch.complex64: (9, "C64", "float"),
    torch.bool: (11, "BOOL", "uint8_t"), torch.bfloat16: (15, "BF16", "uint16_t"),
}  # fmt: skip
"""smelt_dtype's number and name, and the type of C that has the elements' bits (of a complex one, half of them)."""


@dataclass(frozen=True, slots=True)
class _KernelAt(Code):
    number: int

    def address(self, symbol: str) -> int:
        return Symbol("kernel", self.number)


@dataclass
class Elsewhere:
    """The addresses of one table, with its kernels and its constant data as they are asked for.

    links_torch: libtorch is linked; calls: the functions of its C interface that the plan calls, with their numbers.
    """

    links_torch: bool = False
    calls: dict[str, int] = field(default_factory=dict)
    kernels: list[KernelCode] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    _numbers: dict[str, int] = field(default_factory=dict)

    @property
    def limit(self) -> int:
        return TEAM_LIMIT

    def library(self, symbol: str) -> int | None:
        if symbol in self.calls:
            return Symbol("call", self.calls[symbol])
        return Symbol("function", symbol) if symbol in LIBRARY or (self.links_torch and symbol in _TORCH) else None

    def dispatcher(self, nouts: int) -> int | None:
        is_there = self.links_torch and nouts <= _MOST_RESULTS
        return Symbol("function", f"torch_dispatch_{nouts}") if is_there else None

    def deleter(self, maker: str) -> int | None:
        return Symbol("function", _DELETERS[maker]) if self.links_torch else None

    def c_function(self, name: str) -> int | None:
        return Symbol("function", name) if name in _C else None

    def kernel(self, kernel: KernelCode) -> Code | None:
        number = self._numbers.setdefault(kernel.symbol, len(self.kernels))
        if number == len(self.kernels):
            self.kernels.append(kernel)
        return _KernelAt(number)

    def held(self, slot: int, tensor: torch.Tensor) -> int:
        return Symbol("held", slot)

    def array(self, kind: Any, values: tuple[Any, ...]) -> tuple[int, Any]:
        letter = "d" if kind is ctypes.c_double else "q"
        return self._put(struct.pack(f"<{max(len(values), 1)}{letter}", *(values or (0,))))

    def text(self, value: str) -> tuple[int, Any]:
        return self._put(value.encode() + b"\0")

    def _put(self, content: bytes) -> tuple[int, Any]:
        at = len(self.data)
        self.data += content + bytes(-len(content) % 8)
        return Symbol("data", "", at), None

    def dtype_code(self, dtype: torch.dtype) -> int | None:
        found = DTYPES.get(dtype)
        return None if found is None else found[0]

    def device_code(self) -> int | None:
        return 0

    def team_words(self) -> int:
        return 0  # a context has its own

    def has_pool(self) -> bool:
        return False

    def advises(self) -> int:
        return 0  # memory of results is kept from call to call
