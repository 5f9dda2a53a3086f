"""Between torch's objects and the graph's: dtypes, devices, layouts, memory formats, literals, types, constants.

Invariant: `to_torch(from_torch(x))` means the same to torch as `x` for every object that can stand in a graph.
"""

from __future__ import annotations

import hashlib
import io
import math
from typing import Any

import torch

from smelt.ir import Arg, Device, DType, Layout, MemoryFormat, TensorType, Value, values_in
from smelt.ir.sizes import Size, SizeFloat

# Largest tensor constant whose elements stand in the graph's text.
SMALL_CONSTANT_NUMEL = 16

_TORCH_NAMES: dict[DType, str] = {
    DType.BOOL: "bool",
    DType.U8: "uint8", DType.U16: "uint16", DType.U32: "uint32", DType.U64: "uint64",
    DType.I8: "int8", DType.I16: "int16", DType.I32: "int32", DType.I64: "int64",
    DType.F16: "float16", DType.BF16: "bfloat16", DType.F32: "float32", DType.F64: "float64",
    DType.F8E4M3FN: "float8_e4m3fn", DType.F8E5M2: "float8_e5m2",
    DType.F8E4M3FNUZ: "float8_e4m3fnuz", DType.F8E5M2FNUZ: "float8_e5m2fnuz", DType.F8E8M0FNU: "float8_e8m0fnu",
    DType.C32: "complex32", DType.C64: "complex64", DType.C128: "complex128",
    DType.QI8: "qint8", DType.QU8: "quint8", DType.QI32: "qint32",
}  # fmt: skip
_TO_TORCH: dict[DType, torch.dtype] = {d: getattr(torch, n) for d, n in _TORCH_NAMES.items() if hasattr(torch, n)}
_FROM_TORCH: dict[torch.dtype, DType] = {t: d for d, t in _TO_TORCH.items()}


def dtype_to_torch(dtype: DType) -> torch.dtype:
    """torch's dtype. Raises: KeyError where this torch lacks it."""
    return _TO_TORCH[dtype]


def dtype_from_torch(dtype: torch.dtype) -> DType:
    """The graph's dtype. Raises: KeyError where the graph has no name for it."""
    return _FROM_TORCH[dtype]


def to_torch(literal: Arg) -> Any:
    """What torch takes for a literal; tuples become lists. Raises: TypeError for an argument that holds values."""
    match literal:
        case tuple():
            return [to_torch(item) for item in literal]
        case DType():
            return _TO_TORCH[literal]
        case Device():
            return torch.device(literal.name)
        case Layout() | MemoryFormat():
            return getattr(torch, literal.name)
        case Value():
            raise TypeError(f"%{literal.name} is not a literal")
    return literal


def from_torch(obj: Any) -> Arg:
    """The literal for an object passed to an operator; lists and sizes become tuples.

    Values of a graph are let through. Raises: TypeError for what no literal stands for (tensors, generators, ...).
    """
    match obj:
        case bool() | int() | float() | complex() | str() | None | Value():
            return _plain(obj)
        case tuple() | list():
            return tuple(from_torch(item) for item in obj)
        case torch.dtype():
            if obj not in _FROM_TORCH:
                raise TypeError(f"{obj} has no name in the graph")
            return _FROM_TORCH[obj]
        case torch.device():
            return Device(str(obj))
        case torch.layout():
            return Layout(str(obj).removeprefix("torch."))
        case torch.memory_format():
            return MemoryFormat(str(obj).removeprefix("torch."))
        case DType() | Device() | Layout() | MemoryFormat():
            return obj
    raise TypeError(f"a {type(obj).__qualname__} cannot stand in a graph as a literal")


def _plain(obj: Any) -> Arg:
    """Subclasses of the scalar types (enum members, numpy's float64) as the plain scalar."""
    plain: Arg = obj
    for kind in (bool, int, float, complex, str):
        if isinstance(obj, kind):
            plain = obj if type(obj) is kind else kind(obj)  # type: ignore[arg-type]
            break
    return plain


def type_of(tensor: torch.Tensor) -> TensorType:
    """A tensor's type: dtype, sizes, strides (strided layouts only), device, layout."""
    layout = str(tensor.layout).removeprefix("torch.")
    strides = tensor.stride() if layout == "strided" else None
    return TensorType.of(dtype_from_torch(tensor.dtype), tensor.shape, strides, str(tensor.device), layout)


def dummy_of(type_: TensorType, device: str | None = None) -> torch.Tensor:
    """An uninitialised tensor of a static, strided type, on another device (such as `meta`) if one is given."""
    return torch.empty_strided(
        type_.sizes, type_.steps, dtype=dtype_to_torch(type_.dtype), device=device or type_.device
    )


def constant_of(tensor: torch.Tensor) -> tuple[tuple[Arg, ...], tuple[str, torch.Tensor] | None]:
    """Arguments of the `const` node for a tensor, and for a large one its hash with a copy of the data.

    Small ones (at most 16 elements) stand in the text where that keeps every bit, else `("sha256:...",)`.
    """
    tensor = tensor.detach()
    if tensor.layout == torch.strided and tensor.numel() <= SMALL_CONSTANT_NUMEL and not tensor.is_quantized:
        literal = _as_text_keeps_it(from_torch(tensor.tolist()))
        if element_bytes(tensor_of_literal(literal, type_of(tensor))) == element_bytes(tensor):
            return (literal,), None
    kind = type_of(tensor)
    digest = hashlib.sha256(f"{kind}\n".encode())
    digest.update(element_bytes(tensor))
    name = f"sha256:{digest.hexdigest()}"
    return (name,), (name, strided_copy(tensor))


def _as_text_keeps_it(literal: Arg) -> Arg:
    """A literal whose NaNs are the one that the text `nan` stands for."""
    match literal:
        case tuple():
            return tuple(_as_text_keeps_it(item) for item in literal)
        case float() if math.isnan(literal):
            return math.nan
        case complex():
            return complex(*(math.nan if math.isnan(part) else part for part in (literal.real, literal.imag)))
    return literal


def tensor_of_literal(literal: Arg, type_: TensorType) -> torch.Tensor:
    """A fresh tensor of a static type from the nested tuple of a small `const` node."""
    data = to_torch(literal)
    if type_.dtype.kind == "float" and type_.dtype.itemsize < 4:
        # Through f64, because not every small float type can be built from Python numbers.
        flat = torch.tensor(data, dtype=torch.float64).to(dtype_to_torch(type_.dtype))
    else:
        flat = torch.tensor(data, dtype=dtype_to_torch(type_.dtype))
    flat = flat.reshape(-1).to(type_.device)
    if type_.strides is None or type_.numel == 0:
        return flat.reshape(type_.sizes)
    # Written place by place, because copy_ refuses targets whose elements share memory.
    places = torch.zeros(type_.sizes, dtype=torch.int64)
    for dim, (size, step) in enumerate(zip(type_.sizes, type_.steps, strict=True)):
        ones = [1] * len(type_.sizes)
        ones[dim] = size
        places += (torch.arange(size) * step).reshape(ones)
    memory = torch.zeros(int(places.max()) + 1, dtype=flat.dtype, device=flat.device)
    memory[places.reshape(-1).to(flat.device)] = flat
    return memory.as_strided(type_.sizes, type_.steps)


def element_bytes(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order as bytes; of what is not plainly strided, torch's own serialisation."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided or tensor.is_quantized:
        buffer = io.BytesIO()
        torch.save(tensor, buffer)
        return buffer.getvalue()
    plain = tensor.resolve_conj().resolve_neg().cpu()
    # A copy, because a single element may lie with any stride, which `view` as bytes refuses.
    flat = plain.clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def strided_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same sizes and strides that shares no memory, overlapping elements included."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.numel() == 0:
        return tensor.resolve_conj().resolve_neg().clone()
    # One run of memory over all the places, so that elements which share a place still do.
    extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    # What resolves bits may lay elements otherwise, but not those of one run.
    memory = tensor.as_strided((extent,), (1,)).resolve_conj().resolve_neg().clone()
    return memory.as_strided(tensor.shape, tensor.stride())


def bind(arg: Arg, values: dict[Value, Any]) -> Any:
    """An argument as torch takes it: values looked up, literals converted, tuples as lists."""
    match arg:
        case Value():
            return values[arg]
        case tuple():
            return [bind(item, values) for item in arg]
    if type(arg) is Size or type(arg) is SizeFloat:
        # torch takes the number itself, which there is where a plan runs.
        return int(arg) if type(arg) is Size else float(arg)
    return to_torch(arg)


def has_values(arg: Arg) -> bool:
    """Whether an argument holds any value."""
    return next(values_in(arg), None) is not None
