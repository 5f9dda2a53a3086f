"""What there is of ours for an operator: its gradient, its code for the CPU, its code for GPUs.

An operator's record says why one of its slots is empty (`why_not`). Of a kind of which nothing is built yet no record
has to; once one is filled, a test asks all the others.
"""

from __future__ import annotations

from typing import Final

from smelt.codegen.fusion.rules.rules import RULES
from smelt.codegen.lower.images.convolution import CONVOLUTIONS
from smelt.codegen.lower.lowering import LOWERINGS
from smelt.ops.record import OpRecord, Slot
from smelt.passes.layers.transposed import TRANSPOSED

NOT_BUILT: Final = {Slot.TRITON: "code for GPUs"}
"""Kinds of which nothing is built yet."""


def filled(record: OpRecord, slot: Slot) -> str:
    """Where the slot is filled, in a few words; "" where it is empty."""
    match slot:
        case Slot.VJP:
            return "torch's backward" if record.vjp is None else "record"
        case Slot.KERNEL:
            return _kernel(record)
        case Slot.ONNX:
            return "form" if record.onnx is not None else "" if record.lower is None else "simpler operators"
        case Slot.TRITON:
            return ""


def _kernel(record: OpRecord) -> str:
    if record.name in RULES:
        return "loop nest"
    if record.product is not None:
        return "product"
    if record.name in CONVOLUTIONS or record.name in TRANSPOSED:
        return "convolution"
    if record.name in LOWERINGS:
        return "lowering"
    return "" if record.lower is None else "simpler operators"
