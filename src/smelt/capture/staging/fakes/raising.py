"""Whether an operator that gets past fake tensors may raise in a run, which matters where the program catches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from smelt.capture.recording.opinfo import OpInfo
from smelt.capture.recording.tensor_slots import Slot
from smelt.capture.staging.fakes.symbols import ScalarSlot
from smelt.ops.raises import is_division
from smelt.ops.record import Trait
from smelt.ops.registry import tags_of
from smelt.ops.sets import where

OF_ALL_ELEMENTS = where(Trait.ANY_SHAPE)
"""Operators that take a tensor of any sizes."""


def may_raise(
    overload: object, info: OpInfo, args: Sequence[object], operands: Sequence[Slot], is_varied: Callable[[Slot], bool]
) -> bool:
    """For its data, or for sizes and numbers that a run tells.

    A number beside a tensor is fine where each element is for itself.
    """
    if info.raises:
        is_float = any(isinstance(a, torch.Tensor) and a.is_floating_point() for a in args)
        by_number = len(args) > 1 and isinstance(args[1], (int, float)) and args[1] != 0
        return not (is_division(overload) and (is_float or by_number))
    if not any(map(is_varied, operands)) or (len(operands) == 1 and info.name in OF_ALL_ELEMENTS):
        return False
    tensors = [slot for slot in operands if not isinstance(slot, ScalarSlot)]
    is_alone = len(tensors) == 1 or not any(map(is_varied, tensors))
    return not (is_alone and "pointwise" in tags_of(info.name))
