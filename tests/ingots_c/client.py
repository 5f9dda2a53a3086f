"""The C interface through ctypes: what a C program would call, with tensors in and out."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from smelt.package.c.addresses import DTYPES
from smelt.package.c.export import Exported

OF_CODE = {code: dtype for dtype, (code, _, _) in DTYPES.items()}
Sizes = ctypes.POINTER(ctypes.c_int64)


class CTensor(ctypes.Structure):
    """smelt_tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("dtype", ctypes.c_int), ("ndim", ctypes.c_int32), ("sizes", Sizes),
        ("strides", Sizes),
    )  # fmt: skip


class CType(ctypes.Structure):
    """smelt_type."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("dtype", ctypes.c_int), ("ndim", ctypes.c_int32), ("sizes", Sizes),
        ("strides", Sizes), ("is_written", ctypes.c_int32), ("size_texts", ctypes.POINTER(ctypes.c_char_p)),
    )  # fmt: skip


class CSize(ctypes.Structure):
    """smelt_size."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("input", ctypes.c_int32), ("dim", ctypes.c_int32), ("low", ctypes.c_int64),
        ("high", ctypes.c_int64),
    )  # fmt: skip


class CSignature(ctypes.Structure):
    """smelt_signature."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("ninputs", ctypes.c_int32), ("noutputs", ctypes.c_int32),
        ("inputs", ctypes.POINTER(CType)), ("outputs", ctypes.POINTER(CType)),
        ("nsizes", ctypes.c_int32), ("sizes", ctypes.POINTER(CSize)),
    )  # fmt: skip


class Failed(Exception):
    """A status that is not 0, with its text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status, self.text = status, text


class Library:
    """An exported library, loaded."""

    def __init__(self, exported: Exported) -> None:
        self.c = ctypes.CDLL(str(exported.library))
        self.c.smelt_error.restype = ctypes.c_char_p
        self.c.smelt_describe.restype = ctypes.POINTER(CSignature)
        self.program = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self.c, f"{exported.name}_program")))
        self.entries = [
            self.c.smelt_describe(self.program, i).contents for i in range(self.c.smelt_entries(self.program))
        ]
        self.number = {entry.name.decode(): i for i, entry in enumerate(self.entries)}

    def check(self, status: int) -> None:
        """Raises: Failed."""
        if status:
            raise Failed(status, self.c.smelt_error().decode())

    def open(self, weights: Path, flags: int = 0) -> Model:
        """Raises: Failed."""
        found = ctypes.c_void_p()
        self.check(self.c.smelt_open(self.program, str(weights).encode(), flags, ctypes.byref(found)))
        return Model(self, found)


class Model:
    """smelt_model."""

    def __init__(self, library: Library, handle: ctypes.c_void_p) -> None:
        self.library, self.handle = library, handle
        weakref.finalize(self, library.c.smelt_close, handle)

    def context(self, threads: int = 1) -> Context:
        """A new context."""
        found = ctypes.c_void_p()
        self.library.check(self.library.c.smelt_context_new(self.handle, ctypes.byref(found)))
        made = Context(self, found)
        self.library.check(self.library.c.smelt_set_threads(found, threads))
        return made


class Context:
    """smelt_context."""

    def __init__(self, model: Model, handle: ctypes.c_void_p) -> None:
        self.model, self.handle, self.c = model, handle, model.library.c
        # It keeps the model open until then.
        weakref.finalize(self, lambda kept: kept.library.c.smelt_context_free(handle), model)

    def call(self, name: str, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """The outputs, copied. Raises: Failed."""
        library = self.model.library
        entry = library.entries[library.number[name]]
        given = (CTensor * max(len(inputs), 1))(*map(lent, inputs))
        made = (CTensor * max(entry.noutputs, 1))()
        number = library.number[name]
        library.check(self.c.smelt_call(self.handle, number, given, len(inputs), made, entry.noutputs))
        return [copied(made[i]) for i in range(entry.noutputs)]

    def reset(self) -> None:
        self.model.library.check(self.c.smelt_reset(self.handle))

    def state(self, name: str) -> torch.Tensor:
        """State by its name, copied. Raises: Failed."""
        found = CTensor()
        self.model.library.check(self.c.smelt_state(self.handle, name.encode(), ctypes.byref(found)))
        return copied(found)


def ints(values: Sequence[int]) -> Any:
    """A C array of them."""
    return ctypes.cast((ctypes.c_int64 * max(len(values), 1))(*values), Sizes)


def lent(tensor: torch.Tensor) -> CTensor:
    """A tensor as C sees it."""
    dims = ints(tensor.shape), ints(tensor.stride())
    return CTensor(tensor.data_ptr(), DTYPES[tensor.dtype][0], tensor.dim(), *dims)


def copied(tensor: CTensor) -> torch.Tensor:
    """What C gave, as a tensor of its own."""
    dtype = OF_CODE[tensor.dtype]
    sizes = tuple(tensor.sizes[i] for i in range(tensor.ndim))
    rows = torch.empty(sizes, device="meta").stride()
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else rows
    span = 0 if 0 in sizes else 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    flat = torch.frombuffer(bytearray(ctypes.string_at(tensor.data, span * dtype.itemsize) or b"\0" * 8), dtype=dtype)
    return flat.as_strided(sizes, strides)
