"""Do two runs of one program agree? Exactly for integers and bools, within a few roundings for floats; NaN is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

# Largest difference relative to the largest finite value: the two runs may choose other kernels, never other values.
_RELATIVE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}


def disagreement(expected: Sequence[Any], found: Sequence[Any]) -> str | None:
    """The first difference between two lists of tensors, as a sentence; None where they agree."""
    if len(expected) != len(found):
        return f"{len(found)} tensors instead of {len(expected)}"
    for i, (left, right) in enumerate(zip(expected, found, strict=True)):
        difference = _difference(left, right)
        if difference is not None:
            return f"output {i} {difference}"
    return None


def _difference(expected: torch.Tensor, found: torch.Tensor) -> str | None:
    for what in ("dtype", "shape", "device", "layout"):
        if getattr(expected, what) != getattr(found, what):
            return f"has {what} {getattr(found, what)} instead of {getattr(expected, what)}"
    if expected.layout != torch.strided or expected.is_quantized or expected.device.type == "meta":
        return None
    if expected.stride() != found.stride() and expected.numel():
        return f"has strides {found.stride()} instead of {expected.stride()}"
    left, right = expected.detach(), found.detach()
    if left.dtype.is_complex:
        left, right = torch.view_as_real(left.resolve_conj()), torch.view_as_real(right.resolve_conj())
    relative = _RELATIVE.get(left.dtype)
    if relative is None:
        equal = torch.equal(left, right) if left.element_size() > 1 or not left.is_floating_point() else True
        return None if equal else "has other values"
    if left.dtype in (torch.float16, torch.bfloat16):
        left, right = left.float(), right.float()
    finite = torch.isfinite(left)
    if not torch.equal(finite, torch.isfinite(right)) or not torch.equal(
        torch.nan_to_num(left[~finite], 1.5), torch.nan_to_num(right[~finite], 1.5)
    ):
        return "has NaN or infinity in other elements"
    if not bool(finite.any()):
        return None
    scale = left[finite].abs().max().item()
    largest = (left[finite] - right[finite]).abs().max().item()
    if largest > relative * max(scale, 1e-30):
        return f"differs by {largest:.3g} where the largest value is {scale:.3g}"
    return None
