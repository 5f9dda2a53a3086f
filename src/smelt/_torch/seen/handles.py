"""Python tensors to the C shim's tensor handles (`AtenTensorHandle`) and back, without copying data.

A handle is the address of a C++ `at::Tensor`, which is itself one counted reference. Keep-alive rules:

- `lend(t)` is valid while the Python tensor `t` lives and must not be deleted. It is the address of the reference
inside
  the Python object, so lending costs nothing. Where this layout is not what a probe expects, `lend` is None.
- `own(t)` makes a reference of its own: the tensor lives until `delete`.
- `take(h)` gives the tensor and deletes the handle; `peek(h)` gives the tensor and leaves the handle.

Invariant: `bridge()` offers only what was probed to work here and now: the public, versioned functions of torch 2.14
and later, then private ones. Where all are missing, the handles are made over the tensor's memory (`own` then does not
keep it alive, and does not carry a layout other than strided) and `take` and `peek` copy into a new tensor; `copies`
says so.

Source: torch/csrc/stable/c/shim.h, torch/csrc/inductor/aoti_torch/c/shim.h; torch._C._aoti; PyObject_HEAD of this
interpreter.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from smelt._torch.library import shim
from smelt.diag.records import record

FROM = "torch_tensor_from_pyobject"
TO = "torch_tensor_to_pyobject"
OWN = "torch._C._aoti.unsafe_alloc_void_ptr_from_tensor"
STEAL = "torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr"
LEND = "tensor object layout"
WRAP = "_Z16THPVariable_WrapRKN2at10TensorBaseE"

# Every name whose absence changes what `bridge` gives; tests hide each in turn.
NAMES = (
    FROM,
    TO,
    OWN,
    STEAL,
    LEND,
    WRAP,
    "aoti_torch_delete_tensor_object",
    "aoti_torch_new_tensor_handle",
    "aoti_torch_create_tensor_from_blob_v2",
    "aoti_torch_copy_",
    "aoti_torch_get_data_ptr",
)


class NoHandle(RuntimeError):
    """This tensor cannot be described to the C library (only without torch's private functions)."""


@record
class Bridge:
    """The ways across that exist here; see the module's head. `lend_offset` is that of the reference in the object."""

    own: Callable[[torch.Tensor], int]
    take: Callable[[int], torch.Tensor]
    peek: Callable[[int], torch.Tensor]
    delete: Callable[[int], Any]
    lend_offset: int | None
    copies: bool


def bridge() -> Bridge | None:
    """The best bridge available, or None where handles cannot be made or deleted at all."""
    delete = shim.function("aoti_torch_delete_tensor_object", ctypes.c_int32, ctypes.c_void_p, keep_gil=True)
    if delete is None:
        return None
    own = _owner()
    take_and_peek = _wrappers(delete)
    if own is not None and take_and_peek is not None:
        return Bridge(own, *take_and_peek, delete, _lend_offset(own, delete), copies=False)
    return _blob_bridge(delete)


# --- torch's functions, no copies -------------------------------------------------------------------------------------


def _private(dotted: str) -> Any:
    """A private Python function of torch, or None."""
    if shim.is_hidden(dotted):
        return None
    found: Any = torch
    for part in dotted.split(".")[1:]:
        found = getattr(found, part, None)
    return found


def _owner() -> Callable[[torch.Tensor], int] | None:
    make = shim.function(FROM, ctypes.c_int32, ctypes.py_object, ctypes.c_void_p, keep_gil=True)
    if make is not None:

        def own_public(tensor: torch.Tensor) -> int:
            cell = ctypes.c_int64()
            if make(tensor, ctypes.addressof(cell)) != 0:
                raise RuntimeError(shim.last_error())
            return cell.value

        return own_public
    alloc = _private(OWN)
    if alloc is None:
        return None
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )

    def own(tensor: torch.Tensor) -> int:
        return int(pointer(alloc(tensor), None))

    return own


def _wrappers(
    delete: Callable[[int], Any],
) -> tuple[Callable[[int], torch.Tensor], Callable[[int], torch.Tensor]] | None:
    give = shim.function(TO, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, keep_gil=True)
    if give is not None:
        release = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_DecRef", ctypes.pythonapi))

        def peek_public(handle: int) -> torch.Tensor:
            cell = ctypes.py_object()
            if give(handle, None, ctypes.addressof(cell)) != 0:
                raise RuntimeError(shim.last_error())
            tensor: torch.Tensor = cell.value
            release(tensor)  # what the cell was given; `tensor` is a reference of its own
            return tensor

        def take_public(handle: int) -> torch.Tensor:
            tensor = peek_public(handle)
            delete(handle)
            return tensor

        return take_public, peek_public
    wrap = shim.function(WRAP, ctypes.py_object, ctypes.c_void_p, keep_gil=True)
    if wrap is not None:

        def take(handle: int) -> torch.Tensor:
            tensor = wrap(handle)
            delete(handle)
            return tensor

        return take, wrap
    steal = _private(STEAL)
    again = shim.function(
        "aoti_torch_new_tensor_handle", ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, keep_gil=True
    )
    if steal is None or again is None:
        return None
    capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi)
    )

    def take_stolen(handle: int) -> torch.Tensor:
        return steal(capsule(handle, None, None))

    def peek(handle: int) -> torch.Tensor:
        cell = ctypes.c_int64()
        if again(handle, ctypes.addressof(cell)) != 0:
            raise RuntimeError(shim.last_error())
        return take_stolen(cell.value)

    return take_stolen, peek


def _lend_offset(own: Callable[[torch.Tensor], int], delete: Callable[[int], Any]) -> int | None:
    """Where the Python object keeps its C++ reference, found by looking for what an owned handle refers to.

    Both hold one pointer to the same tensor, so equal words on tensors of several kinds are the proof.
    """
    if shim.is_hidden(LEND):
        return None
    probes = [torch.empty(2, 3), torch.tensor(1), torch.empty(0), torch.nn.Parameter(torch.empty(4))]
    probes.append(probes[0][1:])
    # Never read past the object: __basicsize__ bounds the words looked at.
    words = range(object.__basicsize__ // 8, torch.Tensor.__basicsize__ // 8)
    candidates = set(words)
    for tensor in probes:
        handle = own(tensor)
        impl = ctypes.c_uint64.from_address(handle).value
        delete(handle)
        candidates &= {w for w in words if ctypes.c_uint64.from_address(id(tensor) + 8 * w).value == impl}
    return 8 * min(candidates) if len(candidates) == 1 else None


# --- over the tensor's memory, with copies ----------------------------------------------------------------------------

_I64P = ctypes.POINTER(ctypes.c_int64)


def _blob_bridge(delete: Callable[[int], Any]) -> Bridge | None:
    vp, i64, i32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    create = shim.function(
        "aoti_torch_create_tensor_from_blob_v2",
        i32, vp, i64, vp, vp, i64, i32, i32, i32, vp, i32, vp, i64,
        keep_gil=True,
    )  # fmt: skip
    copy = shim.function("aoti_torch_copy_", i32, vp, vp, i32)
    layout, device = shim.layout_code(torch.strided), shim.device_type_code("cpu")
    describe = _describer()
    if create is None or copy is None or layout is None or device is None or describe is None:
        return None

    def own(tensor: torch.Tensor) -> int:
        code = shim.dtype_code(tensor.dtype)
        if code is None or tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            raise NoHandle(f"a {tensor.layout} tensor of {tensor.dtype} cannot be described to the C library")
        n = tensor.dim()
        sizes, strides = (i64 * n)(*tensor.shape), (i64 * n)(*tensor.stride())
        cell = i64()
        if create(tensor.data_ptr(), n, sizes, strides, 0, code, device, 0, ctypes.byref(cell), layout, None, 0):
            raise RuntimeError(shim.last_error())
        return cell.value

    def peek(handle: int) -> torch.Tensor:
        sizes, strides, dtype = describe(handle)
        with torch.no_grad():
            result = torch.empty_strided(sizes, strides, dtype=dtype)
        target = own(result)
        try:
            if copy(target, handle, 0) != 0:
                raise RuntimeError(shim.last_error())
        finally:
            delete(target)
        return result

    def take(handle: int) -> torch.Tensor:
        try:
            return peek(handle)
        finally:
            delete(handle)

    return Bridge(own, take, peek, delete, lend_offset=None, copies=True)


def _describer() -> Callable[[int], tuple[list[int], list[int], torch.dtype]] | None:
    vp = ctypes.c_void_p
    getters = [
        shim.function(f"aoti_torch_get_{what}", ctypes.c_int32, vp, vp, keep_gil=True)
        for what in ("dim", "sizes", "strides", "dtype")
    ]
    codes = {shim.dtype_code(dtype): dtype for dtype in shim.dtypes()}

    def describe(handle: int) -> tuple[list[int], list[int], torch.dtype]:
        ndim, sizes, strides, code = ctypes.c_int64(), _I64P(), _I64P(), ctypes.c_int32()
        for getter, cell in zip(getters, (ndim, sizes, strides, code), strict=True):
            if getter is None or getter(handle, ctypes.byref(cell)) != 0:
                raise RuntimeError(shim.last_error())
        n = ndim.value
        return sizes[:n], strides[:n], codes[code.value]

    return None if None in getters else describe
