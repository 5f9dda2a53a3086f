"""Weights that change inside a region of autocast, which goes on with the cast that it made of them first.

    with torch.autocast("cpu", torch.bfloat16):
        a = F.linear(x, w)           casts w, and keeps the copy
        w.mul_(2)
        b = F.linear(x, w)           the copy again

Autocast keeps the casts to its lower type of f32 leaves that require gradients, until the outermost region ends.
"""

from __future__ import annotations

from typing import Any

import torch

from smelt._torch.autocast import is_cast, is_kept
from smelt.capture.recording.tensor_slots import Record, Slot, StateSlot
from smelt.diag import CaptureError


class KeptCast(CaptureError):
    """The program needs a cast that no graph of it has made. result: its answer in the run that has shown it."""

    result: Any = None

    def __init__(self, record: Record, is_staged: bool) -> None:
        which = "on one of its paths" if is_staged else "that its caller entered"
        super().__init__(
            f"a weight changes inside a region of autocast, {which}",
            record.site.span if record.site else None,
            why="autocast goes on with the cast that it made of the weight first, and no graph holds that one",
            fix="enter torch.autocast inside the program, or change the weight outside of the region",
            code="S0104",
        )


def kept_type(record: Record) -> torch.dtype | None:
    """The lower type that autocast casts an operator's operands to, where it keeps casts; None elsewhere."""
    if record.modes.cache < 0:
        return None
    made = [slot.type[0] for slot in record.results if isinstance(slot, Slot) and type(slot.type) is tuple]
    lower = (low for device, low in record.modes.autocast if is_cast(record.info.name, device))
    return next((low for low in lower if low in made), None)


def kept(slot: Slot) -> torch.Tensor | None:
    """The tensor of a slot where autocast keeps its cast and the program changes it; None for others."""
    if not slot.family.written:
        return None
    tensor = slot.entry.tensor if isinstance(slot, StateSlot) else slot.ref()
    return tensor if tensor is not None and is_kept(tensor) else None
