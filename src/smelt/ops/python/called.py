"""Which overload torch calls for operands whose kinds only the run tells."""

from __future__ import annotations

from typing import Any

import torch

from smelt.ir.python_operators import COMPARISON_NAMES
from smelt.ops.record import Trait
from smelt.ops.registry import overload
from smelt.ops.sets import bases_where

_NUMBERS = (bool, int, float, complex)


def as_called(op_name: str, found: Any, args: list[Any]) -> tuple[Any, list[Any]]:
    """The overload that torch chooses, and its operands, where a value of unknown kind, recorded as a tensor, turns out
    to be a number; else `found`. Of a mask without dimensions, which `aten.index` does not take, what brackets make.
    """
    if op_name == "aten.index.Tensor":
        return found, _with_masks(*args)
    if not op_name.endswith(".Tensor") or not any(type(arg) in _NUMBERS for arg in args[:2]):
        return found, args
    name = op_name.split(".")[1]
    if isinstance(args[0], torch.Tensor):
        # Python's `x * 2` and `x *= 2` are these, too; `mul_.Scalar` rounds otherwise in half precision.
        if name.removesuffix("_") in bases_where(Trait.NUMBER_BESIDE):
            return found, args
        return overload(f"aten.{name}.Scalar") or found, args
    if name in COMPARISON_NAMES and len(args) == 2 and isinstance(args[1], torch.Tensor):
        return overload(f"aten.{COMPARISON_NAMES[name].swapped}.Scalar") or found, args[::-1]
    return found, args


def _with_masks(x: Any, indices: Any) -> list[Any]:
    """The operands of an index; a mask without dimensions takes none of `x`'s, but a new one of size 1."""
    made: list[Any] = []
    dim = 0
    for index in indices:
        is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        if is_mask and not index.dim():
            x, index = x.unsqueeze(dim), (index != 0).reshape(1)
        made.append(index)
        dim += index.dim() if is_mask else 1
    return [x, made]
