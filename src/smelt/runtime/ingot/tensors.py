"""The weights of an ingot: one safetensors file, which lies in the archive as it is and is read where it lies.

    n: u64 | header: JSON, padded to 64 | tensor at 64 i | ...

Invariant: a tensor begins at a multiple of 64 bytes of the file; where bytes are between two, a tensor `~pad...` names
them, since that format has no holes. Reading copies nothing: tensors lie over the given memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import torch

from smelt.diag.records import record
from smelt.runtime.ingot.errors import broken, unsaved
from smelt.runtime.ingot.texts.json_text import Part, dumps, loads

ALIGNMENT = 64
PAD = "~pad"
_HEADER_LIMIT = 64 << 20
_NAMES: Mapping[str, str] = {
    "bool": "BOOL", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_DTYPES: Mapping[str, torch.dtype] = {label: getattr(torch, n) for n, label in _NAMES.items() if hasattr(torch, n)}
_LABELS: Mapping[torch.dtype, str] = {dtype: label for label, dtype in _DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """torch's own name of a dtype."""
    return str(dtype).removeprefix("torch.")


def dtype_of(part: Part) -> torch.dtype:
    """The dtype of a name. Raises: PackageError (S0701)."""
    found = getattr(torch, part.as_str(), None)
    if not isinstance(found, torch.dtype):
        raise part.bad("is no dtype of this torch")
    return found


def span_of(tensor: torch.Tensor) -> int:
    """How many elements there are from the first in memory to past the last. Raises: PackageError (S0702)."""
    is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    if not is_plain or tensor.is_conj() or tensor.is_neg():
        raise unsaved(
            f"a tensor {dtype_name(tensor.dtype)}{list(tensor.shape)} on {tensor.device} cannot be saved",
            "weights are plain tensors on the CPU: not sparse, quantized, or waiting to be negated or conjugated",
            "call .cpu(), .to_dense() or .resolve_neg() first",
        )
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def raw(tensor: torch.Tensor) -> memoryview:
    """The memory of a tensor, from its first element to its last, holes of strides included."""
    span = span_of(tensor)
    if not span:
        return memoryview(b"")
    flat = tensor.detach().as_strided((span,), (1,), tensor.storage_offset())
    return memoryview(flat.view(torch.uint8).numpy())


def write(tensors: Iterable[tuple[str, torch.Tensor]]) -> Sequence[bytes | memoryview]:
    """The file's pieces. A tensor whose elements lie otherwise than row by row, or of a dtype that the format lacks, is
    there as its bytes.
    """
    header: dict[str, Any] = {}
    pieces: list[bytes | memoryview] = []
    at = 0
    for name, tensor in tensors:
        content = raw(tensor)
        label = _LABELS.get(tensor.dtype)
        is_itself = label is not None and tensor.is_contiguous()
        header[name] = {
            "dtype": label if is_itself else "U8",
            "shape": list(tensor.shape) if is_itself else [len(content)],
            "data_offsets": [at, at + len(content)],
        }
        pieces.append(content)
        at += len(content)
        if pad := -at % ALIGNMENT:
            header[f"{PAD}{at}"] = {"dtype": "U8", "shape": [pad], "data_offsets": [at, at + pad]}
            pieces.append(bytes(pad))
            at += pad
    text = dumps(header)
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return [struct.pack("<Q", len(text)) + text, *pieces]


@record
class Extent:
    """Where a tensor's bytes lie, counted from the file's beginning."""

    start: int
    nbytes: int


def read_header(data: memoryview, entry: str) -> dict[str, Extent]:
    """Where each tensor lies. Raises: PackageError (S0701) where one lies outside, or two overlap."""
    if len(data) < 8:
        raise broken(entry, "it is too short for its header")
    (nbytes,) = struct.unpack_from("<Q", data)
    if nbytes > min(len(data) - 8, _HEADER_LIMIT):
        raise broken(entry, "its header is longer than itself, or than any")
    base = 8 + nbytes
    if base % ALIGNMENT:
        raise broken(entry, f"its tensors do not begin at a multiple of {ALIGNMENT} bytes")
    found: dict[str, Extent] = {}
    at = 0
    extents = []
    for name, part in loads(data[8:base], entry).pairs():
        dtype, shape, offsets = part.keys("dtype", "shape", "data_offsets")
        kind = _DTYPES.get(dtype.as_str())
        if kind is None:
            raise dtype.bad("is no dtype of an ingot's weights")
        begin, end = offsets.items(2)[0].as_int(), offsets.items(2)[1].as_int()
        if len(shape.items()) > 64 or begin > end or prod(shape.ints(0, 1 << 48)) * kind.itemsize != end - begin:
            raise part.bad("has another size than its elements take")
        extents.append((begin, end, part))
        found[name] = Extent(base + begin, end - begin)
    for begin, end, part in sorted(extents, key=lambda extent: extent[:2]):
        if begin != at:
            raise part.bad("does not begin where another tensor ends")
        at = end
    if base + at != len(data):
        raise broken(entry, "its tensors end before or behind its own end")
    return found
